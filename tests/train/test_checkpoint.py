from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.forks import TORCH, Forks
from tests.train.deadly import deadly

from brim.errors import ConfigError, InputError
from brim.train.checkpoint import Checkpoints, NotWritten, state_tensors
from brim.train.loop import Trainer
from brim.train.saving import reader
from brim.train.saving.folders import damaged, manifest, valid

Make = Callable[..., Trainer]
WEIGHTS = "rank-00000-000.safetensors"


def save(trainer: Trainer, step: int) -> Path:
    return trainer.checkpoints.save(
        step, trainer.model, trainer.step.optimizer, trainer.step.scale, {"lr_factor": 1.0}
    )


def load(trainer: Trainer, path: Path) -> dict[str, object]:
    return trainer.checkpoints.load(path, trainer.model, trainer.step.optimizer, trainer.step.scale)


def states(trainer: Trainer) -> dict[str, torch.Tensor]:
    found = state_tensors(trainer.model, trainer.step.optimizer, trainer.step.scale)
    return {name: tensor.clone() for name, tensor in found.items()}


def test_two_valid_checkpoints_are_kept_and_the_newest_is_found(make_trainer: Make) -> None:
    trainer = make_trainer()
    for step in (1, 2, 3, 10):
        save(trainer, step)
    folder = trainer.checkpoints.folder
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000003", "step-00000010"]
    assert trainer.checkpoints.newest() == folder / "step-00000010"
    assert valid(folder / "step-00000010") and not damaged(folder / "step-00000010")


