"""An ordinary script with transformers' Trainer, changed from outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.observe.inject.cured import Plan, RunCured

from _brim_hooks import cure_trainer  # isort: skip

TRAINER = """
import json, sys, torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)
    def forward(self, x, y):
        return {"loss": (self.inner(x) - y).square().mean()}

seen = {"sizes": [], "losses": [], "modules": 0}
class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            seen["losses"].append(logs["loss"])

def main():
    torch.manual_seed(0)
    data = [{"x": torch.randn(8), "y": torch.randn(1)} for _ in range(64)]
    model = Model()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen["sizes"].append(len(kwargs["x"])), with_kwargs=True)
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=8,
        logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        learning_rate=0.05, optim="adamw_torch")
    Trainer(model, arguments, train_dataset=data, callbacks=[Watch()]).train()
    print(json.dumps(seen))

main()
"""


def test_a_trainers_micro_batch_grows_at_the_same_batch_and_loss_and_its_loader_gets_workers(
    cured: RunCured,
) -> None:
    plain = cured(TRAINER, {})
    settings = {"batch.micro": 4, "loader.num_workers": 1, "optimizer.fused": True}
    found = cured(TRAINER, settings)
    assert found.code == 0, found.stderr
    assert (plain.said["sizes"], found.said["sizes"]) == ([2] * 32, [4] * 16)
    assert set(found.states().values()) == {"applied"}
    assert found.knobs["batch.micro"].was == 2
    assert found.knobs["batch.micro"].reason == "gradient_accumulation_steps 2"
    assert found.losses == pytest.approx(plain.losses, rel=1e-3)  # it logs four digits


@pytest.mark.parametrize(
    ("batch", "steps", "value", "changed", "state"),
    [
        (2, 8, 8, (8, 2), "applied"),
        (8, 1, 2, (2, 4), "applied"),  # smaller, when memory asks for it
        (2, 8, 2, (2, 8), "unavailable"),
        (2, 8, 3, (2, 8), "unavailable"),  # 16 samples are no multiple of 3
        (2, 8, 32, (2, 8), "unavailable"),
    ],
)
def test_samples_per_step_stay_what_they_are(
    plan: Plan, batch: int, steps: int, value: int, changed: tuple[int, int], state: str
) -> None:
    arguments = SimpleNamespace(
        per_device_train_batch_size=batch, gradient_accumulation_steps=steps
    )
    cure_trainer.MicroBatch({"batch.micro": value}).change(arguments)
    found = (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps)
    assert found == changed
    assert plan.states["batch.micro"][0] == state


def test_a_trainer_that_looks_for_the_batch_itself_is_left_alone(plan: Plan) -> None:
    arguments: Any = SimpleNamespace(
        per_device_train_batch_size=2, gradient_accumulation_steps=4, auto_find_batch_size=True
    )
    cure_trainer.MicroBatch({"batch.micro": 4}).change(arguments)
    assert arguments.per_device_train_batch_size == 2
    assert "auto_find_batch_size" in plan.states["batch.micro"][1]
