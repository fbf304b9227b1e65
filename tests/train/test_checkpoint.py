from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from brim.train.checkpoint import Checkpoints, DiskFull, valid
from brim.train.loop import Trainer

Make = Callable[..., Trainer]


def save(trainer: Trainer, step: int) -> Path:
    return trainer.checkpoints.save(
        step, trainer.model, trainer.step.optimizer, trainer.step.scale, {"lr_factor": 1.0}
    )


def load(trainer: Trainer, path: Path) -> dict[str, object]:
    return trainer.checkpoints.load(path, trainer.model, trainer.step.optimizer, trainer.step.scale)


def test_two_valid_checkpoints_are_kept_and_the_newest_is_found(make_trainer: Make) -> None:
    trainer = make_trainer()
    for step in (1, 2, 3, 10):
        save(trainer, step)
    folder = trainer.checkpoints.folder
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000003", "step-00000010"]
    assert trainer.checkpoints.newest() == folder / "step-00000010"
    assert valid(folder / "step-00000010", checksums=True)


def test_everything_is_restored_random_states_too(make_trainer: Make) -> None:
    trainer, other = make_trainer(3, "a"), make_trainer(3, "b")
    trainer.run()
    random.seed(5)
    np.random.seed(6)
    torch.manual_seed(7)
    trainer.checkpoints = Checkpoints(trainer.checkpoints.folder / "again")
    path = save(trainer, 3)
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    assert load(other, path) == {"step": 3, "lr_factor": 1.0}
    assert Checkpoints.kept(path) == {"lr_factor": 1.0}
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    for a, b in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
        for name in ("mean", "square"):
            states = trainer.step.optimizer.state[a], other.step.optimizer.state[b]
            assert torch.equal(states[0][name], states[1][name])
    assert other.step.optimizer.updates.item() == 3


@pytest.mark.parametrize(
    "damage",
    ["no manifest", "half a manifest", "cut weights", "missing optimizer", "manifest of a list"],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    damage: str, make_trainer: Make
) -> None:
    trainer = make_trainer()
    first, second = save(trainer, 1), save(trainer, 2)
    manifest = second / "manifest.json"
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_bytes(manifest.read_bytes()[:40])
    elif damage == "cut weights":
        weights = second / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "missing optimizer":
        (second / "optimizer-0.safetensors").unlink()
    else:
        manifest.write_text("[]")
    assert trainer.checkpoints.newest() == first
    again = save(trainer, 2)
    assert trainer.checkpoints.newest() == again == second


def test_a_flipped_bit_keeps_the_size_and_only_the_checksum_finds_it(make_trainer: Make) -> None:
    path = save(make_trainer(), 1)
    weights = path / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert valid(path)
    assert not valid(path, checksums=True)


def test_an_older_checkpoint_is_deleted_only_once_two_valid_ones_exist(
    make_trainer: Make,
) -> None:
    trainer = make_trainer()
    first, second = save(trainer, 1), save(trainer, 2)
    (second / "manifest.json").unlink()
    third = save(trainer, 3)
    assert valid(first) and valid(third)


def test_too_little_free_space_is_seen_before_writing(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    kept = save(trainer, 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(DiskFull, match="free; a checkpoint takes"):
        save(trainer, 2)
    assert list(trainer.checkpoints.folder.iterdir()) == [kept]


CHILD = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import conftest
from brim.train.checkpoint import DiskFull
make = conftest.make_trainer.__wrapped__ if hasattr(conftest.make_trainer, "__wrapped__") else None
make = make or conftest.make_trainer._get_wrapped_function()
trainer = make(Path(sys.argv[1]))(6, save_steps=1)
{body}
"""

LIMITED = """
trainer.run.__self__.steps = 2
trainer.run()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
try:
    trainer.checkpoints.save(7, trainer.model, trainer.step.optimizer, trainer.step.scale, {})
except DiskFull as error:
    print("full:", error)
print(sorted(p.name for p in trainer.checkpoints.folder.iterdir()))
"""

KILLED = """
import os
point, count = {point!r}, {count}
seen = 0
real = getattr(os, point)
def dies(*args, **options):
    global seen
    seen += 1
    if seen == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
setattr(os, point, dies)
trainer.run()
"""


def child(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    program = CHILD.replace("{body}", body)
    return subprocess.run(
        [sys.executable, "-c", program, str(folder), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_a_write_that_fails_halfway_leaves_the_checkpoints_as_they_were(tmp_path: Path) -> None:
    done = child(tmp_path, LIMITED)
    assert "full: checkpoint of step 7 not written" in done.stdout, done.stderr
    assert "['step-00000001', 'step-00000002']" in done.stdout


@pytest.mark.parametrize(("point", "count"), [("fsync", 14), ("rename", 6), ("replace", 9)])
def test_sigkill_at_named_points_leaves_a_checkpoint_that_resumes_to_the_same_bits(
    point: str, count: int, tmp_path: Path, make_trainer: Make
) -> None:
    done = child(tmp_path, KILLED.replace("{point!r}", repr(point)).replace("{count}", str(count)))
    assert done.returncode == -signal.SIGKILL, done.stderr
    resumed, whole = make_trainer(6, save_steps=1), make_trainer(6, "whole")
    newest = resumed.checkpoints.newest()
    assert newest is None or valid(newest, checksums=True)
    assert resumed.run() and whole.run()
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_full_disk_does_not_end_the_run(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(4, save_steps=2)
    monkeypatch.setattr(
        trainer.checkpoints, "save", lambda *_: (_ for _ in ()).throw(DiskFull("no room"))
    )
    assert trainer.run()
    said: list[str] = trainer.said  # type: ignore[attr-defined]
    assert said == ["no room; training goes on, the next checkpoint will try again"] * 2


def test_the_manifest_lists_every_file(make_trainer: Make) -> None:
    path = save(make_trainer(), 1)
    listed = set(json.loads((path / "manifest.json").read_bytes()))
    there = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert listed == there - {"manifest.json"}
