"""Rows on their way from the loader to the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.train.conftest import tiny_row

from brim.data.ring import Ring, SlotWriter
from brim.model.batch import TENSORS, RowCounts, check
from brim.train.source import LoadedRows, Transfer


@dataclass
class StandIn:
    """A row in a slot, as the loader gives it."""

    layout: Any
    counts: Any
    arrays: dict[str, Any]
    samples: tuple[int, ...] = (4, 2)
    slot: int = 0
    released: int = field(default=0)

    def release(self) -> None:
        self.released += 1

    def fields(self) -> dict[str, Any]:
        counts = {n: getattr(self.counts, n) for n in RowCounts.__dataclass_fields__}
        return {**self.arrays, "counts": counts, "sample_ids": self.samples}


def placed(seed: int) -> tuple[StandIn, np.ndarray[Any, np.dtype[np.uint8]], Any]:
    batch = tiny_row(seed)
    ring = Ring.create(1, 1 << 20)
    writer = SlotWriter(ring.slot(0))
    for name in TENSORS:
        values = getattr(batch, name).numpy()
        writer(name, values.shape, values.dtype)[...] = values
    arrays = ring.arrays(0, writer.layout)
    return StandIn(writer.layout, batch.counts, arrays), ring.slot(0), batch


def test_a_row_arrives_whole_and_its_slot_can_be_reused_at_once() -> None:
    row, slot, expected = placed(3)
    found = Transfer(torch.device("cpu"))(row, slot)  # type: ignore[arg-type]
    assert row.released == 1
    slot[:] = 255  # the next row is written over it
    check(found)
    for name in TENSORS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.sample_ids == (4, 2)
    assert found.counts == expected.counts


def test_a_row_without_pictures_arrives_too() -> None:
    from brim.train.synthetic import Tokens, document, pack

    rng = np.random.default_rng(0)
    text = document(rng, [], text=4, answer=3, vocabulary=20, tokens=Tokens(60, 61, 62, 63))
    batch = pack([text], 8, side=6)
    ring = Ring.create(1, 1 << 16)
    writer = SlotWriter(ring.slot(0))
    for name in TENSORS:
        values = getattr(batch, name).numpy()
        writer(name, values.shape, values.dtype)[...] = values
    row = StandIn(writer.layout, batch.counts, ring.arrays(0, writer.layout))
    found = Transfer(torch.device("cpu"))(row, ring.slot(0))  # type: ignore[arg-type]
    assert found.patches.shape == (0, 768)
    assert torch.equal(found.input_ids, batch.input_ids)


class FakeLoader:
    """Counts how often it is started, and where."""

    started: ClassVar[list[int]] = []

    def __init__(self, prepared: Any, *, state: Any, run_dir: Any) -> None:
        self.step, self.row, self.closed = state["step"], 0, False
        self.started.append(self.step)
        self.ring = SimpleNamespace(slot=lambda n: n)

    def __next__(self) -> Any:
        found = (self.step, self.row)
        self.row += 1
        if self.row == 2:
            self.step, self.row = self.step + 1, 0
        return SimpleNamespace(slot=found)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> LoadedRows:
    FakeLoader.started = []
    monkeypatch.setattr("brim.train.source.Loader", FakeLoader)
    monkeypatch.setattr("brim.train.source.fingerprint", lambda plan: "same")
    plan = SimpleNamespace(locate=lambda step: (0, step), starts=[0], steps=lambda epochs: 9)
    prepared: Any = SimpleNamespace(plan=plan, config=SimpleNamespace(rows_per_step=2))
    loaded = LoadedRows(prepared, torch.device("cpu"), epochs=1)
    monkeypatch.setattr(Transfer, "__call__", lambda self, row, slot: slot)
    return loaded


def test_steps_in_order_come_from_one_loader(rows: LoadedRows) -> None:
    assert [rows.fetch(step) for step in (0, 1, 2)] == [
        [(0, 0), (0, 1)],
        [(1, 0), (1, 1)],
        [(2, 0), (2, 1)],
    ]
    assert FakeLoader.started == [0]


def test_another_position_closes_the_loader_and_starts_one_there(rows: LoadedRows) -> None:
    rows.fetch(0)
    first = rows._loader
    assert rows.fetch(7) == [(7, 0), (7, 1)]
    assert rows.fetch(3) == [(3, 0), (3, 1)]
    assert first is not None and first.closed  # type: ignore[attr-defined]
    assert FakeLoader.started == [0, 7, 3]


class FakeCuda:
    """What pinning calls, without a device; a copy ends when its event is waited for."""

    def __init__(self, refuses: bool = False) -> None:
        self.pinned: set[int] = set()
        self.refuses = refuses
        self.asked = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.asked += 1
        assert address not in self.pinned and size % 4096 == 0
        if not self.refuses:
            self.pinned.add(address)
        return int(self.refuses)

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


def test_a_slot_is_pinned_once_and_unpinned_before_its_memory_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda()
    monkeypatch.setattr("torch.cuda.cudart", lambda: fake)
    transfer = Transfer(torch.device("cpu"))
    ring = Ring.create(2, 1 << 20)
    for number in (0, 1, 0, 1):
        transfer._pin(ring.slot(number))
    assert fake.asked == 2 and len(fake.pinned) == 2
    transfer.close()
    assert not fake.pinned


def test_memory_that_cannot_be_pinned_is_asked_for_once_and_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda(refuses=True)
    monkeypatch.setattr("torch.cuda.cudart", lambda: fake)
    transfer = Transfer(torch.device("cpu"))
    ring = Ring.create(1, 1 << 20)
    transfer._pin(ring.slot(0))
    transfer._pin(ring.slot(0))
    transfer.close()
    assert fake.asked == 1


class Event:
    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


def test_at_most_one_copy_is_under_way_and_closing_waits_for_it() -> None:
    transfer = Transfer(torch.device("cpu"))
    rows = [placed(n)[0] for n in range(3)]
    events = [Event() for _ in rows]
    for row, event in zip(rows, events, strict=True):
        transfer._copying.append((event, row))  # type: ignore[arg-type]
        transfer._release()
    assert [row.released for row in rows] == [1, 1, 0]
    transfer.close()
    assert [row.released for row in rows] == [1, 1, 1]
    assert all(event.done for event in events)


def test_nothing_to_evaluate_on_gives_no_rows(rows: LoadedRows) -> None:
    assert list(rows.evaluation()) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_rows_arrive_whole_from_slots_that_are_reused_and_from_a_ring_after_a_ring() -> (
    None
):
    device = torch.device("cuda")
    for round_trip in range(3):  # a new ring may land where the last one was
        transfer = Transfer(device)
        found, expected = [], []
        for seed in range(6):
            row, slot, batch = placed(100 * round_trip + seed)
            found.append(transfer(row, slot))  # type: ignore[arg-type]
            expected.append(batch)
            torch.cuda.synchronize()
            transfer._release()
            assert row.released == 1
            slot[:] = 255
        transfer.close()
        for a, b in zip(found, expected, strict=True):
            assert all(torch.equal(getattr(a, n).cpu(), getattr(b, n)) for n in TENSORS)
