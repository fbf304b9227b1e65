from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.train import ranked

from brim.cli.main import main
from brim.model.weights import published
from brim.train.parallel.ranks import Ranks


def config(folder: Path) -> str:
    path = folder / "sft.toml"
    path.write_text(f'output_dir = "{folder}"\n[model]\nrandom = "4B"\n')
    return str(path)


def test_the_newest_checkpoint_of_a_run_becomes_a_model(tmp_path: Path) -> None:
    trainer = ranked.trainer(Ranks(), tmp_path, steps=3, rows=2, save_steps=1)
    assert trainer.run()
    assert main(["train", config(tmp_path), "--export", str(tmp_path / "model")]) == 0
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert all((found[name] == tensor).all() for name, tensor in published(trainer.model))


def test_without_a_whole_checkpoint_the_error_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", config(tmp_path), "--export", str(tmp_path / "model")]) == 2
    assert f"{tmp_path}/checkpoints holds no whole checkpoint" in capsys.readouterr().err
