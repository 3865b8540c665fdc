"""Numbers of short texts without a language model."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HashedWords:
    """Makes a row of each text: the sum of a signed unit vector for each word, of length 1 (feature hashing).

    Word w adds 1 - 2 b to column h mod ``width``, where h = CRC-32(w) // 2 and b = CRC-32(w) mod 2.

    Args:
        width: how many numbers a text has.
    """

    width: int = 64

    def __call__(self, texts: list[str]) -> Tensor:
        """Rows of the texts: float32, shape [len(texts), width]; zeros for one without words."""
        row, column, sign = [], [], []
        for number, text in enumerate(texts):
            for word in re.findall(r"\w+", str(text).lower()):
                code = zlib.crc32(word.encode())
                row.append(number)
                column.append(code // 2 % self.width)
                sign.append(1.0 - 2 * (code % 2))
        found = torch.zeros(len(texts), self.width)
        found.index_put_((torch.tensor(row, dtype=torch.int64), torch.tensor(column, dtype=torch.int64)),
                         torch.tensor(sign), accumulate=True)  # fmt: skip
        return torch.nn.functional.normalize(found)
