from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from brim.train.adamw import AdamW
from brim.train.readback import Readback
from brim.train.step import LossScale, TrainStep
from brim.train.synthetic import Tokens, document, pack


def documents(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    sizes = (([(4, 4)], 6), ([], 2), ([(2, 4)], 9))
    tokens = Tokens(60, 61, 62, 63)
    return [
        document(rng, grids, text=5, answer=n, vocabulary=20, tokens=tokens) for grids, n in sizes
    ]


def model(make_trainer: Callable[..., Any], output: str) -> Any:
    return make_trainer(1, output).model


def test_a_step_over_several_rows_is_the_mean_over_all_their_tokens(
    make_trainer: Callable[..., Any],
) -> None:
    parts = documents(0)
    together = [pack(parts, 48, side=6)]
    apart = [pack(parts[:2], 40, side=6), pack(parts[2:], 24, side=6)]
    results = []
    for name, rows in (("a", together), ("b", apart)):
        own = model(make_trainer, name)
        step = TrainStep(own, AdamW(own.parameters(), lr=1e-2))
        outcome = step(rows, 1e-2)
        results.append((outcome, [p.detach().clone() for p in own.parameters()]))
    (a, weights_a), (b, weights_b) = results
    assert a.loss.item() == pytest.approx(b.loss.item(), rel=1e-6)
    assert a.norm.item() == pytest.approx(b.norm.item(), rel=1e-5)
    assert a.counts.scored == b.counts.scored == 17
    assert a.counts.token_squares == b.counts.token_squares
    for x, y in zip(weights_a, weights_b, strict=True):
        # Adam's first step is the sign of the gradient, so tiny gradients may flip
        assert (x - y).abs().mean() < 1e-6


def test_loss_scaling_changes_neither_loss_nor_norm_nor_update(
    make_trainer: Callable[..., Any],
) -> None:
    outcomes = []
    for name, scaling in (("a", False), ("b", True)):
        own = model(make_trainer, name)
        step = TrainStep(own, AdamW(own.parameters(), lr=1e-2), scaling=scaling)
        outcomes.append(step([pack(documents(0), 48, side=6)], 1e-2))
    assert outcomes[0].loss.item() == outcomes[1].loss.item()
    assert outcomes[0].norm.item() == pytest.approx(outcomes[1].norm.item(), rel=1e-5)


def test_the_scale_halves_on_overflow_and_doubles_after_2000_good_steps() -> None:
    scale = LossScale(torch.device("cpu"), enabled=True)
    scale.interval = 3
    seen = []
    for finite in (1, 1, 1, 0, 1, 1, 1, 1):
        scale.update(torch.tensor(float(finite)))
        seen.append(scale.scale.item() / 2**16)
    assert seen == [1, 1, 2, 1, 1, 1, 2, 2]
    assert LossScale(torch.device("cpu"), enabled=True).interval == 2000


def test_the_scale_survives_saving() -> None:
    scale, again = (LossScale(torch.device("cpu"), enabled=True) for _ in range(2))
    scale.update(torch.tensor(0.0))
    scale.update(torch.tensor(1.0))
    again.load_tensors(scale.tensors())
    assert again.scale.item() == 2**15
    assert again.good.item() == 1


def test_results_come_back_in_order_with_their_tags() -> None:
    readback: Readback[str] = Readback()
    first = readback.push("a", torch.tensor(1.0), torch.tensor(2.0))
    second = readback.push("b", torch.tensor(3.0), torch.tensor(4.0))
    assert [*first, *second, *readback.drain()] == [("a", [1.0, 2.0]), ("b", [3.0, 4.0])]


def test_the_host_runs_ahead_by_no_more_than_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    readback: Readback[int] = Readback(depth=2)
    monkeypatch.setattr(readback, "_arrived", lambda: False)  # a device that is always late
    arrived = [tag for n in range(5) for tag, _ in readback.push(n, torch.tensor(0.0))]
    assert arrived == [0, 1, 2]
    assert [tag for tag, _ in readback.drain()] == [3, 4]


def test_a_float16_model_with_scaled_loss_learns_like_float32(
    make_trainer: Callable[..., Any],
) -> None:
    rows = [[pack(documents(seed % 3), 48, side=6)] for seed in range(30)]
    ends = []
    for name, dtype in (("full", torch.float32), ("half", torch.float16)):
        own = make_trainer(1, name, dtype).model
        step = TrainStep(own, AdamW(own.parameters()), scaling=dtype is torch.float16)
        ends.append([step(batch, 3e-3).loss.item() for batch in rows][-1])
    assert ends[1] == pytest.approx(ends[0], rel=0.01)
    assert ends[0] < 3.7


def test_an_overflow_in_float16_skips_the_update_and_halves_the_scale(
    make_trainer: Callable[..., Any],
) -> None:
    own = make_trainer(1, "half", torch.float16).model
    step = TrainStep(own, AdamW(own.parameters()), scaling=True)
    step.scale.scale.fill_(2.0**40)
    before = [p.detach().clone() for p in own.parameters()]
    outcome = step([pack(documents(0), 48, side=6)], 1e-2)
    assert not torch.isfinite(outcome.norm)
    assert torch.isfinite(outcome.loss)
    assert step.scale.scale.item() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), before, strict=True))
    for _ in range(30):
        step([pack(documents(0), 48, side=6)], 1e-2)
    assert all(not torch.equal(a, b) for a, b in zip(own.parameters(), before, strict=True))
