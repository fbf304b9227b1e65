"""Checkpoints of several ranks, on gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import ranked
from tests.train.parallel.processes import on_ranks

from brim.errors import InputError
from brim.model.weights import published
from brim.train.checkpoint import Checkpoints, state_tensors
from brim.train.parallel.ranks import Ranks
from brim.train.saving.export import export
from brim.train.saving.folders import damaged, manifest


def whole_state(ranks: Ranks, output: str, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The newest checkpoint, loaded on these ranks and gathered."""
    trainer = ranked.trainer(ranks, Path(output), **options)
    newest = trainer.checkpoints.newest()
    assert newest is not None
    trainer.checkpoints.load(newest, trainer.model, trainer.step.optimizer, trainer.step.scale)
    found = state_tensors(trainer.model, trainer.step.optimizer, trainer.step.scale)
    return {
        name: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone()  # type: ignore[operator]
        for name, t in found.items()
    }


@pytest.mark.parametrize(
    ("data", "moments"), [("ddp", "float32"), ("fsdp", "float32"), ("fsdp", "uint8")]
)
def test_two_ranks_share_the_writing_and_any_number_reads_the_same_state(
    data: str, moments: str, tmp_path: Path
) -> None:
    options = {"steps": 2, "data": data, "moments": moments}
    on_ranks(2, ranked.run, str(tmp_path), options)
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest is not None and json.loads((newest / "manifest.json").read_bytes())["world"] == 2
    files = {name: entry["size"] for name, entry in manifest(newest).items() if "rank-" in name}
    assert len(files) == 2
    assert max(files.values()) < 1.3 * min(files.values())
    alone = whole_state(Ranks(), str(tmp_path), options)
    for form in ("ddp", "fsdp"):
        for state in on_ranks(2, whole_state, str(tmp_path), {**options, "data": form}):
            assert state.keys() == alone.keys()
            assert all(torch.equal(state[name], alone[name]) for name in alone)
    one = on_ranks(3, whole_state, str(tmp_path), {**options, "data": "fsdp"})[2]
    assert all(torch.equal(one[name], alone[name]) for name in alone)


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_a_run_resumed_on_the_same_ranks_has_the_losses_of_one_that_was_not(
    data: str, tmp_path: Path
) -> None:
    on_ranks(2, ranked.run, str(tmp_path / "whole"), {"steps": 8, "data": data})
    cut = {"steps": 8, "data": data, "hook": ranked.AsksToStop(3, 1)}
    on_ranks(2, ranked.run, str(tmp_path / "cut"), cut)
    on_ranks(2, ranked.run, str(tmp_path / "cut"), {"steps": 8, "data": data})
    (whole,) = ranked.losses(tmp_path / "whole")
    first, second = ranked.losses(tmp_path / "cut")
    assert len(first) in (5, 6) and len(second) == 8 - len(first)
    assert first + second == whole
    last = "checkpoints/step-00000008"
    assert manifest(tmp_path / "whole" / last) == manifest(tmp_path / "cut" / last)


def test_from_one_rank_to_two_and_back_the_losses_are_those_of_one_rank(tmp_path: Path) -> None:
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    ranked.run(Ranks(), str(whole), {"steps": 9})
    ranked.run(Ranks(), str(moved), {"steps": 9, "hook": ranked.AsksToStop(2, 0)})
    on_ranks(2, ranked.run, str(moved), {"steps": 9, "hook": ranked.AsksToStop(4, 1)})
    ranked.run(Ranks(), str(moved), {"steps": 9})
    (expected,) = ranked.losses(whole)
    first, second, third = ranked.losses(moved)
    assert len(first) == 3 and 2 <= len(second) <= 4
    assert first == expected[:3]
    # the sums over rows have another order on two ranks
    assert first + second + third == pytest.approx(expected, rel=2e-6)


def test_when_one_rank_has_no_room_all_go_on_without_that_checkpoint(tmp_path: Path) -> None:
    results = on_ranks(2, run_with_a_full_disk, str(tmp_path), 1)
    (finished, said), (other_finished, nothing) = results
    assert finished and other_finished and nothing == []
    assert said == [
        f"checkpoint of step {step} not written: rank 1: [Errno 27] File too large; training goes "
        "on, the next checkpoint will try again"
        for step in (2, 4, 6, 6)
    ]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def run_with_a_full_disk(ranks: Ranks, output: str, who: int) -> tuple[bool, list[str]]:
    import resource

    said: list[str] = []
    trainer = ranked.trainer(ranks, Path(output), steps=6, save_steps=2, said=said)
    trainer.checkpoints.prepare(trainer.model, trainer.step.optimizer, trainer.step.scale)
    made = trainer.checkpoints._made
    assert made is not None
    if ranks.rank == who:
        resource.prlimit(made.writer.pid, resource.RLIMIT_FSIZE, (5000, 5000))
    return trainer.run(), said


def test_a_damaged_file_of_any_rank_sends_all_ranks_to_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    options = {"steps": 4, "save_steps": 2}
    on_ranks(2, ranked.run, str(tmp_path), options)
    file = tmp_path / "checkpoints/step-00000004/rank-00001-000.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 4
    file.write_bytes(data)
    results = on_ranks(2, ranked.run, str(tmp_path), options)
    assert "resumed after step 2" in results[0][1][0]
    assert not damaged(tmp_path / "checkpoints/step-00000004")


def test_a_sharded_checkpoint_becomes_a_model_that_transformers_opens(tmp_path: Path) -> None:
    from transformers import Qwen3VLForConditionalGeneration

    on_ranks(2, ranked.run, str(tmp_path), {"steps": 2, "rows": 2, "data": "fsdp"})
    newest = Checkpoints(tmp_path / "checkpoints").newest()
    assert newest is not None
    export(newest, tmp_path / "model")
    theirs = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "model").state_dict()
    trainer = ranked.trainer(Ranks(), tmp_path, steps=2)
    trainer.checkpoints.load(newest, trainer.model, trainer.step.optimizer, trainer.step.scale)
    for name, tensor in published(trainer.model):
        assert torch.equal(theirs[name], tensor), name


def test_what_is_no_whole_checkpoint_is_not_exported(tmp_path: Path) -> None:
    ranked.run(Ranks(), str(tmp_path), {"steps": 1, "rows": 2})
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    file = checkpoint / "rank-00000-000.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="is damaged: rank-00000-000"):
        export(checkpoint, tmp_path / "model")
    file.unlink()
    with pytest.raises(InputError, match="is no whole checkpoint"):
        export(checkpoint, tmp_path / "model")
    assert not (tmp_path / "model").exists()
