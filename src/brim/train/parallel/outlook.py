"""A run before it is run: memory, traffic and time of a step on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brim.data.plan import Plan
from brim.data.prepare import Prepared
from brim.data.stats import Imbalance
from brim.hardware.gpus import Gpu, peak_flops
from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.flops import Flops
from brim.model.kernels import Choice, choose
from brim.model.memory import RowShape
from brim.model.qwen3vl import Qwen3VL
from brim.model.speed import Way, predict
from brim.train.config import Config
from brim.train.device_plan import empty_model, named_gpu, planned_shape
from brim.train.fitting import Option, options, pick
from brim.train.parallel.choose import World
from brim.train.parallel.fit import USABLE
from brim.train.parallel.forecast import (
    NETWORK_GB_S,
    Cluster,
    Forecast,
    Work,
    replicated,
    sharded,
)
from brim.train.parallel.memory import Spread, group_sizes, groups
from brim.train.parallel.traffic import Traffic, buckets, of_step
from brim.train.session import largest_row

ASSUMED = "H200 SXM 141GB"
"""What is looked at where no GPU is here and none is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """Everything of one number of ranks; times are predictions."""

    world: int
    rows: int
    """Of a rank in one step."""
    option: Choice[Option]
    traffic: list[Traffic]
    forecast: Forecast | None
    """None where the GPU's peak is not known."""
    waiting: float
    """Share of the step that ranks wait for the one with most to do."""
    tokens: float
    """Of all ranks in a step."""
    flops: float
    """Useful ones of all ranks in a step."""
    peak: float | None
    """FLOP/s of a device."""

    @property
    def step_s(self) -> float | None:
        """Of one optimizer step, waiting for the slowest rank included."""
        if self.forecast is None:
            return None
        return self.forecast.step + self.waiting * self.forecast.compute

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.step_s if self.step_s else None

    @property
    def mfu(self) -> float | None:
        if not self.step_s or not self.peak:
            return None
        return self.flops / self.step_s / self.peak / self.world


def mean_counts(plan: Plan) -> RowCounts:
    """What a row of the first epoch holds on average."""
    samples, rows = plan.samples, plan.epoch(0).rows

    def mean(values: np.ndarray) -> int:
        return round(float(rows.sums(values).mean()))

    return RowCounts(
        tokens=mean(samples.length),
        scored=mean(samples.scored),
        patches=mean(samples.patches),
        images=mean(samples.images),
        frames=mean(samples.images),
        documents=mean(np.ones_like(samples.length)),
        token_squares=mean(samples.length**2),
        patch_squares=mean(samples.patch_squares),
        longest_document=int(samples.length.max(initial=0)),
        longest_frame=0,
    )


