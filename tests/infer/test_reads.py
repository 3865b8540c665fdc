"""Which tensors a computation reads."""

import numpy as np
import torch
from torch import nn

from torch_gnnscale.infer.plan import Reads


def marks_of(compute) -> list[frozenset]:
    """The marks of what ``compute(a, b, c)`` returns; these bear "a", "b" and "c"."""
    given, reads = [torch.rand(4, 3) for _ in range(3)], Reads()
    for tensor, mark in zip(given, "abc", strict=True):
        reads.mark(tensor, mark)
    with reads, torch.no_grad():
        return [frozenset(reads.marks(value)) for value in compute(*given)]


def marks(compute) -> list[str]:
    return ["".join(sorted(found)) for found in marks_of(compute)]


def test_results_bear_the_marks_of_what_they_are_computed_from():
    linear = nn.Linear(3, 3)
    assert marks(lambda a, b, c: (a + b, linear(c), torch.ones(3), a)) == ["ab", "c", "", "a"]
    assert marks(lambda a, b, c: ((a > 0).float(), a.detach(), b.argmax(1), torch.cat([a, c]))) == ["a", "a", "b", "ac"]
    assert marks(lambda a, b, c: (a[b.argmax(1)], a.new_zeros(3), torch.where(c > 0, 1, 2))) == ["ab", "a", "c"]


def test_writes_in_place():
    def compute(a, b, c):
        out = torch.zeros(4, 3)
        out[:, :2] = a[:, :2]
        more = torch.zeros(4)
        torch.sum(b, 1, out=more)
        c += b
        return out, more, c, a

    assert marks(compute) == ["a", "b", "bc", "a"]


def test_what_python_decides_by():
    def compute(a, b, c):
        before = torch.ones(2)
        scale = 2 if bool(a.sum() > 0) else 3
        return before, b * scale, torch.full((2,), c[0, 0].item()), torch.ones(2)

    assert marks(compute) == ["ac", "abc", "ac", "ac"]


def test_what_others_than_torch_get():
    def compute(a, b, c):
        found = [torch.from_numpy(np.asarray(a) * 2)]
        found += [torch.tensor(b.tolist()), torch.from_numpy(c.numpy() + 1)]
        return found

    assert marks(compute) == ["abc", "abc", "abc"]
