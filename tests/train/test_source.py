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
    loaded._transfer = lambda row, slot: slot  # type: ignore[assignment, return-value]
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


def test_nothing_to_evaluate_on_gives_no_rows(rows: LoadedRows) -> None:
    assert list(rows.evaluation()) == []