def test_everything_is_restored_random_states_too(make_trainer: Make) -> None:
    trainer, other = make_trainer(3, "a"), make_trainer(3, "b")
    trainer.run()
    random.seed(5)
    random.gauss(0, 1)  # leaves a second value behind
    np.random.seed(6)
    torch.manual_seed(7)
    trainer.checkpoints = Checkpoints(trainer.checkpoints.folder / "again")
    path = save(trainer, 3)
    expected = (random.gauss(0, 1), random.random(), np.random.rand(), torch.rand(()).item())
    assert load(other, path) == {"step": 3, "lr_factor": 1.0}
    assert Checkpoints.kept(path) == {"lr_factor": 1.0}
    found = (random.gauss(0, 1), random.random(), np.random.rand(), torch.rand(()).item())
    assert found == expected
    ours, theirs = states(trainer), states(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert other.step.optimizer.updates.item() == 3
    assert other.step.optimizer.attempts == 3


def test_a_checkpoint_holds_the_state_of_its_start_whatever_happens_meanwhile(
    make_trainer: Make,
) -> None:
    trainer, other = make_trainer(2, "a"), make_trainer(2, "b")
    before = states(trainer)
    trainer.checkpoints.start(1, trainer.model, trainer.step.optimizer, trainer.step.scale, {})
    for parameter in trainer.model.parameters():
        parameter.detach().add_(1.0)
    load(other, trainer.checkpoints.finish())
    assert all(torch.equal(before[name], tensor) for name, tensor in states(other).items())


def test_a_save_goes_on_by_itself_and_is_seen_to_end(make_trainer: Make) -> None:
    trainer = make_trainer()
    saves = trainer.checkpoints
    saves.start(1, trainer.model, trainer.step.optimizer, trainer.step.scale, {})
    found = None
    deadline = time.monotonic() + 30
    while found is None and time.monotonic() < deadline:
        found = saves.agreed(saves.progress())
    assert found == saves.newest() == saves.folder / "step-00000001"


def test_a_share_larger_than_the_free_memory_is_written_in_rounds(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.train.saving.layout.SHARD_BYTES", 20_000)
    monkeypatch.setattr("brim.train.checkpoint.free_memory", lambda: 100_000)
    trainer, other = make_trainer(2, "a"), make_trainer(2, "b")
    trainer.step(trainer.rows.fetch(0), 1e-2)
    path = save(trainer, 1)
    made = trainer.checkpoints._made
    assert made is not None and len(made.rounds) > 2
    assert made.staging.size < 0.6 * made.layout.total
    assert len(list(path.glob("*.safetensors"))) > 4
    load(other, path)
    ours = states(trainer)
    assert all(torch.equal(ours[name], tensor) for name, tensor in states(other).items())


@pytest.mark.parametrize(
    "damage",
    ["no manifest", "half a manifest", "cut weights", "missing index", "manifest of a list",
     "flipped bit"],
)  # fmt: skip
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    damage: str, make_trainer: Make
) -> None:
    trainer = make_trainer()
    first, second = save(trainer, 1), save(trainer, 2)
    path, weights = second / "manifest.json", second / WEIGHTS
    data = bytearray(weights.read_bytes())
    if damage == "no manifest":
        path.unlink()
    elif damage == "half a manifest":
        path.write_bytes(path.read_bytes()[:40])
    elif damage == "cut weights":
        weights.write_bytes(data[:-1])
    elif damage == "missing index":
        (second / "index.json").unlink()
    elif damage == "manifest of a list":
        path.write_text("[]")
    else:  # the size stays: only the checksum finds it
        data[-1] ^= 1
        weights.write_bytes(data)
        assert valid(second) and damaged(second) == [WEIGHTS]
    assert trainer.checkpoints.newest() == first
    again = make_trainer()
    assert save(again, 2) == second
    assert again.checkpoints.newest() == second and not damaged(second)


def test_the_reading_of_checksums_is_shared_without_a_gap(make_trainer: Make) -> None:
    path = save(make_trainer(), 1)
    for name in manifest(path):
        file = path / name
        whole = file.read_bytes()
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        found = [damaged(path, part=part, parts=3) for part in range(3)]
        assert sorted(found) == [[], [], [name]]
        file.write_bytes(whole)


def test_an_older_checkpoint_is_deleted_only_once_two_valid_ones_exist(
    make_trainer: Make,
) -> None:
    trainer = make_trainer()
    first, second = save(trainer, 1), save(trainer, 2)
    (second / "manifest.json").unlink()
    third = save(trainer, 3)
    assert valid(first) and valid(third)


def test_too_little_free_space_is_seen_before_writing(make_trainer: Make) -> None:
    # a disk of 10 kB, as the process that writes sees it
    program = "import shutil; shutil.disk_usage = lambda _: type('U', (), {'free': 10_000})()\n"
    trainer = make_trainer()
    kept = save(trainer, 1)
    *start, last = trainer.checkpoints._command
    full = Checkpoints(trainer.checkpoints.folder, writer=(*start, program + last))
    trainer.checkpoints = full
    with pytest.raises(NotWritten, match=r"0\.0 GB free; a checkpoint takes"):
        save(trainer, 2)
    assert list(full.folder.iterdir()) == [kept]


@pytest.mark.parametrize("limit", [0, 1, 4096, 50_000])
def test_a_disk_that_fills_at_any_byte_leaves_the_checkpoints_as_they_were(
    limit: int, make_trainer: Make
) -> None:
    trainer = make_trainer()
    kept = [save(trainer, 1), save(trainer, 2)]
    made = trainer.checkpoints._made
    assert made is not None
    before = resource.prlimit(made.writer.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(made.writer.pid, resource.RLIMIT_FSIZE, (limit, before[1]))
    with pytest.raises(NotWritten, match=r"step 3 not written: .*File too large"):
        save(trainer, 3)
    assert sorted(trainer.checkpoints.folder.iterdir()) == kept
    resource.prlimit(made.writer.pid, resource.RLIMIT_FSIZE, before)
    assert trainer.checkpoints.newest() == kept[1]
    assert valid(save(trainer, 3))


def test_a_full_disk_does_not_end_the_run(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import shutil; shutil.disk_usage = lambda _: type('U', (), {'free': 10_000})()\n"
    trainer = make_trainer(4, save_steps=2)
    *start, last = trainer.checkpoints._command
    trainer.checkpoints._command = (*start, program + last)
    assert trainer.run()
    said: list[str] = trainer.said  # type: ignore[attr-defined]
    assert [line.split(":")[0] for line in said] == [
        f"checkpoint of step {step} not written"
        for step in (2, 4, 4)  # the last is tried twice
    ]
    assert "training goes on" in said[0]


def test_a_writer_that_is_killed_costs_one_checkpoint_and_comes_back(make_trainer: Make) -> None:
    trainer = make_trainer(4, save_steps=1)
    # every one dies with its second checkpoint half written, and the next starts from none
    trainer.checkpoints._command = deadly("fsync", 13, whom="writer")
    assert trainer.run()
    said: list[str] = trainer.said  # type: ignore[attr-defined]
    assert all("ended with code -9; training goes on" in line for line in said) and said
    left = sorted(path.name for path in trainer.checkpoints.folder.iterdir())
    assert left[0].startswith("step-0000000") and not damaged(trainer.checkpoints.folder / left[0])
    assert not [name for name in left if name.endswith(".tmp")]


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import conftest
from deadly import deadly
make = conftest.make_trainer._get_wrapped_function()
trainer = make(Path(sys.argv[1]))(6, save_steps=1)
trainer.checkpoints._command = deadly(sys.argv[3], int(sys.argv[4]))
trainer.run()
"""


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("fsync", 1),  # the data of the first checkpoint
        ("fsync", 13),  # of the second
        ("replace", 5),  # the manifest of the first gets its name
        ("rename", 2),  # the second checkpoint gets its name
        ("fdatasync", 0),  # never: the run ends
        ("unlink", 7),  # the first is about to be deleted
    ],
)
def test_sigkill_at_named_points_leaves_a_checkpoint_that_resumes_to_the_same_bits(
    call: str, count: int, tmp_path: Path, make_trainer: Make, forks: Callable[..., Forks]
) -> None:
    here, script = Path(__file__).parent, tmp_path / "child.py"
    script.write_text(CHILD)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here.parents[1])}
    argv = [str(script), str(tmp_path), str(here), call, str(count)]
    (done,) = forks(*TORCH).run(argv, cwd=tmp_path, env=env)
    assert done.returncode == (-signal.SIGKILL if count else 0), done.stderr
    resumed, whole = make_trainer(6, save_steps=1), make_trainer(6, "whole")
    newest = resumed.checkpoints.newest()
    assert newest is None or not damaged(newest)
    assert resumed.run() and whole.run()
    ours = states(whole)
    assert all(torch.equal(ours[name], tensor) for name, tensor in states(resumed).items())
    names = {path.name for path in resumed.checkpoints.folder.iterdir()}
    assert names == {"step-00000005", "step-00000006"}


def test_the_manifest_lists_every_file(make_trainer: Make) -> None:
    path = save(make_trainer(), 1)
    there = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert set(manifest(path)) == there - {"manifest.json"}


def test_files_open_in_safetensors_and_no_file_is_a_pickle(make_trainer: Make) -> None:
    trainer = make_trainer()
    path = save(trainer, 1)
    with safe_open(path / WEIGHTS, framework="pt") as f:
        stored = f.get_tensor("model.embedding.weight")
    assert torch.equal(stored, trainer.model.embedding.weight)
    for file in path.iterdir():
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        else:
            assert file.suffix == ".safetensors"


def test_a_checkpoint_of_torch_is_refused_before_anything_is_unpickled(
    make_trainer: Make, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp

    trainer = make_trainer()
    foreign = tmp_path / "foreign"
    dcp.save({"model": trainer.model.state_dict()}, checkpoint_id=foreign)
    (foreign / ".metadata").write_bytes(
        b"cos\nsystem\n(S'touch " + bytes(tmp_path / "ran") + b"'\ntR."
    )
    with pytest.raises(InputError, match="is a pickle, which can run code"):
        reader.load(foreign, states(trainer))
    assert not (tmp_path / "ran").exists()
    foreign.rename(trainer.checkpoints.folder.parent / "step-00000009")
    assert Checkpoints(trainer.checkpoints.folder.parent).newest() is None


def test_an_index_cannot_name_a_file_outside_its_folder(make_trainer: Make) -> None:
    trainer = make_trainer()
    path = save(trainer, 1)
    index = path / "index.json"
    index.write_text(index.read_text().replace(WEIGHTS, f"../{WEIGHTS}", 1))
    with pytest.raises(InputError, match="names a file outside its folder"):
        load(trainer, path)


def test_other_settings_of_the_optimizer_cannot_continue_a_checkpoint(make_trainer: Make) -> None:
    path = save(make_trainer(2, "a", torch.bfloat16, masters=False), 1)
    with pytest.raises(ConfigError, match=r"mean is F32 \[.*\] in this run and BF16"):
        load(make_trainer(2, "b", torch.bfloat16, masters=True), path)
