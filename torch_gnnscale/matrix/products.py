"""Products of sparse matrices: by scipy or, for a graph on a GPU, there by cupy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

try:
    from scipy.sparse import csr_array
except ImportError as error:
    raise ImportError('torch_gnnscale.matrix needs scipy: pip install "torch_gnnscale[matrix]"') from error

EXACT_BITS = 53
"""Products of doubles are exact if their sums stay below 2^53."""


class DeviceMatrix:
    """The right-hand side of products on a GPU: for a matrix q of scipy, ``q @ matrix`` is the matrix that scipy would
    return. All entries are int64.

    cuSPARSE multiplies doubles, not integers. So the entries of q are cut into parts of b bits, where b is so small
    that the sums of a part's products stay below 2^53. Each part has its own product; these are added as integers:

        q @ matrix = sum over i of 2^(b i) * (q_i @ matrix),     q = sum over i of 2^(b i) * q_i,     0 <= q_i < 2^b

    Args:
        matrix: entries are not negative, and below 2^53.
        arrays: the module ``cupy``.
        sparse: the module ``cupyx.scipy.sparse``.
        device: the number of the GPU.
    """

    def __init__(self, matrix: csr_array, arrays: Any, sparse: Any, device: int) -> None:
        self.shape = matrix.shape
        self._arrays, self._sparse, self._device = arrays, sparse, device
        self._largest = int(matrix.data.max(initial=0))
        with self._on_device():
            self._matrix = self._put(matrix.data, matrix)

    def __rmatmul__(self, q: csr_array) -> csr_array:
        """The product of q, whose entries are not negative, and the matrix."""
        most = self._largest * int(np.diff(q.indptr).max(initial=0))
        bits = (((1 << EXACT_BITS) - 1) // max(most, 1) + 1).bit_length() - 1  # the most with (2^b - 1) most < 2^53
        if bits < 1:
            raise ValueError(f"expected products that sum up to less than 2^{EXACT_BITS}, found sums of up to {most}")
        product = csr_array((q.shape[0], self.shape[1]), dtype=np.int64)
        for first in range(0, max(int(q.data.max(initial=0)).bit_length(), 1), bits):
            product = product + self._product((q.data >> first) & ((1 << bits) - 1), q) * (1 << first)
        product.sort_indices()
        return product

    def _product(self, data: np.ndarray, q: csr_array) -> csr_array:
        """The product with the entries of q replaced by ``data``."""
        with self._on_device():
            found = self._put(data, q) @ self._matrix
            entries, indices, indptr = map(self._arrays.asnumpy, (found.data, found.indices, found.indptr))
        return csr_array((entries.astype(np.int64), indices, indptr), shape=found.shape)

    def _put(self, data: np.ndarray, like: csr_array) -> Any:
        parts = map(self._arrays.asarray, (data.astype(np.float64), like.indices, like.indptr))
        return self._sparse.csr_matrix(tuple(parts), shape=like.shape)

    def _on_device(self) -> Any:
        return self._arrays.cuda.Device(self._device)


def holder(device: torch.device) -> Callable[[csr_array], Any]:
    """A function that makes the right-hand side of products from a matrix: on a CPU it is the matrix itself, on a GPU a
    :class:`DeviceMatrix`.

    Raises:
        ImportError: a GPU, and cupy is not installed.
    """
    if device.type != "cuda":
        return lambda matrix: matrix
    try:
        import cupy
        from cupyx.scipy import sparse
    except ImportError as error:
        raise ImportError(
            "graph: expected cupy, which multiplies the matrices of a graph on a GPU, found none: install the package "
            "of your CUDA version, such as cupy-cuda13x, or move the graph to the CPU"
        ) from error
    index = torch.cuda.current_device() if device.index is None else device.index
    return lambda matrix: DeviceMatrix(matrix, cupy, sparse, index)
