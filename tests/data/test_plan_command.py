"""``brim plan`` on a small data set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.data.sets import write_set

from brim.cli.main import main


@pytest.fixture
def config(tmp_path: Path, small_folder: Path) -> Path:
    write_set(tmp_path, 40)
    (tmp_path / "2.jpg").unlink()
    path = tmp_path / "config.toml"
    path.write_text(
        f'[model]\npath = "{small_folder}"\n'
        "[data]\n"
        'sources = ["train.jsonl"]\n'
        "tokens_per_row = 1024\nrows_per_step = 4\nmax_bad_share = 0.5\n"
    )
    return path


def test_the_plan_is_shown_and_written(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, bad = tmp_path / "plan.json", tmp_path / "bad.jsonl"
    assert main(["plan", str(config), "--json", str(out), "--quarantine", str(bad)]) == 0
    shown = capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert figures["samples"] == figures["images"] == 32
    assert figures["refused"] == {"image.missing": 8}
    assert "32 with 32 images an epoch" in shown
    assert "8 image.missing" in shown
    assert str(figures["rows"]) in shown
    assert "█" in shown
    assert [line["world"] for line in figures["imbalance"]] == [2, 4]
    assert len(bad.read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[data]\n", "names no model"),
        ("x = = 1", "is not TOML"),
        ('model = "none-such/none"\n[data]\nsources = ["a"]', "a: there is no such file"),
    ],
)
def test_a_wrong_configuration_is_an_error_of_one_or_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert main(["plan", str(path)]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") <= 3


def test_a_missing_configuration_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tmp_path / "none.toml")]) == 2
    assert "none.toml does not exist" in capsys.readouterr().err


def test_memory_is_shown_as_columns_for_a_gpu_that_is_not_here(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = config.read_text().replace('path = "', 'random = "8B"\nprocessor = "')
    text = text.replace("rows_per_step = 4\n", "")
    config.write_text(text.replace("tokens_per_row = 1024", "tokens_per_row = 8192"))
    out = tmp_path / "plan.json"
    assert main(["plan", str(config), "--gpu", "H200 SXM 141GB", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "float32" in shown and "bfloat16 ←" in shown and "8bit" in shown
    assert "bfloat16: a step fits without computing anything twice" in shown
    assert "predicted step" in shown
    device = json.loads(out.read_text())["device"]
    assert device["chosen"] == "bfloat16"
    first, second, _third = device["options"]
    assert (first["fits"], second["fits"]) == (False, True)
    assert second["kind"] == "bfloat16" and second["weights"] == 2 * 8_767_123_696
    assert second["peak"] == sum(
        second[name]
        for name in ("weights", "gradients", "states", "text", "tower", "loss", "passing")
    )
    assert second["states"] == 4 * 8_767_123_696
    assert 0 < second["step_s"] < 60 and 0 < device["mfu"] < 1


def test_a_gpu_that_is_not_in_the_table_is_named_with_those_that_sound_like_it(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace('path = "', 'random = "2B"\nprocessor = "'))
    assert main(["plan", str(config), "--gpu", "H200"]) == 2
    assert "did you mean H200" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here and is planned for")
def test_without_a_gpu_the_columns_are_those_of_half_precision_and_nothing_is_chosen(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(config.read_text().replace('path = "', 'random = "2B"\nprocessor = "'))
    assert main(["plan", str(config)]) == 0
    shown = capsys.readouterr().out
    words = " ".join(shown.split())  # the title is as wide as the table
    assert "Memory of a step, GiB, on any GPU from Ampere on" in words and "←" not in shown
    (weights,) = (line.split()[1:] for line in shown.splitlines() if line.startswith("weights"))
    assert weights == ["4.0"] * 3  # GiB: 2,127,532,032 parameters of two bytes
    assert "no GPU here: --gpu NAME says which of these fits" in words


def test_a_line_for_each_number_of_ranks_says_memory_traffic_and_time(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    text = config.read_text().replace('path = "', 'random = "8B"\nprocessor = "')
    text = text.replace("rows_per_step = 4\n", "")
    config.write_text(text + "[train]\ngradient_accumulation_steps = 1\n")
    words = ["plan", str(config), "--json", str(out), "--gpu", "H200 SXM 141GB"]
    assert main([*words, "--world", "8", "64", "--gpus-per-host", "8"]) == 0
    shown = capsys.readouterr().out
    assert "Ranks of H200 SXM 141GB, 8 a host: 450 GB/s inside, 50 GB/s each" in shown
    eight, many = json.loads(out.read_text())["ranks"]
    assert (eight["parallel"], eight["shards"], many["parallel"], many["shards"]) == (
        "fsdp", 8, "hsdp", 8,
    )  # fmt: skip
    assert eight["fits"] and eight["peak"] < eight["room"]
    assert {t["kind"] for t in eight["traffic"]} == {"all-gather", "reduce-scatter", "all-reduce"}
    assert sum(t["ranks"] == 64 for t in many["traffic"]) == 1  # the sums of a step
    assert many["step_s"] > eight["step_s"] > eight["exposed_s"] > 0
    assert json.loads(out.read_text())["imbalance"][1]["world"] == 64


def test_ranks_that_cannot_share_a_step_are_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(config), "--world", "2", "64"]) == 0
    assert "64 ranks cannot share 4 rows a step" in capsys.readouterr().out
