"""Slots in shared memory, and the black box that outlives its process."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from brim.data.quarantine import BadSample
from brim.data.ring import BlackBox, Ring, SlotWriter

dtypes = st.sampled_from(["uint8", "int32", "int64", "float32"])
shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9)


@given(st.lists(st.tuples(dtypes, shapes), max_size=8), st.integers(0, 2))
def test_arrays_come_out_of_a_slot_as_they_were_written(
    wanted: list[tuple[str, tuple[int, ...]]], slot: int
) -> None:
    ring = Ring.create(3, 1 << 16)
    writer = SlotWriter(ring.slot(slot))
    written = {}
    for number, (dtype, shape) in enumerate(wanted):
        array = writer(f"a{number}", shape, dtype)
        array[...] = np.arange(array.size).reshape(shape)
        written[f"a{number}"] = array.copy()
    found = ring.arrays(slot, writer.layout)
    assert found.keys() == written.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert all(offset % 64 == 0 for _, offset, _, _ in writer.layout)
    ring.close()


def test_another_mapping_of_the_descriptor_sees_the_same_bytes() -> None:
    ring = Ring.create(2, 1000)
    other = Ring(os.dup(ring.fd), 2, ring.slot_bytes)
    ring.slot(1)[:5] = [1, 2, 3, 4, 5]
    assert other.slot(1)[:5].tolist() == [1, 2, 3, 4, 5]
    assert not other.slot(0).any()
    other.close()
    ring.close()


def test_a_row_that_does_not_fit_its_slot_is_noticed() -> None:
    ring = Ring.create(1, 1000)
    writer = SlotWriter(ring.slot(0))
    with pytest.raises(AssertionError, match="big does not fit"):
        writer("big", (ring.slot_bytes + 1,), np.uint8)
    ring.close()


def test_memory_is_taken_when_a_slot_is_used_and_not_before() -> None:
    def resident() -> int:
        line = next(
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("RssShmem")
        )
        return int(line.split()[1])

    before = resident()
    ring = Ring.create(64, 8 << 20)
    assert resident() - before < 4096
    ring.fault_in(3)
    assert 8000 < resident() - before < 20_000
    ring.close()


def test_the_box_names_what_a_thread_is_at_and_nothing_afterwards() -> None:
    ring = Ring.create(1, 1000)
    guard = BlackBox(ring.box[5], {}, frozenset(), threading.Lock())
    with guard.watching(42):
        assert ring.box[5, 0] == 43
        assert ring.box[5, 1] > 0
    assert not ring.box[:, 0].any()
    with pytest.raises(ValueError), guard.watching(42):
        raise ValueError
    assert not ring.box[:, 0].any()


def test_a_deadly_sample_is_refused_and_suspects_go_one_at_a_time() -> None:
    ring = Ring.create(1, 1000)
    lock = threading.Lock()
    guard = BlackBox(ring.box[0], {7: "it kills"}, frozenset({8}), lock)
    with pytest.raises(BadSample, match="it kills"), guard.watching(7):
        pytest.fail("it was read")
    with guard.watching(8):
        assert lock.locked()
    with guard.watching(9):
        assert not lock.locked()
    assert not lock.locked()
