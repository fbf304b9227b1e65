"""``brim tune sft.toml``: brim's own trainer, measured by the records that it writes itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.test_session import model_folder, write_config

__all__ = ["model_folder"]  # a fixture


@pytest.mark.slow
def test_a_configuration_is_run_beside_its_own_output_and_leaves_no_checkpoint(
    tmp_path: Path, model_folder: Path
) -> None:
    config = write_config(tmp_path, model_folder)
    text = config.read_text().replace("max_steps = 3", "num_train_epochs = 50")
    config.write_text(text)
    # one run is always made, and a second one does not fit
    done = subprocess.run(
        [sys.executable, "-m", "brim", "tune", "--budget", "1s", "--steps", "10",
         "--json", "ladder.json", "--dir", "tune", "sft.toml"],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ladder = json.loads((tmp_path / "ladder.json").read_text())
    assert (ladder["ended"], ladder["runs"]) == ("budget", 1)
    assert ladder["before"]["step_s"] > 0
    assert ladder["before"]["samples_per_s"] > 0
    assert config.read_text() == text
    assert not (tmp_path / "out").exists(), "the run's own output is not touched"
    assert not list((tmp_path / "tune").rglob("checkpoints"))
    (log,) = (tmp_path / "tune" / "trials.jsonl").read_text().splitlines()
    outcome = json.loads(log)["outcome"]
    assert len(outcome["steps"]) >= 10
    assert len(outcome["losses"]) >= 20, "the trainer records its own losses"
