"""A step must not read a tensor's value: on a GPU each read waits for the whole queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brim.model.qwen3vl import Recompute
from brim.train.synthetic import Document, pack

# every operator whose result, or whose result's shape, depends on values
READS = {
    "_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "masked_select", "unique_dim",
    "_unique2", "_unique", "unique_consecutive", "repeat_interleave.Tensor", "equal", "is_nonzero",
    "bincount", "masked_scatter", "_assert_async",
}  # fmt: skip


# these reach the memory of a CPU tensor without an operator
DIRECT = ("tolist", "numpy", "cpu", "__array__")


class NoReads(TorchDispatchMode):
    def __enter__(self) -> NoReads:
        self.patches = pytest.MonkeyPatch()
        for name in DIRECT:
            self.patches.setattr(torch.Tensor, name, self._refuse(name))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.patches.undo()
        super().__exit__(*error)

    @staticmethod
    def _refuse(name: str) -> Callable[..., Any]:
        def refused(*_: Any, **__: Any) -> Any:
            raise AssertionError(f"the step reads a value: Tensor.{name}")

        return refused

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__.removesuffix(".default")
        if name in READS or name.split(".")[0] in READS - {"repeat_interleave"}:
            raise AssertionError(f"the step reads a value: {func}")
        if name.startswith("index") and self._has_mask(args):
            raise AssertionError(f"the step indexes with a mask: {func}")
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _has_mask(args: tuple[Any, ...]) -> bool:
        indices = [i for a in args if isinstance(a, (list, tuple)) for i in a]
        return any(isinstance(i, torch.Tensor) and i.dtype is torch.bool for i in indices)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.numpy(),
        lambda x: bool(x > 0),
        lambda x: x.nonzero(),
        lambda x: torch.ones(1)[x > 0],
        lambda x: torch.ones(1).masked_scatter(x > 0, x),
    ],
)
def test_the_guard_itself_catches_a_read(read: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(AssertionError, match="the step"), NoReads():
        read(torch.ones(1))


@pytest.mark.parametrize("kind", ["text only", "several images", "video", "mixed"])
@pytest.mark.parametrize("recompute", [0, 4], ids=["kept", "recomputed"])
def test_forward_and_backward_read_no_value(
    kind: str,
    recompute: int,
    make_pair: Callable[..., Any],
    samples: dict[str, list[Document]],
) -> None:
    model, documents = make_pair(False).ours, samples[kind]
    batch = pack(documents, sum(len(d) for d in documents) + 3, bucket=16, side=6)
    model.recompute = Recompute(text_blocks=recompute, vision_blocks=recompute)
    try:
        with NoReads():
            model(batch, 1 / batch.counts.scored).backward()
    finally:
        model.recompute = Recompute()


def test_transformers_does_read_values_so_the_guard_sees_real_models(
    make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    pair = make_pair(False)
    with pytest.raises(AssertionError, match="the step"), NoReads():
        pair.theirs(**pair.their_batch(samples["mixed"]))
