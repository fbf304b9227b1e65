"""What the job's Python has installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from brim.tune.apply.packages import lacking
from brim.tune.knobs import KNOBS


def _python(folder: Path, *installed: str) -> str:
    """A Python that has these packages and no others."""
    site = folder / "site"
    for name in installed:
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_each_missing_package_is_named_with_the_setting_that_needs_it(tmp_path: Path) -> None:
    assert lacking([_python(tmp_path, "flash-attn-4"), "train.py"]) == {
        ("liger", True): "the package liger-kernel is not installed",
        ("attention.implementation", "flash_attention_2"):
            "the package flash-attn is not installed",
        ("attention.implementation", "flash_attention_3"):
            "the package flash-attn-3 is not installed",
    }  # fmt: skip


def test_the_kernels_package_stands_in_for_attention_but_not_for_liger(tmp_path: Path) -> None:
    assert set(lacking([_python(tmp_path, "kernels"), "train.py"])) == {("liger", True)}


@pytest.mark.parametrize("command", [[], ["no-such-program"], ["sh", "train.sh"]])
def test_a_command_that_names_no_python_is_taken_to_have_everything(command: list[str]) -> None:
    assert lacking(command) == {}


@pytest.mark.parametrize("text", ["exit 3", "echo no json", "echo '[1'"])
def test_a_python_that_does_not_answer_is_taken_to_have_everything(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    assert lacking([str(path)]) == {}


def test_every_value_is_one_that_its_knob_takes(tmp_path: Path) -> None:
    for id, value in lacking([_python(tmp_path)]):
        assert KNOBS[id].admits(value)
