"""Flat YAML, changed as text; PyYAML is the reference for what it then means."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml as reference
from hypothesis import given
from hypothesis import strategies as st

from brim.tune.apply.yaml import diff, with_values, yaml_value

TEXT = """\
### model
model_name_or_path: Qwen/Qwen3-VL-4B-Instruct   # the small one
bf16: true
dataloader_num_workers: 4
deepspeed: null
quoted: "8"
nested:
  bf16: false
learning_rate: 1.0e-5
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", "true"),
        ("dataloader_num_workers", "4"),
        ("model_name_or_path", "Qwen/Qwen3-VL-4B-Instruct"),
        ("quoted", "8"),
        ("deepspeed", None),
        ("nested", None),
        ("dataloader", None),
    ],
)
def test_scalars_of_the_first_level_are_read(name: str, value: str | None) -> None:
    assert yaml_value(TEXT, name) == value


def test_only_the_value_changes_and_new_keys_come_last() -> None:
    after = with_values(TEXT, {"model_name_or_path": "m", "bf16": "false", "gc": "1"})
    assert "model_name_or_path: m   # the small one\n" in after
    assert reference.safe_load(after) == {
        **reference.safe_load(TEXT), "model_name_or_path": "m", "bf16": False, "gc": 1,
    }  # fmt: skip
    assert after.endswith("learning_rate: 1.0e-5\ngc: 1\n")


def test_a_key_can_be_set_to_null_and_a_null_to_a_value() -> None:
    after = with_values(TEXT, {"bf16": None, "deepspeed": "z2.json"})
    assert reference.safe_load(after)["bf16"] is None
    assert reference.safe_load(after)["deepspeed"] == "z2.json"


NAMES = st.sampled_from(["a", "b", "a_b", "lr"])
VALUES = st.one_of(st.integers(-5, 99).map(str), st.sampled_from(["true", "false", "sdpa"]))


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, VALUES), st.booleans())
def test_whatever_is_set_is_what_yaml_reads(
    before: dict[str, str], change: dict[str, str], newline: bool
) -> None:
    text = "\n".join(f"{k}: {v}" for k, v in before.items()) + ("\n" if newline else "")
    after = reference.safe_load(with_values(text, change)) or {}
    wanted = reference.safe_load("\n".join(f"{k}: {v}" for k, v in {**before, **change}.items()))
    assert after == (wanted or {})


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip("\n"), ""])
def test_the_diff_is_one_that_patch_takes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(text)
    after = with_values(text, {"dataloader_num_workers": "16", "new": "1"})
    done = subprocess.run(
        ["patch", "-p1"], cwd=tmp_path, input=diff(path, text, after), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, path.read_text()) == (0, after), done.stdout
