"""The numbering of a graph in parts."""

from types import SimpleNamespace

from torch_gnnscale.distributed.numbering import PartNumbering


def test_numberings_are_equal_where_the_parts_are():
    numbering, equal, other = (PartNumbering(SimpleNamespace(fingerprint=number)) for number in (5, 5, 6))
    assert numbering.equals(equal)
    assert not numbering.equals(other)
    assert not numbering.equals(None)
