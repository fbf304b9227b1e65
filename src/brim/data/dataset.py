"""The rows as a ``torch.utils.data`` data set, for trainers that are not brim's.

::

    rows = RowDataset(prepare(config, "MODEL_FOLDER"))
    loader = DataLoader(rows, batch_size=1, collate_fn=collate_rows)   # num_workers stays 0

Loading happens in brim's own process, so workers of a DataLoader would only stand in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from brim.data.loader import Loader
from brim.data.pixels import normalize, processor_values
from brim.data.prepare import Prepared
from brim.errors import UsageError

IGNORED = -100
"""The label that transformers leaves out of the loss."""


class RowDataset(IterableDataset[dict[str, Any]]):
    """Packed rows of one rank, in the plan's order, from where ``load_state_dict`` put it.

    Iterates over dicts of tensors (those of ``brim.model.batch.PackedBatch``) with ``counts`` and
    ``sample_ids``, for ``epochs`` epochs.  Rank and world default to torch.distributed's.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        epochs: int = 1,
        rank: int | None = None,
        world: int | None = None,
        run_dir: Path | None = None,
    ) -> None:
        super().__init__()
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.prepared, self.epochs, self.run_dir = prepared, epochs, run_dir
        self.rank = rank if rank is not None else torch.distributed.get_rank() if distributed else 0
        self.world = (
            world if world is not None else torch.distributed.get_world_size() if distributed else 1
        )
        self._state: dict[str, Any] | None = None
        self._loader: Loader | None = None

    def __len__(self) -> int:
        """Rows of this rank in all epochs."""
        plan = self.prepared.plan
        return plan.steps(self.epochs) * plan.rows_per_step // self.world

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise UsageError(
                "brim's rows are loaded by a process of their own",
                hint="use DataLoader(..., num_workers=0)",
            )
        loader = Loader(
            self.prepared,
            rank=self.rank,
            world=self.world,
            stop=self.prepared.plan.steps(self.epochs),
            state=self._state,
            run_dir=self.run_dir,
        )
        self._loader = loader
        with loader:
            for row in loader:
                # a DataLoader may prefetch and keep: these tensors are its own
                arrays = {n: torch.from_numpy(a.copy()) for n, a in row.arrays.items()}
                fields = {**row.fields(), **arrays}
                row.release()
                self._state = loader.state()
                yield fields
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """The position after the rows given out so far: small JSON."""
        return dict(self._state) if self._state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration begins behind the row at which ``state`` was taken."""
        self._state = dict(state) or None


def collate_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One packed row as keyword arguments of transformers' Qwen3-VL model.

    ``position_ids`` is [4, 1, L]: its first row restarts in every document, by which transformers
    tells the documents of a packed row apart; it does so only without a cache of keys, which its
    models keep by default even in training, hence ``use_cache``.
    """
    if len(rows) != 1:
        raise UsageError(
            f"a batch of {len(rows)} packed rows", hint="set the batch size to 1; a row is full"
        )
    row = {name: value.numpy() if isinstance(value, torch.Tensor) else value
           for name, value in rows[0].items()}  # fmt: skip
    ids = row["input_ids"]
    labels = np.full_like(ids, IGNORED)
    labels[row["scored_rows"] + 1] = row["labels"]
    lengths = np.diff(row["cu_seqlens"])
    restarting = np.concatenate([np.arange(n) for n in lengths])
    positions = np.concatenate([restarting[None], row["position_ids"]]).astype(np.int64)
    stills, clips = len(row["patches"]), len(row["video_patches"])
    kinds = np.zeros_like(ids)
    splice = row["splice_rows"]
    kinds[splice[: stills // 4]], kinds[splice[stills // 4 :]] = 1, 2
    batch: dict[str, Any] = {
        "use_cache": False,
        "input_ids": torch.from_numpy(ids)[None],
        "labels": torch.from_numpy(labels)[None],
        "position_ids": torch.from_numpy(positions)[:, None],
        "mm_token_type_ids": torch.from_numpy(kinds)[None],
    }
    grids = _grids(row["vision_cu_seqlens"], row["vision_positions"], stills + clips)
    still_frames = int(np.searchsorted(row["vision_cu_seqlens"], stills)) if stills else 0
    if stills:
        batch["pixel_values"] = processor_values(torch.from_numpy(row["patches"]))
        batch["image_grid_thw"] = grids[:still_frames]
    if clips:
        batch["pixel_values_videos"] = normalize(torch.from_numpy(row["video_patches"]))
        batch["video_grid_thw"] = grids[still_frames:]
    return batch


def _grids(boundaries: Any, positions: Any, patches: int) -> torch.Tensor:
    """(1, rows, columns) of each frame, the padding left out: [F, 3].

    A video's temporal patches count as videos of one each, which is how the model treats them.
    """
    found = [
        (1, *(positions[start:end].max(axis=0) + 1))
        for start, end in pairwise(boundaries)
        if end <= patches
    ]
    return torch.tensor(np.array(found, np.int64).reshape(-1, 3))
