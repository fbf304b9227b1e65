"""Callbacks for trainers: a real Hugging Face Trainer, and Lightning where it is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forks import TRANSFORMERS, Forks

from brim.api import session
from brim.errors import InputError
from brim.record.run import read_run

HF = """
import torch
from transformers import Trainer, TrainingArguments
from brim.api.hf_trainer import BrimCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, y):
        return {"loss": (self.layer(x) - y).square().mean()}

data = [{"x": torch.randn(4), "y": torch.randn(1)} for _ in range(64)]
args = TrainingArguments("out", max_steps=20, per_device_train_batch_size=4, report_to=[],
                         use_cpu=True, disable_tqdm=True, save_strategy="no")
callback = BrimCallback("run")
Trainer(Model(), args, train_dataset=data, callbacks=[callback]).train()
print(callback.seen.diagnosis.frameworks[0])
"""


def test_the_hugging_face_callback_measures_a_training_and_prints_the_verdict(
    tmp_path: Path, forks: Callable[..., Forks]
) -> None:
    (tmp_path / "job.py").write_text(HF)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    (done,) = forks(*TRANSFORMERS).run([str(tmp_path / "job.py")], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "hf-trainer"
    assert "records in run" in done.stderr
    steps = read_run(tmp_path / "run").processes[0].steps
    assert sum(s.clock.startswith("opt") for s in steps) == 20


LIGHTNING = """
import torch
from lightning.pytorch import LightningModule, Trainer
from brim.api.lightning import BrimCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

loader = torch.utils.data.DataLoader(torch.randn(80, 4), batch_size=4)
callback = BrimCallback("run")
Trainer(max_steps=20, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=[callback]).fit(Model(), loader)
print(callback.seen.diagnosis.frameworks[0])
"""


@pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"
)
def test_the_lightning_callback_measures_a_fit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHTNING], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "lightning"
    steps = read_run(tmp_path / "run").processes[0].steps
    assert sum(s.clock.startswith("opt") for s in steps) == 20


def test_a_callback_derives_from_the_package_that_the_program_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = {}
    for name in ("one", "two"):
        modules[name] = types.ModuleType(name)
        modules[name].Callback = type(name, (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "two", modules["two"])
    assert session.base("Callback", "one", "two").__name__ == "two"


def test_a_trainer_that_is_not_installed_is_named_with_the_way_to_install_it() -> None:
    with pytest.raises(InputError, match="no_such_trainer is not installed") as caught:
        session.base("Callback", "no_such_trainer.core", "nor_this")
    assert caught.value.hint == "pip install no_such_trainer"
