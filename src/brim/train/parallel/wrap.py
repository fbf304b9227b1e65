"""The model as the ranks of a run share it: alone, copied (DDP) or sharded (FSDP2, HSDP).

All three keep one promise: after the last row of a step every rank holds, for the parameters or
shards that are its own, the gradient of Σ scale · cross-entropy over the rows of all ranks,
divided by their number.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from brim.model.batch import PackedBatch
from brim.model.qwen3vl import Qwen3VL
from brim.train.config import ParallelTable
from brim.train.parallel.choose import Parallelism
from brim.train.parallel.memory import groups
from brim.train.parallel.ranks import Ranks

# renamed in torch 2.13
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


class Alone:
    """One rank with the whole model; the others differ from it where ranks meet."""

    copies = 1
    """Ranks that hold the same gradient after a step."""
    own_rows = True
    """Whether a rank may take a step in more rows than the others do: they meet after the last."""

    def __init__(self, model: Qwen3VL, ranks: Ranks | None = None) -> None:
        self.model, self.ranks = model, ranks or Ranks()

    def forward(self, row: PackedBatch, scale: float) -> torch.Tensor:
        """``scale`` · Σ cross-entropy of the row."""
        loss: torch.Tensor = self.model(row, scale)
        return loss

    def learn(self, row: PackedBatch) -> None:
        """Before the first step of a process: run ``row`` for nothing, where that teaches.

        In its first row DDP's static graph learns which parameters take part, and buckets are then
        ordered by what was seen.  A step that did so would add its gradients in an order of its
        own, and a run that starts anew in the middle would have other bits.
        """

    def row(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward pass of a row; ``last``: of the step."""
        return nullcontext()

    def clear(self, parameters: Iterable[torch.Tensor]) -> None:
        """Forget the gradients of a finished step."""
        for parameter in parameters:
            parameter.grad = None

    def settle(self) -> None:
        """After forward passes without a backward one: give back the weights that they kept."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """While entered, every rank has all weights; what is changed in a gathered one is lost."""
        yield

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of ``values`` over the ranks, in place, on the device."""
        if self.ranks.world > 1:
            dist.all_reduce(values)
        return values


class Replicated(Alone):
    """DDP: gradients are averaged in buckets while the backward pass runs."""

    def __init__(self, model: Qwen3VL, ranks: Ranks, table: ParallelTable) -> None:
        super().__init__(model, ranks)
        self.copies = ranks.world
        self._each_row = table.gradient_sync == "row"
        self.own_rows = not self._each_row
        fake = _fake(ranks)
        static = table.ddp_static_graph and not fake  # what it learns is read from tensors
        self._learnt = fake
        self.reducing = False
        """Whether the backward pass of the running row sends gradients."""
        self.ddp = DistributedDataParallel(
            model,
            bucket_cap_mb=table.ddp_bucket_cap_mb,
            gradient_as_bucket_view=True,
            init_sync=not fake,
            static_graph=static,
            **{_SYNC_BUFFERS: False},  # rotary frequencies are constants
        )

        if fake:
            self.ddp.register_comm_hook(None, lambda _, bucket: _answered(bucket))

    def forward(self, row: PackedBatch, scale: float) -> torch.Tensor:
        loss: torch.Tensor = self.ddp(row, scale)
        return loss

    def learn(self, row: PackedBatch) -> None:
        if self._learnt:
            return
        with self.row(last=True):
            self.forward(row, 0.0).backward()
        self.clear(self.model.parameters())
        self._learnt = True

    @contextmanager
    def row(self, *, last: bool) -> Iterator[None]:
        self.reducing = last or self._each_row
        with nullcontext() if self.reducing else self.ddp.no_sync():
            yield

    def clear(self, parameters: Iterable[torch.Tensor]) -> None:
        # they are views of the buckets; freed, a row would write them elsewhere and copy them there
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:  # a first step that found no memory has none
            torch._foreach_zero_(gradients)


