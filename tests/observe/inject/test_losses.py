"""The loss of each step, kept without waiting and read when measuring is over."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from brim.record.lines import read_lines
from brim.record.losses import read_losses
from brim.record.steps import read_process

Hooked = Callable[..., subprocess.CompletedProcess[str]]

JOB = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(40, 4, 8), torch.randn(40, 4, 1)
losses = []
for n in range({steps}):
    step = 0.0
    for half in (0, 2):
        loss = (model(x[n, half:half + 2]) - y[n, half:half + 2]).square().mean() / 2
        if n == {bad}:
            loss = loss * float("nan")
        loss.backward()
        step += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(step)
print(losses)
"""


def _run(hooked: Hooked, tmp_path: Path, *, bad: int = -1, losses: bool = True) -> list[float]:
    options = json.dumps({"steps": 10, "warmup": 0, "least_s": 0, "losses": losses})
    done = hooked(JOB.format(steps=30, bad=bad), BRIM_OPTIONS=options)
    assert done.returncode == 0, done.stderr
    return list(eval(done.stdout, {"nan": float("nan")}))


def _recorded(tmp_path: Path) -> dict[int, float]:
    (path,) = (tmp_path / "runs").glob("steps.*.jsonl")
    process = read_process(path)
    assert process is not None
    return read_losses(tmp_path / "runs", process)


def test_the_loss_of_a_step_is_the_sum_over_its_micro_batches(
    hooked: Hooked, tmp_path: Path
) -> None:
    printed = _run(hooked, tmp_path)
    recorded = _recorded(tmp_path)
    # The first backward passes tick by themselves until the optimizer gives the rhythm.
    tail = list(recorded.values())[-8:]
    at = next(i for i in range(30) if printed[i] == pytest.approx(tail[0], rel=1e-6))
    assert tail == pytest.approx(printed[at : at + 8], rel=1e-6)


def test_a_loss_that_is_not_finite_is_recorded_as_such(hooked: Hooked, tmp_path: Path) -> None:
    _run(hooked, tmp_path, bad=5)
    recorded = list(_recorded(tmp_path).values())
    assert any(value != value for value in recorded)


def test_no_loss_is_recorded_unless_it_is_asked_for(hooked: Hooked, tmp_path: Path) -> None:
    _run(hooked, tmp_path, losses=False)
    assert not list((tmp_path / "runs").glob("losses.*"))
    assert _recorded(tmp_path) == {}


def test_what_is_no_single_number_is_no_loss(recorder: object, tmp_path: Path) -> None:
    from _brim_hooks import losses
    from _brim_hooks import recorder as _r

    rec = _r.recorder()
    assert rec is not None
    losses.keep(rec, (torch.ones(3),))
    losses.keep(rec, ())
    losses.keep(rec, (torch.tensor(2.5),))
    losses.keep(rec, ([torch.tensor(0.5)],))
    losses.write(_r.Appender(f"losses.rank0.{os.getpid()}.jsonl"))
    (path,) = tmp_path.glob("losses.*")
    (line,) = [json.loads(line) for _, line in read_lines(path)]
    assert line == {"n": 0, "loss": 3.0}
