"""What the user is told to change, so that the job is fast without brim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from brim.record.ladder import Change
from brim.tune.apply import advise
from brim.tune.apply.advice import code_for
from brim.tune.apply.preparing import BY_VARIABLE
from brim.tune.knobs import KNOBS, Settings

SWIFT = "swift sft --model Qwen/Qwen3-VL-4B-Instruct --attn_impl eager"
YAML = "bf16: true\nflash_attn: disabled  # slow\n"


def _advise(command: str, settings: Settings, framework: str = "torch", **more: Any) -> Change:
    return advise(command.split(), settings, framework, **{"env": {}, **more})


def test_a_frameworks_command_holds_all_that_it_takes(tmp_path: Path) -> None:
    settings: Settings = {"attention.implementation": "flash_attention_2", "loader.num_workers": 8,
                          "gc.freeze": True, "nccl.algo": "Tree"}  # fmt: skip
    found = _advise(SWIFT, settings, "ms-swift", cwd=tmp_path)
    assert found.command == [
        *SWIFT.split()[:-1], "flash_attn", "--dataloader_num_workers", "8",
    ]  # fmt: skip
    assert found.environment == {"NCCL_ALGO": "Tree"}
    assert len(found.code) == 1
    assert "gc.freeze()" in found.code[0]


def test_a_yaml_file_is_patched_and_its_overrides_in_the_command_go(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(YAML)
    command = "llamafactory-cli train sft.yaml flash_attn=fa2 lr=1"
    settings: Settings = {"attention.implementation": "sdpa", "loader.num_workers": 4}
    found = _advise(command, settings, "llama-factory", cwd=tmp_path)
    assert found.command == ["llamafactory-cli", "train", "sft.yaml", "lr=1"]
    assert "-flash_attn: disabled  # slow\n+flash_attn: sdpa  # slow\n" in found.patch
    added = [line[1:] for line in found.patch.splitlines() if line.startswith("+")][1:]
    assert yaml.safe_load("\n".join(added)) == {"flash_attn": "sdpa", "dataloader_num_workers": 4}
    assert path.read_text() == YAML  # told, not done


def test_a_json_file_is_left_and_the_command_overrides_it(tmp_path: Path) -> None:
    (tmp_path / "sft.json").write_text("{}")
    found = _advise("llamafactory-cli train sft.json", {"loader.num_workers": 4}, cwd=tmp_path)
    assert found.command[-1] == "dataloader_num_workers=4"
    assert found.patch == ""


@pytest.mark.parametrize("flag", ["--num-workers", "--num_workers", "--workers"])
def test_a_scripts_own_flag_is_used_when_it_has_one(flag: str, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(f"parser.add_argument('{flag}', type=int, default=0)")
    found = _advise(f"python t.py {flag} 2 --lr 1", {"loader.num_workers": 8}, cwd=tmp_path)
    assert found.command == ["python", "t.py", flag, "8", "--lr", "1"]
    assert found.code == []


def test_a_plain_script_gets_code_and_keeps_its_command(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("loader = DataLoader(data)")
    found = _advise("python t.py", {"loader.num_workers": 8, "debug": False}, cwd=tmp_path)
    assert (found.command, found.environment, found.patch) == ([], {}, "")
    assert found.code[0] == "DataLoader(..., num_workers=8)"
    assert "set_detect_anomaly" in found.code[1]


def test_threads_are_a_variable_that_any_program_reads(tmp_path: Path) -> None:
    found = _advise("python t.py", {"cpu.threads": 6}, cwd=tmp_path)
    assert found.environment == {"OMP_NUM_THREADS": "6"}
    assert found.command == ["python", "t.py"]
    assert found.code == []


def test_nothing_kept_is_nothing_to_change(tmp_path: Path) -> None:
    assert _advise("python t.py", {}, cwd=tmp_path) == Change()


@pytest.mark.parametrize("framework", ["torch", "hf-trainer", "lightning", "ms-swift"])
@pytest.mark.parametrize("id", sorted(set(KNOBS) - BY_VARIABLE))
def test_every_knob_is_worded_for_both_of_its_directions(id: str, framework: str) -> None:
    knob = KNOBS[id]
    values: tuple[bool | int | str, ...] = {
        "flag": (True, False), "count": (knob.low, 37), "choice": knob.choices,
    }[knob.kind]  # fmt: skip
    for value in values:
        text = code_for(id, value, framework)
        assert len(text) > 8
        assert "{value}" not in text
    if knob.kind == "count":
        assert "37" in code_for(id, 37, framework)