class Sharded(Alone):
    """FSDP2: every block's weights are gathered before it runs and its gradients scattered after.

    On a mesh of two dimensions (HSDP) the shards lie along the second, and gradients are also
    averaged over the first.
    """

    own_rows = False

    def __init__(
        self,
        model: Qwen3VL,
        ranks: Ranks,
        table: ParallelTable,
        choice: Parallelism,
        mesh: DeviceMesh,
    ) -> None:
        super().__init__(model, ranks)
        spread = choice.spread
        self.copies = ranks.world // spread.shards
        self._once, self._held = spread.whole_gradients, spread.gathered
        dtype = next(model.parameters()).dtype
        policy = MixedPrecisionPolicy(
            param_dtype=dtype,
            # a model in float32 is never reduced in less
            reduce_dtype=torch.float32 if table.reduce_dtype == "float32" else dtype,
            cast_forward_inputs=False,
        )
        inner = groups(model)
        for name, module in inner.items():
            # what the root holds is used first and last: it would be gathered again at once
            gathered = spread.gathered or not name
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=not gathered)
        _prefetch(model, table.prefetch)

    def row(self, *, last: bool) -> AbstractContextManager[Any]:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last or not self._once)
        # weights change after the last row only: until then they may stay
        self.model.set_reshard_after_backward(last or not self._held)
        return nullcontext()

    @contextmanager
    def whole(self) -> Iterator[None]:
        for module in _sharded(groups(self.model).values()):
            module.unshard()
        yield
        self.settle()

    def settle(self) -> None:
        for module in _sharded(groups(self.model).values()):
            module.reshard()


def wrap(
    model: Qwen3VL,
    ranks: Ranks,
    table: ParallelTable,
    choice: Parallelism,
    mesh: DeviceMesh | None = None,
) -> Alone:
    """The model as ``choice`` says.  Sharding replaces its parameters, so optimizers come later.

    ``mesh``: of sharded ranks, if it exists already.
    """
    if choice.data.value == "ddp":
        return Replicated(model, ranks, table)
    if choice.sharded:
        return Sharded(model, ranks, table, choice, mesh or mesh_of(ranks, choice))
    return Alone(model, ranks)


def _fake(ranks: Ranks) -> bool:
    """Whether nobody answers: weights need not be the same then."""
    return ranks.together and dist.get_backend(ranks.host) == "fake"


def _answered(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP waits for a result, which a fake group never gives."""
    dist.all_reduce(bucket.buffer())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def mesh_of(ranks: Ranks, choice: Parallelism) -> DeviceMesh:
    """The mesh along which ``choice`` shards."""
    kind, shards = ranks.device.type, choice.spread.shards
    if choice.data.value == "hsdp":
        shape = (ranks.world // shards, shards)
        return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(kind, (ranks.world,), mesh_dim_names=("shard",))


def _prefetch(model: Qwen3VL, ahead: int) -> None:
    """Gather ``ahead`` groups before their turn in the forward pass, tower and text apart, since a
    row without pictures has no tower.  In the backward pass FSDP2 does so by the order it saw."""
    for chain in (tower_order(model), list(model.blocks)):
        for place, module in enumerate(chain):
            assert isinstance(module, FSDPModule)
            module.set_modules_to_forward_prefetch(_sharded(chain[place + 1 : place + 1 + ahead]))


def tower_order(model: Qwen3VL) -> list[nn.Module]:
    """The tower's groups as the forward pass reaches them."""
    tower = model.visual
    found: list[nn.Module] = [tower]
    taps = iter(tower.deepstack)
    for index, block in enumerate(tower.blocks):
        found.append(block)
        if index in tower.config.deepstack:
            found.append(next(taps))
    return [*found, tower.merger]


def _sharded(modules: Iterable[nn.Module]) -> list[FSDPModule]:
    return [m for m in modules if isinstance(m, FSDPModule)]
