from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.train.parallel import tiny

from brim.train.adamw import AdamW, decay_groups
from brim.train.checkpoint import Checkpoints, state_tensors
from brim.train.parallel.ranks import Ranks
from brim.train.step import TrainStep

Make = Callable[[], TrainStep]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def make() -> Make:
    def step() -> TrainStep:
        model = tiny.model(torch.bfloat16).to("cuda")
        return TrainStep(model, AdamW(decay_groups(model.named_parameters(), 0.1)))

    return step


def states(step: TrainStep) -> dict[str, torch.Tensor]:
    found = state_tensors(step.model, step.optimizer, step.scale)
    return {name: tensor.clone() for name, tensor in found.items()}


def test_a_save_waits_for_no_device_and_the_updates_after_it_do_not_reach_it(
    make: Make, tmp_path: Path
) -> None:
    step, other = make(), make()
    saves = Checkpoints(tmp_path, ranks=Ranks(device=torch.device("cuda")))
    rows = [tiny.row(number).to("cuda") for number in range(4)]
    step(rows[:1], 1e-2)
    saves.prepare(step.model, step.optimizer, step.scale)
    before = states(step)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        saves.start(1, step.model, step.optimizer, step.scale, {})
        for row in rows:
            step([row], 1e-2)
        saves.progress()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    path = saves.finish()
    saves.load(path, other.model, other.optimizer, other.scale)
    assert all(torch.equal(before[name], tensor) for name, tensor in states(other).items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in states(step).items())
    saves.close()
