"""``brim train`` on two ranks, from photographs on disk to a trained model."""

from __future__ import annotations

import contextlib
import io
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.data import qwen
from tests.data.sets import write_set
from tests.train.parallel import tiny
from tests.train.parallel.processes import on_ranks

from brim.cli.main import main
from brim.model.weights import random_model, save
from brim.record.run import read_run


@dataclass
class Run:
    """What each rank ended with and said."""

    folder: Path
    codes: list[int]
    said: list[str]

    @property
    def records(self) -> Path:
        [found] = (self.folder / "records").iterdir()
        return found

    def losses(self, rank: int) -> list[float | None]:
        process = next(p for p in read_run(self.records).processes if p.header.rank == rank)
        return [step.loss for step in process.steps]

    def model(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model" / "model.safetensors")


def command(words: list[str]) -> tuple[int, str]:
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard):
        try:
            code = main(words)
        except SystemExit as silent:  # of a rank that leaves the word to the first
            code = int(str(silent.code))
    return code, heard.getvalue()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A configuration over 12 photographs, some samples without one."""
    folder = tmp_path_factory.mktemp("run")
    shape = tiny.config()
    shape = replace(
        shape,
        text=replace(shape.text, vocab_size=320),
        vision=replace(shape.vision, positions=2304),
    )
    save(random_model(shape, dtype=torch.float32), folder / "tiny")
    qwen.build_small(folder / "tiny")
    write_set(folder / "photos", 12)
    path = folder / "sft.toml"
    path.write_text(
        f"""[model]
