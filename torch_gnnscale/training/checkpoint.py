"""How a run ends early and goes on: the file that it is resumed from; and Ctrl-C, at which it ends after the current
batch, and at the second time at once."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

CHECKPOINT = "checkpoint.pt"
BACKUP = "checkpoint.before.pt"
"""The checkpoint of the run before the one that :data:`CHECKPOINT` is of."""
FORMAT = 2
"""Version of what is in the file."""
MAY_DIFFER = ("epochs", "device")
"""Settings that a resumed run may change: the batches do not depend on them."""


def write(folder: Path, state: dict[str, Any]) -> None:
    """Writes ``state`` to ``folder``, which is made if need be.

    The file replaces the previous checkpoint only when it is on the disk: a process that is killed at any moment leaves
    one of the two, complete.

    Raises:
        OSError: names the file that cannot be written; the previous checkpoint is as it was.
    """
    file, partial = folder / CHECKPOINT, folder / f"{CHECKPOINT}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(file)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:
        # torch.save raises a RuntimeError of its own while it handles the OSError of the file.
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError):
            raise
        raise OSError(reason.errno, reason.strerror, str(file)) from error
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_backup(folder: Path) -> Path | None:
    """Keeps the checkpoint in ``folder``, if there is one, under the name :data:`BACKUP`, too, which a new run does not
    overwrite; returns that path. There is one backup: it takes the place of an earlier one.

    Raises:
        OSError: names the file that cannot be written.
    """
    file, backup = folder / CHECKPOINT, folder / BACKUP
    if not file.exists():
        return None
    if backup.exists() and backup.samefile(file):  # of a run that has not written a checkpoint
        return backup
    partial = folder / f"{BACKUP}.partial"
    try:
        partial.unlink(missing_ok=True)
        try:
            os.link(file, partial)
        except OSError:  # a file system without hard links
            shutil.copyfile(file, partial)
        partial.replace(backup)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(backup)) from error
    return backup


def state_of_rank(saved: list[dict[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """The state with which a rank goes on, given the states of the ranks of the stopped run.

    If the number of ranks differs, rank 0 gets the epoch's sums of all former ranks, and the others 0; ranks that were
    not there before get no random state.

    Args:
        saved: by rank, ``random_state``, ``device_random_state`` and ``epoch``: sums over the batches so far.
        rank, world: of the run that goes on.
    """
    if len(saved) == world:
        return saved[rank]
    epochs = [entry["epoch"] for entry in saved]
    epoch = {name: sum(of_rank[name] for of_rank in epochs) if rank == 0 else 0.0 for name in epochs[0]}
    epoch["seconds"] = epochs[0]["seconds"]  # ranks train at the same time
    epoch["batches"] = float(sum(of_rank["batches"] for of_rank in epochs) // world)
    known = saved[rank] if rank < len(saved) else dict.fromkeys(saved[0])
    return {**known, "epoch": epoch}


def read(folder: Path, run: dict[str, Any]) -> dict[str, Any] | None:
    """The state in ``folder``, its tensors in host memory; None if there is no checkpoint.

    Args:
        folder: where :func:`write` put it.
        run: the settings of the run that is to be resumed, to be compared with ``state["run"]``.

    Raises:
        ValueError: the file is damaged, no checkpoint or one of an earlier version, or its settings differ in another
            name than :data:`MAY_DIFFER`.
    """
    state = load(folder)
    before = run if state is None else state["run"]
    for name in run | before:
        if name not in MAY_DIFFER and run.get(name) != before.get(name):
            raise ValueError(f"{folder / CHECKPOINT}: expected {name}={run.get(name)!r}, found {before.get(name)!r}")
    return state


def load(folder: Path) -> dict[str, Any] | None:
    """The state in ``folder``, of whatever run, its tensors in host memory; None if there is no checkpoint.

    Raises:
        ValueError: the file is damaged, or no checkpoint.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    try:
        # torch.load compares no checksums, and takes a member for empty whose entry says that it is a directory.
        compared = io.BytesIO()
        with zipfile.ZipFile(file) as members, zipfile.ZipFile(compared, "w") as copies:
            for name in members.namelist():
                copies.writestr(name, members.read(name))
        compared.seek(0)
        state = torch.load(compared, weights_only=True, map_location="cpu")
    except Exception as error:  # any type: damaged bytes may mean anything to zipfile and pickle
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{file}: expected a checkpoint, found another or a damaged file ({reason})") from None
    if not isinstance(state, dict) or not isinstance(state.get("run"), dict):
        raise ValueError(f"{file}: expected a checkpoint, found another file")
    return state


INTERRUPTED = 130
"""The exit code of an interrupted program."""
_AFTER_THIS = b"\ngnnscale: ends after this batch (a second Ctrl-C: at once)\n"
_AT_ONCE = b"\ngnnscale: interrupted\n"


class Interrupts:
    """A context in which interrupts (SIGINT) of this process are noted.

    The first raises KeyboardInterrupt, except in :meth:`deferred`, where it is raised by :meth:`check` or at the end.
    The second ends the process with code 130. Whatever error ends the context after an interrupt, it is a
    KeyboardInterrupt: one in a callback of a library may have become another, or none.

    In other threads than the main one, which get no signals, and in processes that are forked, it does nothing.
    """

    def __init__(self) -> None:
        self.noted = False
        """Whether there was an interrupt."""
        self._deferred = False
        self._process = os.getpid()
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self.noted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def _note(self, _: int, __: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a worker process, which the loader ends
        if self.noted:
            with suppress(Exception):
                sys.stdout.flush()
            os.write(2, _AT_ONCE)
            os._exit(INTERRUPTED)
        self.noted = True
        if not self._deferred:
            raise KeyboardInterrupt
        os.write(2, _AFTER_THIS)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A context in which the first interrupt is raised by :meth:`check`, or at the end."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was an interrupt. Called between batches."""
        if self.noted:
            raise KeyboardInterrupt
