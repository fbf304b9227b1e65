"""Rows on their way from the loader to the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tests.train.conftest import tiny_config, tiny_row

from brim.data.geometry import Vision
from brim.data.ring import Ring, SlotWriter
from brim.data.transfer import Transfer
from brim.model.batch import TENSORS, RowCounts, check
from brim.model.qwen3vl import PatchEmbedding
from brim.train.source import LoadedRows, _batch


@dataclass
class StandIn:
    """A row in a slot, as the loader gives it."""

    layout: Any
    counts: Any
    arrays: dict[str, Any]
    memory: Any
    samples: tuple[int, ...] = (4, 2)
    released: int = field(default=0)

    def release(self) -> None:
        self.released += 1

    def fields(self) -> dict[str, Any]:
        counts = {n: getattr(self.counts, n) for n in RowCounts.__dataclass_fields__}
        return {**self.arrays, "counts": counts, "sample_ids": self.samples}


def placed(seed: int) -> tuple[StandIn, Any]:
    batch = tiny_row(seed)
    ring = Ring.create(1, 1 << 20)
    writer = SlotWriter(ring.slot(0))
    for name in TENSORS:
        values = getattr(batch, name).numpy()
        writer(name, values.shape, values.dtype)[...] = values
    arrays = ring.arrays(0, writer.layout)
    return StandIn(writer.layout, batch.counts, arrays, ring.slot(0)), batch


def test_a_row_becomes_the_batch_that_the_model_takes() -> None:
    row, expected = placed(3)
    found = _batch(row, Transfer(torch.device("cpu"))(row))  # type: ignore[arg-type]
    row.memory[:] = 255  # the next row is written over it
    check(found)
    for name in TENSORS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.sample_ids == (4, 2)
    assert found.counts == expected.counts


def test_a_batch_of_normalised_patches_keeps_its_promises_and_gives_the_same_features() -> None:
    row, raw = placed(3)
    normalised = {
        name: getattr(raw, name).float() / 127.5 - 1 for name in ("patches", "video_patches")
    }
    found = _batch(row, {**Transfer(torch.device("cpu"))(row), **normalised})  # type: ignore[arg-type]
    check(found)
    embed = PatchEmbedding(tiny_config().vision)
    ours = embed(found.patches, found.video_patches)
    assert torch.equal(ours, embed(raw.patches, raw.video_patches))


class FakeLoader:
    """Counts how often it is started, and where."""

    started: ClassVar[list[int]] = []

    def __init__(self, prepared: Any, *, state: Any, whole: bool, **ranks: Any) -> None:
        assert not whole  # a CPU gets its pictures cut
        self.step, self.row, self.closed = state["step"], 0, False
        self.started.append(self.step)

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
    plan = SimpleNamespace(
        locate=lambda step: (0, step), starts=[0], steps=lambda epochs: 9, rows_per_step=2
    )
    config = SimpleNamespace(rows_per_step=2)
    prepared: Any = SimpleNamespace(plan=plan, config=config, vision=Vision())
    loaded = LoadedRows(prepared, torch.device("cpu"), epochs=1)
    monkeypatch.setattr(Transfer, "__call__", lambda self, row: {})
    monkeypatch.setattr("brim.train.source._batch", lambda row, tensors: row.slot)
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