path = "{folder / "tiny"}"
[optimizer]
learning_rate = 0.001
lr_scheduler_type = "constant"
warmup_ratio = 0
[train]
max_steps = 3
save_steps = 2
eval_steps = 2
[data]
sources = ["photos/train.jsonl"]
tokens_per_row = 640
rows_per_step = 4
[eval]
sources = ["photos/train.jsonl"]
"""
    )
    return ["train", str(path)]


def run(settings: list[str], folder: Path, world: int, *more: str) -> Run:
    words = [*settings, "--set", f"output_dir={folder}", *more]
    if world == 1:
        code, said = command(words)
        return Run(folder, [code], [said])
    found = on_ranks(world, command, words, joined=False, timeout=90)
    return Run(folder, [code for code, _ in found], [said for _, said in found])


@pytest.fixture(scope="module")
def alone(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(settings, tmp_path_factory.mktemp("alone") / "out", 1)


def evaluated(said: str) -> float:
    [line] = [line for line in said.splitlines() if line.startswith("evaluation loss")]
    return float(line.split()[-1])


def checkpoints(of: Run) -> list[str]:
    return sorted(path.name for path in (of.folder / "checkpoints").iterdir() if path.is_dir())


@pytest.mark.parametrize("data", ["auto", "fsdp"])
def test_two_ranks_train_evaluate_and_export_what_one_does(
    data: str, settings: list[str], alone: Run, tmp_path: Path
) -> None:
    both = run(settings, tmp_path / "out", 2, "--set", f"parallel.data={data}")
    assert both.codes == [0, 0], both.said
    for rank in (0, 1):
        assert both.losses(rank) == pytest.approx(alone.losses(0), rel=1e-5)
    assert evaluated(both.said[0]) == pytest.approx(evaluated(alone.said[0]), abs=2e-4)
    assert both.said[1] == ""  # the second rank has nothing of its own to say
    chosen = "ddp: memory is no limit" if data == "auto" else "fsdp: as configured"
    assert f"parallel      {chosen}" in both.said[0]
    for name, weight in alone.model().items():
        assert torch.allclose(both.model()[name], weight, atol=2e-5), name
    assert {p.header.world for p in read_run(both.records).processes} == {2}
    # the one of step 2 was written right after an evaluation, which left no weights gathered
    assert checkpoints(both) == ["step-00000002", "step-00000003"]


def test_metrics_count_what_all_ranks_did(settings: list[str], alone: Run, tmp_path: Path) -> None:
    both = run(settings, tmp_path / "out", 2, "--set", "train.save_at_end=false")
    seen = [metrics(r)[-1] for r in (alone, both)]
    assert seen[0]["loss"] == pytest.approx(seen[1]["loss"], rel=1e-5)
    images = [
        sum(step.images for p in read_run(r.records).processes for step in p.steps)
        for r in (alone, both)
    ]
    assert images[0] == images[1] > 0


def metrics(of: Run) -> list[dict[str, Any]]:
    lines = (of.records / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_rows_that_ranks_cannot_share_are_named_once(settings: list[str], tmp_path: Path) -> None:
    odd = run(settings, tmp_path / "out", 2, "--set", "data.rows_per_step=3")
    assert odd.codes == [2, 2]
    assert "rows_per_step is 3, which 2 ranks cannot share" in odd.said[0]
    assert odd.said[1] == ""


def test_sharding_without_torchrun_says_how_to_start_it(
    settings: list[str], tmp_path: Path
) -> None:
    one = run(settings, tmp_path / "out", 1, "--set", "parallel.data=fsdp")
    assert one.codes == [2]
    assert "parallel.data is fsdp, and there is one process" in one.said[0]
    assert "torchrun --nproc-per-node" in one.said[0]


@pytest.mark.parametrize("data", ["ddp", "fsdp", "hsdp"])
def test_a_dry_run_of_64_ranks_needs_one_process_and_no_gpu(
    data: str, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *settings,
        "--dry-run", "--world", "64", "--gpu", "H200 SXM 141GB",
        "--set", f"parallel.data={data}",
        "--set", "train.gradient_accumulation_steps=2",
        "--set", f"output_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    path = Path(settings[1])
    shared = path.with_name(f"{data}.toml")
    shared.write_text(path.read_text().replace("rows_per_step = 4\n", ""))
    words[1] = str(shared)
    assert command(words) == (0, "")
    shown = " ".join(capsys.readouterr().out.split())
    assert f"model {data}: as configured" in shown
    # blocks 3 + 3, taps 2, merger, tower, root: 11 groups, gathered for both rows
    gathers = {"ddp": 0, "fsdp": 11, "hsdp": 11}[data]
    ranks = 64 if data == "fsdp" else 8
    assert (f"all-gather {ranks} {gathers} " in shown) == (gathers > 0)
    assert (f"reduce-scatter {ranks} 11 " in shown) == (gathers > 0)
    assert ("all-reduce 8 11 " in shown) == (data == "hsdp")
    assert "predicted step" in shown and "MFU" in shown
    assert not (tmp_path / "out").exists()
    assert not torch.distributed.is_initialized()


def test_a_dry_run_refuses_what_the_run_would(settings: list[str], tmp_path: Path) -> None:
    code, said = command([*settings, "--dry-run", "--world", "3"])
    assert code == 2
    assert "rows_per_step is 4, which 3 ranks cannot share" in said


def own_command(words: list[list[str]]) -> tuple[int, str]:
    return command(words[int(os.environ["RANK"])])


def test_ranks_that_see_other_data_stop_before_the_first_step(
    settings: list[str], tmp_path: Path
) -> None:
    other = Path(settings[1]).with_name("other.toml")
    write_set(other.parent / "more", 13)
    other.write_text(Path(settings[1]).read_text().replace("photos/train", "more/train"))
    out = ["--set", f"output_dir={tmp_path / 'out'}"]
    words = [[*settings, *out], ["train", str(other), *out]]
    found = on_ranks(2, own_command, words, joined=False, timeout=90)
    for rank, (code, said) in enumerate(found):
        assert code == 2
        assert f"rank {rank} (host " in said
        assert "rank 1 of 2 sees other data than rank 0" in said
