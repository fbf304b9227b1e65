"""Which framework a command starts, and how one argument of it is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.tune.apply.command import (
    assigned,
    read_command,
    value_of,
    with_assignment,
    with_flag,
)

HF = "parser = HfArgumentParser((ModelArguments, TrainingArguments))"
TRL = "parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))"
LIGHTNING = "cli = LightningCLI(Model, Data)"
PLAIN = "parser = argparse.ArgumentParser()"


@pytest.mark.parametrize(
    ("command", "source", "framework", "first"),
    [
        ("python train.py --lr 1", HF, "hf-trainer", 2),
        ("python -u train.py --lr 1", TRL, "hf-trainer", 3),
        ("torchrun --nproc-per-node 2 train.py --lr 1", HF, "hf-trainer", 4),
        ("accelerate launch --num_processes 2 train.py --lr 1", HF, "hf-trainer", 5),
        ("python train.py fit --config c.yaml", LIGHTNING, "lightning", 2),
        ("python train.py --lr 1", PLAIN, "torch", 2),
        ("python train.py args.json", HF, "torch", 2),  # parse_json_file: flags are not read
        ("swift sft --model m", "", "ms-swift", 2),
        ("/opt/bin/swift rlhf --model m", "", "ms-swift", 2),
        ("swift export --model m", "", "torch", 4),
        ("torchrun --nproc_per_node 2 -m swift.cli.sft --model m", "", "ms-swift", 5),
        ("llamafactory-cli train a.yaml lr=1", "", "llama-factory", 3),
        ("llamafactory-cli train --stage sft", "", "llama-factory", 2),
        ("python -m llamafactory.cli --stage sft", "", "llama-factory", 3),
        ("python missing.py --lr 1", "", "torch", 2),
        ("bash run.sh", "", "torch", 2),
    ],
)
def test_the_framework_is_told_by_program_module_and_parser(
    command: str, source: str, framework: str, first: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(source)
    found = read_command(command.split(), tmp_path)
    assert (found.framework, found.first) == (framework, first)


def test_llama_factorys_file_is_the_first_argument(tmp_path: Path) -> None:
    found = read_command(["llamafactory-cli", "train", "conf/a.yaml", "lr=1"], tmp_path)
    assert found.config == tmp_path / "conf/a.yaml"
    assert found.arguments == ("lr=1",)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--num_workers 4", "4"),
        ("--num-workers 4", "4"),
        ("--num_workers=4 --x 1", "4"),
        ("--num_workers 4 --num_workers 8", "8"),  # the last one wins, as in argparse
        ("--num_workers --x", "true"),
        ("--num_workers", "true"),
        ("--no_num_workers", "false"),
        ("--no-num-workers --x", "false"),
        ("--num_workers -1", "-1"),
        ("--other 4", None),
        ("num_workers 4", None),
    ],
)
def test_a_flags_value_is_read_however_it_is_spelled(words: str, value: str | None) -> None:
    assert value_of(words.split(), "num_workers") == value


@pytest.mark.parametrize(
    ("words", "value", "wanted"),
    [
        ("t.py --lr 1", "8", "t.py --lr 1 --workers 8"),
        ("t.py --workers 2 --lr 1", "8", "t.py --workers 8 --lr 1"),
        ("t.py --workers=2 --lr 1", "8", "t.py --workers 8 --lr 1"),
        ("t.py --workers --lr 1", "8", "t.py --workers 8 --lr 1"),
        ("t.py --no-workers --lr 1", "8", "t.py --workers 8 --lr 1"),
        ("t.py --workers 2 --lr 1 --workers 3", "8", "t.py --workers 8 --lr 1"),
        ("t.py --lr 1 --workers 2", None, "t.py --lr 1"),
        ("t.py --lr 1", None, "t.py --lr 1"),
        ("--workers 4 t.py --lr 1", "8", "--workers 4 t.py --lr 1 --workers 8"),
    ],
)
def test_a_flag_is_set_once_in_its_old_place(words: str, value: str | None, wanted: str) -> None:
    given = words.split()
    first = given.index("t.py") + 1  # the launcher's own flags are not the script's
    assert with_flag(given, first, "workers", value) == wanted.split()


def test_an_assignment_replaces_all_earlier_ones() -> None:
    words = ["cli", "a.yaml", "lr=1", "lr=2", "bf16=true"]
    assert assigned(words, "lr") == "2"
    assert assigned(words, "l") is None
    assert with_assignment(words, 2, "lr", "3") == ["cli", "a.yaml", "bf16=true", "lr=3"]
