"""One rank of many, without the others and without a device.

torch's fake process group answers every collective at once and moves nothing; fake tensors have
shapes and no memory.  So one process runs a whole optimizer step of rank 0 of any number of ranks
through the wrapping, hooks and optimizer of a real one, and what it would have sent is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from brim.errors import BrimError
from brim.model.batch import MERGE, PackedBatch, RowCounts
from brim.model.config import ModelConfig
from brim.model.memory import RowShape
from brim.model.qwen3vl import Kernels, Qwen3VL
from brim.train.adamw import AdamW
from brim.train.config import ParallelTable
from brim.train.parallel.choose import Parallelism
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.shards import local
from brim.train.parallel.traffic import Count, Traffic, buckets
from brim.train.parallel.wrap import mesh_of, wrap
from brim.train.step import TrainStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    """What rank 0 held and sent in one step."""

    weights: int
    """Bytes of its parameters or shards."""
    gradients: int
    states: int
    traffic: list[Traffic]


@contextmanager
def fake_ranks(world: int, on_a_host: int) -> Iterator[Ranks]:
    """Rank 0 of ``world``; every collective returns at once and moves nothing."""
    if dist.is_initialized():
        raise BrimError("a rehearsal needs a process that has joined no ranks")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield Ranks(world=world, local_world=on_a_host, host=dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def rehearse(
    config: ModelConfig,
    dtype: torch.dtype,
    prepare: Callable[[Qwen3VL], None],
    optimize: Callable[[Qwen3VL], AdamW],
    row: RowShape,
    choice: Parallelism,
    *,
    table: ParallelTable,
    world: int,
    on_a_host: int,
    rows: int,
) -> Rehearsal:
    """One step of ``rows`` rows on rank 0.

    ``prepare`` freezes what a run freezes; ``optimize`` makes its optimizer once it is wrapped.
    DDP sends its first step in one bucket and cuts it only then, so its calls are from sizes.
    """
    with fake_ranks(world, on_a_host) as ranks, ExitStack() as fake:
        mesh = mesh_of(ranks, choice) if choice.sharded else None  # of real numbers
        fake.enter_context(FakeTensorMode())
        model = _model(config, dtype)
        prepare(model)
        cut = 1 + len(buckets(model, table.ddp_bucket_cap_mb)) if choice.data.value == "ddp" else 0
        parallel = wrap(model, ranks, table, choice, mesh)
        optimizer = optimize(model)
        step = TrainStep(model, optimizer, parallel=parallel)
        batch = blank_row(row)
        with Count() as seen:
            step([batch] * rows, 1e-5)
        learnt = [p for p in model.parameters() if p.requires_grad]
        return Rehearsal(
            weights=sum(map(_bytes, model.parameters())),
            gradients=sum(map(_bytes, learnt)),
            states=sum(_bytes(t) for p in learnt for t in optimizer.state[p].values()),
            traffic=[replace(t, calls=cut) if cut and t.calls == 2 else t for t in seen.traffic()],
        )


def _model(config: ModelConfig, dtype: torch.dtype) -> Qwen3VL:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # fake parameters cannot be converted later
    try:
        return Qwen3VL(config, SHAPES)
    finally:
        torch.set_default_dtype(before)


def _bytes(tensor: torch.Tensor) -> int:
    part = local(tensor)
    return part.numel() * part.element_size()


def blank_row(row: RowShape) -> PackedBatch:
    """Tensors of a row's sizes, with nothing in them."""
    visual = row.vision_rows // MERGE**2
    ints = {"dtype": torch.int64}
    return PackedBatch(
        input_ids=torch.empty(row.tokens, **ints),
        position_ids=torch.empty(3, row.tokens, dtype=torch.int32),
        cu_seqlens=torch.empty(2, dtype=torch.int32),
        scored_rows=torch.empty(row.scored, **ints),
        labels=torch.empty(row.scored, **ints),
        patches=torch.empty(row.vision_rows, 768, dtype=torch.uint8),
        video_patches=torch.empty(0, 1536, dtype=torch.uint8),
        vision_cu_seqlens=torch.empty(2, dtype=torch.int32),
        vision_positions=torch.empty(row.vision_rows, 2, dtype=torch.int32),
        vision_interp_indices=torch.empty(row.vision_rows, 4, **ints),
        vision_interp_weights=torch.empty(row.vision_rows, 4),
        splice_rows=torch.empty(visual, **ints),
        counts=RowCounts(
            tokens=row.tokens, scored=row.scored, patches=row.vision_rows, images=1, frames=1,
            documents=1, token_squares=row.tokens**2, patch_squares=row.vision_rows**2,
            longest_document=row.tokens, longest_frame=row.vision_rows,
        ),
    )  # fmt: skip


def _attention_shapes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> torch.Tensor:
    """The attention's shape and gradients' way; with fake tensors nothing is computed anyway."""
    return q + (k + v).mean(dim=1, keepdim=True)


SHAPES = Kernels(text_attention=_attention_shapes, vision_attention=_attention_shapes)
"""Kernels that never read a value."""
