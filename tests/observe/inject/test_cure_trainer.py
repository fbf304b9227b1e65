"""An ordinary script with transformers' Trainer, changed from outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.observe.inject.cured import TINY_QWEN, Plan, RunCured

from _brim_hooks import cure_trainer  # isort: skip

TRAINER = (
    TINY_QWEN
    + """
import json
from transformers import Trainer, TrainerCallback, TrainingArguments

seen = {"sizes": [], "losses": []}
class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            seen["losses"].append(logs["loss"])

def main():
    torch.manual_seed(0)
    data, model = [sample() for _ in range(64)], make_model()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen["sizes"].append(len(kwargs["input_ids"])),
        with_kwargs=True)
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=6,
        logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        learning_rate=0.05, optim="adamw_torch", gradient_checkpointing=True)
    Trainer(model, arguments, train_dataset=data, data_collator=collate,
            callbacks=[Watch()]).train()
    print(json.dumps(seen))

main()
"""
)


def test_an_ordinary_qwen3_vl_script_is_changed_in_eight_ways_and_has_the_same_losses(
    cured: RunCured,
) -> None:
    """Its arguments are in its code; 8 samples a step, in micro-batches of 4 instead of 2."""
    plain = cured(TRAINER, {})
    settings = {
        "batch.micro": 4, "recompute": "none", "attention.implementation": "sdpa",
        "patch_embedding.matmul": True, "loader.num_workers": 1,
        "loader.persistent_workers": True, "optimizer.fused": True, "gc.freeze": True,
    }  # fmt: skip
    found = cured(TRAINER, settings)
    assert found.code == 0, found.stderr
    assert (plain.said["sizes"], found.said["sizes"]) == ([2] * 24, [4] * 12)
    assert found.states() == dict.fromkeys(settings, "applied")
    assert found.knobs["batch.micro"].was == 2
    assert found.knobs["batch.micro"].reason == "gradient_accumulation_steps 2"
    assert found.losses == pytest.approx(plain.losses, rel=1e-3)


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