@dataclass(frozen=True, slots=True)
class Prospect:
    """A configuration on a kind of GPU; :meth:`on` looks at a number of ranks."""

    config: Config
    model: Qwen3VL
    """Without memory behind it."""
    gpu: Gpu
    memory: int
    """Bytes of a device."""
    attention: str
    row: RowShape
    """The largest of the first epoch."""
    mean: RowCounts
    """The usual one."""
    links: Cluster

    def on(self, world: int, rows: int, balance: Imbalance) -> Outlook:
        """``rows``: of a rank in a step; ``balance``: the plan's, on so many ranks.

        Raises ConfigError for a parallelism that so many ranks cannot have.
        """
        on_a_host = min(world, self.links.on_a_host)
        room = int(self.memory * USABLE)
        where = World(ranks=world, on_a_host=on_a_host, rows=rows, room=room)
        option = pick(options(self.config, self.model, self.row, where, together=True))
        choice = option.value.parallelism
        bucket = self.config.parallel.ddp_bucket_cap_mb
        useful = flops.step(self.model.config, self.mean, self.config.trained).total
        return Outlook(
            world=world,
            rows=rows,
            option=option,
            traffic=of_step(
                self.model,
                choice,
                world,
                rows,
                bucket_mb=bucket,
                each_row=self.config.parallel.gradient_sync == "row",
            ),
            forecast=self._forecast(option.value, world, rows),
            # copies meet once a step, shards at every block
            waiting=balance.micro_step if choice.sharded else balance.step,
            tokens=float(self.mean.tokens * rows * world),
            flops=useful * rows * world,
            peak=peak_flops(self.gpu, _dtype(self.model)),
        )

    def _forecast(self, option: Option, world: int, rows: int) -> Forecast | None:
        """None where the GPU's peak is not known."""
        spread = option.parallelism.spread
        learnt = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        row, updated = self._seconds(option, 0), self._seconds(option, learnt // spread.shards)
        if row is None or updated is None:
            return None
        update = updated - row
        work = self._work(option, world, row)
        if option.parallelism.sharded:
            return sharded(
                work,
                rows,
                ahead=self.config.parallel.prefetch,
                once=spread.whole_gradients or rows == 1,
                held=spread.gathered,
                update=update,
            )
        if world == 1:
            return replicated(work, rows, [], update=update)
        sizes = buckets(self.model, self.config.parallel.ddp_bucket_cap_mb)
        filled = np.cumsum(sizes) / sum(sizes)
        seconds = [self.links.seconds("all-reduce", world, size) for size in sizes]
        leaving = list(zip(filled.tolist(), seconds, strict=True))
        return replicated(work, rows, leaving, update=update)

    def _seconds(self, option: Option, learnt: int) -> float | None:
        """Of one row and an update of ``learnt`` parameters."""
        way = Way(
            dtype=_dtype(self.model),
            attention=self.attention,
            fp8=bool(self.config.model.fp8),
            states=option.states,
            recompute=option.recompute,
        )
        trained, shape = self.config.trained, self.model.config
        found = predict(shape, self.mean, self.gpu, way, trained=trained, learnt=learnt)
        return found.total if found else None

    def _work(self, option: Option, world: int, seconds: float) -> list[Work]:
        """The groups in forward order, the root's weights first, its head last; a row takes
        ``seconds``, which each group has by its share of the FLOPs."""
        model, spread = self.model, option.parallelism.spread
        once = _by_kind(model.config, flops.forward(model.config, self.mean, self.config.trained))
        both = _by_kind(model.config, flops.step(model.config, self.mean, self.config.trained))
        again = {f"visual.blocks.{i}" for i in range(option.recompute.vision_blocks)}
        again |= {f"blocks.{i}" for i in range(option.recompute.text_blocks)}
        names = [name for name in groups(model) if name not in ("", "visual")]
        order = ["visual", *names, ""]
        twice = sum(once[_kind(name)] for name in order if name in again)
        rate = (sum(both[_kind(name)] for name in order) + twice) / seconds
        weights, learnt = group_sizes(model), group_sizes(model, trained=True)

        def one(name: str) -> Work:
            forward = once[_kind(name)]
            backward = both[_kind(name)] - forward + (forward if name in again else 0.0)
            gather, reduce = _sent(spread, weights[name], learnt[name], self.links, world, model)
            kept = spread.gathered or not name
            return Work(
                forward=forward / rate, backward=backward / rate, gather=gather, reduce=reduce,
                kept=kept,
            )  # fmt: skip

        *inner, root = map(one, order)
        start = Work(forward=0.0, backward=0.0, gather=root.gather, reduce=root.reduce, kept=True)
        return [start, *inner, Work(forward=root.forward, backward=root.backward)]


def prospect(
    config: Config,
    prepared: Prepared,
    gpu: str = "",
    *,
    on_a_host: int = 8,
    network_gb_s: float = NETWORK_GB_S,
) -> Prospect:
    """``gpu``: a name in brim's table; empty: the one here, or else :data:`ASSUMED`."""
    device, memory = named_gpu(gpu)
    if device is None or memory is None:
        device, memory = named_gpu(ASSUMED)
    assert device is not None and memory is not None
    choices = choose(
        device.capability,
        frozenset({"flash-attn-4", "triton"}),
        dtype=config.model.dtype or None,
        attention=config.model.attention or None,
        compile=config.model.compiled,
    )
    return Prospect(
        config=config,
        model=empty_model(config, planned_shape(config, prepared), choices),
        gpu=device,
        memory=memory,
        attention=choices.attention.value,
        row=largest_row(prepared),
        mean=mean_counts(prepared.plan),
        links=Cluster.of_gpu(device, on_a_host=on_a_host, network_gb_s=network_gb_s),
    )


def _dtype(model: Qwen3VL) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")


def _sent(
    spread: Spread, weights: int, learnt: int, cluster: Cluster, world: int, model: Qwen3VL
) -> tuple[float, float]:
    """Seconds to gather a group's weights and to reduce its gradients."""
    if spread.shards == 1:
        return 0.0, 0.0
    gather = cluster.seconds("all-gather", spread.shards, weights)
    if not learnt:
        return gather, 0.0
    sums = learnt / next(model.parameters()).element_size() * spread.reduce_bytes
    reduce = cluster.seconds("reduce-scatter", spread.shards, sums)
    copies, shard = world // spread.shards, sums / spread.shards
    if copies > 1:
        # another link, which carries one group's while the first reduces the next one's
        reduce = max(reduce, cluster.seconds("all-reduce", copies, shard, spread_out=True))
    return gather, reduce


def _kind(group: str) -> str:
    if group.startswith("visual.blocks."):
        return "tower"
    if group.startswith("visual."):
        return "merger"
    return {"": "head", "visual": "patches"}.get(group, "text")


def _by_kind(shape: ModelConfig, of: Flops) -> dict[str, float]:
    """FLOPs of one group of each kind."""
    return {
        "head": of.head,
        "patches": of.patch_embedding,
        "tower": (of.tower_linear + of.tower_attention) / shape.vision.depth,
        "merger": of.mergers / (1 + len(shape.vision.deepstack)),
        "text": (of.text_linear + of.text_attention + of.lora) / shape.text.layers,
    }
