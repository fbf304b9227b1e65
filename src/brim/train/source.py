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


class LoadedRows:
    """:class:`brim.train.loop.Rows` of a prepared data set, for one rank.

    ``dtype``: what the model computes with; a CUDA device normalises to it where it cuts the
    pictures into patches.
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
    ) -> None:
        self.prepared, self.evaluated, self.run_dir = prepared, evaluated, run_dir
        self.epochs = epochs
        self._transfer = Transfer(device, prepared.vision, dtype)
        # on a CPU the loader's process cuts: the training process has better things to do
        self._whole = device.type == "cuda"
        self._loader: Loader | None = None

    def steps(self) -> int:
        return self.prepared.plan.steps(self.epochs)

    def identity(self) -> str:
        """Fingerprint of everything that decides which sample is shown when."""
        return fingerprint(self.prepared.plan)

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        loader = self._at(step)
        rows = self.prepared.config.rows_per_step
        return [_batch(row, self._transfer(row)) for row in _take(loader, rows)]

    def evaluation(self) -> Iterator[PackedBatch]:
        if self.evaluated is None:
            return
        stop = self.evaluated.plan.steps(1)
        transfer = Transfer(self._transfer.device, self.evaluated.vision, self._transfer.dtype)
        with Loader(self.evaluated, stop=stop, run_dir=self.run_dir, whole=self._whole) as loader:
            try:
                for row in loader:
                    yield _batch(row, transfer(row))
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
            self._loader = Loader(
                self.prepared, state=_plain(state), run_dir=self.run_dir, whole=self._whole
            )
        return self._loader


def one_row_at_a_time(prepared: Prepared) -> Prepared:
    """The plan of an evaluation: every row once, none repeated to fill a step."""
    plan = replace(prepared.plan, rows_per_step=1, starts=[0], _epochs={})
    return replace(prepared, plan=plan, config=replace(prepared.config, rows_per_step=1))


def _batch(row: HostRow, tensors: Mapping[str, torch.Tensor]) -> PackedBatch:
    return PackedBatch.from_arrays({**row.fields(), **tensors})


def _take(loader: Loader, rows: int) -> Iterator[HostRow]:
    for _ in range(rows):
        yield next(loader)


def _plain(state: State) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}
