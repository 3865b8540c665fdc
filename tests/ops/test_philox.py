import itertools

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops, random

ONES = 0xFFFFFFFF
# Random123's kat_vectors, philox4x32 of 10 rounds: counter, key, block.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
KEYS = st.integers(-(1 << 63), (1 << 63) - 1)


def words(value: int) -> list[int]:
    return [value & ONES, value >> 32 & ONES]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_reference_known_answers(counter, key, block):
    assert list(reference.philox(key[0] | key[1] << 32, *counter)) == block


def test_native_known_answer():
    found = ops.random_bits(2, key=0).tolist()
    assert words(found[0]) + words(found[1]) == KNOWN[0][2]


@given(key=KEYS, offset=st.integers(0, 1 << 62), count=st.integers(0, 9))
def test_native_equals_reference(key, offset, count):
    found = ops.random_bits(count, key, offset)
    assert found.dtype == torch.int64
    assert torch.equal(found, reference.random_bits(count, key, offset))


@given(key=KEYS, node=st.integers(0, (1 << 63) - 1), number=st.integers(0, 99))
def test_a_node_s_draws_are_blocks_of_its_counter(key, node, number):
    low, high = words(node)
    hop, relation = 5, 3
    block = reference.philox(key, low, high, 0, hop << 26 | relation << 16 | number // 2)
    half = block[2 * (number % 2) :]
    assert reference.draw(key, node, hop, number, relation=relation) == half[0] | half[1] << 32


def test_counters_of_different_draws_differ():
    parts = itertools.product([0, 1, 1 << 32], [0, 1], [0, 1, 63], [0, 1, 1023], [0, 1, 2, 131071])
    draws = [
        reference.draw(9, node, hop, number, tree=tree, relation=relation)
        for node, tree, hop, relation, number in parts
    ]
    assert len(set(draws)) == len(draws) == 3 * 2 * 3 * 3 * 4


@pytest.mark.parametrize("part", [{"node": -1}, {"hop": 64}, {"number": 1 << 17}, {"relation": 1024}])
def test_reference_draw_refuses_what_the_counter_cannot_hold(part):
    with pytest.raises(ValueError, match="counter"):
        reference.draw(**{"key": 0, "node": 0, "hop": 0, "number": 0, **part})


def test_batch_key_depends_on_all_four():
    values = list(itertools.product([0, 1, 2, -1, 1 << 63], [0, 1, 2, 1000], [0, 1, 2, 1000], random.Purpose))
    keys = {random.batch_key(*value) for value in values}
    assert len(keys) == len(values)
    assert all(-(1 << 63) <= key < 1 << 63 for key in keys)
    assert random.batch_key(1 << 64 | 5) == random.batch_key(5)


def test_batch_key_is_pinned():
    # One step of SplitMix64 from state 0 gives 0xE220A8397B1DCDAF, as published.
    assert random._mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert random.batch_key(0) == 2391539541053276776
    assert random.batch_key(42, 3, 17, random.Purpose.SHUFFLE) == 1020709596644723301


def test_ids_key():
    ids = torch.arange(10)
    assert random.ids_key(1, ids) == random.ids_key(1, ids.to(torch.int32)) == random.ids_key(1, ids.clone())
    others = [random.ids_key(1, ids.flip(0)), random.ids_key(1, ids[:-1]), random.ids_key(2, ids)]
    assert len({random.ids_key(1, ids), *others}) == 4
    assert random.ids_key(1, torch.stack([ids, ids], dim=1)[:, 0]) == random.ids_key(1, ids)


def test_draw_seed_follows_torch():
    torch.manual_seed(5)
    first = random.draw_seed()
    second = random.draw_seed()
    torch.manual_seed(5)
    assert random.draw_seed() == first != second
    assert random.draw_seed(torch.Generator().manual_seed(7)) == random.draw_seed(torch.Generator().manual_seed(7))
