"""What a GPU receives over PCIe, by the counter of its driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

POLL = 0.005  # seconds: 4 GiB, after which a counter of 32 bits begins anew, take a PCIe 5 bus 80 ms


class NotCounted(Exception):
    """What is received cannot be counted here; says why."""


class Received:
    """Bytes that a GPU received so far, headers of packets included; every method may raise NotCounted."""

    def __init__(self, device: torch.device) -> None:
        with _not_counted():
            import pynvml

            self._nvml: Any = pynvml
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self.read()

    def read(self) -> int:
        """The counter."""
        with _not_counted():
            (field,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [self._nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES])
            if field.nvmlReturn != self._nvml.NVML_SUCCESS:
                raise NotCounted(f"the driver says NVML error {field.nvmlReturn}")
            narrow = field.valueType == self._nvml.NVML_VALUE_TYPE_UNSIGNED_INT
            return int(field.value.uiVal if narrow else field.value.ullVal)

    @contextmanager
    def counting(self, totals: list[int]) -> Iterator[None]:
        """Appends the bytes that are received within the context; work on the GPU must have ended when it is left."""
        total, last, ended = 0, self.read(), threading.Event()
        failed: list[NotCounted] = []

        def add() -> None:
            nonlocal total, last
            now = self.read()
            total, last = total + (now - last if now >= last else now - last + (1 << 32)), now

        def poll() -> None:
            try:
                while not ended.wait(POLL):
                    add()
            except NotCounted as error:
                failed.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failed:
            raise failed[0]
        add()
        totals.append(total)


@contextmanager
def _not_counted() -> Iterator[None]:
    """Turns every error of the driver or its package into NotCounted, so that other measurements go on."""
    try:
        yield
    except Exception as error:
        raise NotCounted(f"{type(error).__name__}: {error}") from error
