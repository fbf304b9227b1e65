"""Rows from the loader to the device: one copy a row, beside the step that is running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from brim.data.loader import HostRow, Loader, State, fingerprint
from brim.data.prepare import Prepared
from brim.data.transfer import Transfer
from brim.model.batch import PackedBatch
from brim.train.parallel.blank import agreed
from brim.train.parallel.ranks import Ranks


class LoadedRows:
    """:class:`brim.train.loop.Rows` of a prepared data set, for one rank.

    ``dtype``: what the model computes with; a CUDA device normalises to it where it cuts the
    pictures into patches, unless rows wait for their turn: those wait as bytes.
    ``always_tower``: every row runs the tower, because ranks meet over gradients after each.
    """

    def __init__(
        self,
        prepared: Prepared,
        device: torch.device,
        *,
        epochs: int,
        evaluated: Prepared | None = None,
        run_dir: Path | None = None,
        dtype: torch.dtype = torch.uint8,
        ranks: Ranks | None = None,
        always_tower: bool = False,
    ) -> None:
        self.prepared, self.evaluated, self.run_dir = prepared, evaluated, run_dir
        self.epochs, self.ranks, self.always_tower = epochs, ranks or Ranks(), always_tower
        waiting = self.count > 1
        self._transfer = Transfer(device, prepared.vision, torch.uint8 if waiting else dtype)
        # on a CPU the loader's process cuts: the training process has better things to do
        self._whole = device.type == "cuda"
        self._loader: Loader | None = None

    @property
    def count(self) -> int:
        """Rows of this rank in a step."""
        return self.prepared.plan.rows_per_step // self.ranks.world

    def steps(self) -> int:
        return self.prepared.plan.steps(self.epochs)

    def identity(self) -> str:
        """Fingerprint of everything that decides which sample is shown when."""
        return fingerprint(self.prepared.plan)

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        loader = self._at(step)
        rows = [_batch(row, self._transfer(row)) for row in _take(loader, self.count)]
        if not self.ranks.together:
            return rows
        tower = self.prepared.plan.tower(step, self.ranks.world, always=self.always_tower)
        return agreed(rows, tower, self.prepared.config.patch_bucket)

    def evaluation(self) -> Iterator[PackedBatch]:
        """As many rows on every rank; those that only fill the last turn have no labels."""
        if self.evaluated is None:
            return
        plan = self.evaluated.plan
        transfer = Transfer(self._transfer.device, self.evaluated.vision, self._transfer.dtype)
        with self._loader_of(self.evaluated, stop=plan.steps(1)) as loader:
            try:
                for row in loader:
                    batch = _batch(row, transfer(row))
                    if row.step * plan.rows_per_step + row.number >= len(plan.epoch(0).rows):
                        batch = _unscored(batch)
                    if self.ranks.together:
                        tower = plan.tower(row.step, self.ranks.world)
                        [batch] = agreed([batch], tower, self.evaluated.config.patch_bucket)
                    yield batch
            finally:
                transfer.close()

    def close(self) -> None:
        self._transfer.close()
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _at(self, step: int) -> Loader:
        """A loader whose next row is the first of ``step``."""
        if self._loader is None or self._loader.step != step:
            self.close()
            plan = self.prepared.plan
            plan.locate(step)  # learns where the epochs before it end
            state = State(step=step, epoch_starts=list(plan.starts), plan=self.identity())
            self._loader = self._loader_of(self.prepared, state=_plain(state))
        return self._loader

    def _loader_of(self, prepared: Prepared, **where: Any) -> Loader:
        ranks = self.ranks
        return Loader(
            prepared,
            rank=ranks.rank,
            world=ranks.world,
            local_world=ranks.local_world,
            run_dir=self.run_dir,
            whole=self._whole,
            **where,
        )


def one_row_at_a_time(prepared: Prepared, world: int = 1) -> Prepared:
    """The plan of an evaluation: a row at a time on every rank.

    A few rows of the first are repeated to fill the last turn; they come behind all others.
    """
    plan = replace(prepared.plan, rows_per_step=world, starts=[0], _epochs={})
    return replace(prepared, plan=plan, config=replace(prepared.config, rows_per_step=world))


def _unscored(batch: PackedBatch) -> PackedBatch:
    none = slice(0, 0)
    counts = replace(batch.counts, scored=0)
    return replace(
        batch, scored_rows=batch.scored_rows[none], labels=batch.labels[none], counts=counts
    )


def _batch(row: HostRow, tensors: Mapping[str, torch.Tensor]) -> PackedBatch:
    return PackedBatch.from_arrays({**row.fields(), **tensors})


def _take(loader: Loader, rows: int) -> Iterator[HostRow]:
    for _ in range(rows):
        yield next(loader)


def _plain(state: State) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}
