"""Settings from outside: what is said of them, how they alternate, that jobs never notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.observe.inject.cured import RunCured, job

from _brim_hooks import cure  # isort: skip


def test_without_settings_a_job_imports_no_cure_and_writes_nothing(cured: RunCured) -> None:
    end = "say['cures'] = [m for m in sys.modules if m.startswith('_brim_hooks.cure_')]"
    found = cured(job(end=end), {})
    assert found.said["cures"] == []
    assert (found.knobs, found.error, found.code) == ({}, None, 0)


def test_every_knob_that_meets_nothing_says_why_and_the_losses_are_the_same(
    cured: RunCured,
) -> None:
    """A job of a linear model on the CPU: no device, no blocks, no processes, nothing to cure."""
    plain = cured(job(), {})
    settings = {
        "loader.pin_memory": True, "loader.prefetch_factor": 4, "loader.persistent_workers": True,
        "loader.num_workers": 0, "worker.threads": 1, "transfer.non_blocking": True,
        "optimizer.set_to_none": True, "debug": False, "memory.flush": 0,
        "allocator.expandable_segments": True, "precision.tf32": "high", "attention.sdpa": "flash",
        "attention.implementation": "sdpa", "patch_embedding.matmul": True, "liger": True,
        "compile.blocks": True, "cudnn.benchmark": True, "recompute": "none", "batch.micro": 2,
        "ddp.no_sync": True, "ddp.bucket_cap_mb": 50, "nccl.algo": "Ring", "no.such": 1,
        "cpu.affinity": True,
    }  # fmt: skip
    found = cured(job(), settings)
    assert found.code == 0
    assert set(found.states()) == set(settings)
    assert set(found.states().values()) == {"unavailable"}
    assert all(knob.reason for knob in found.knobs.values())
    assert found.losses == plain.losses


def test_arms_alternate_every_three_steps_and_each_step_says_which(cured: RunCured) -> None:
    setup = """
    import gc
    def in_step(n):
        say.setdefault("frozen", []).append(gc.get_freeze_count() > 0)
    """
    turned = {"every": 3, "settings": {"gc.freeze": True}}
    found = cured(job(setup, steps=12), {}, alternate=turned)
    steps = [s for s in found.processes[0].steps if s.clock == "opt0"]
    assert [s.arm for s in steps] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
    # the line of step n is written before in_step(n): the switch shows one entry earlier
    assert found.said["frozen"] == [n // 3 % 2 == 1 for n in range(1, 13)]
    assert found.knobs["gc.freeze"].state == "applied"


def test_a_knob_of_both_arms_takes_the_value_of_the_one_in_effect(cured: RunCured) -> None:
    setup = """
    def in_step(n):
        say.setdefault("threads", []).append(torch.get_num_threads())
    """
    turned = {"every": 2, "settings": {"cpu.threads": 3}}
    found = cured(job(setup, steps=8), {"cpu.threads": 2}, alternate=turned)
    assert found.said["threads"] == [2, 3, 3, 2, 2, 3, 3, 2]


@pytest.mark.parametrize(
    ("raised", "memory", "when"),
    [("torch.OutOfMemoryError('CUDA out of memory')", True, 1), ("KeyError('pixels')", False, 6)],
)
def test_the_exception_that_ended_a_job_is_recorded(
    cured: RunCured, raised: str, memory: bool, when: int
) -> None:
    setup = f"""
    def in_step(n):
        if n == {when}:
            raise {raised}
    """
    found = cured(job(setup), {"gc.freeze": True})
    assert found.code == 1
    assert found.error is not None
    assert found.error.name == raised.partition("(")[0].split(".")[-1]
    assert found.error.out_of_memory is memory


def test_a_launcher_that_starts_the_job_says_nothing_of_its_own(
    cured: RunCured, tmp_path: Path
) -> None:
    """It imports torch, as torchrun does, and never trains."""
    code = "import torch, subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'train.py']))"
    (tmp_path / "train.py").write_text(job())
    found = cured(code, {"gc.freeze": True})
    lines = (tmp_path / "runs" / "applied.rank0.jsonl").read_text().splitlines()
    assert found.states() == {"gc.freeze": "applied"}
    assert len({json.loads(line)["pid"] for line in lines}) == 1


def test_an_order_that_cannot_be_read_leaves_the_job_as_it_was(cured: RunCured) -> None:
    found = cured(job(), {}, order="{")
    assert found.code == 0
    assert len(found.losses) == 8


# ----------------------------------------------------------------------------- in this process


class _Broken(cure.Cure):
    ids = ("debug", "gc.freeze")

    @cure.safely
    def works(self) -> int:
        return 1

    @cure.safely
    def breaks(self) -> int:
        raise RuntimeError("two\nlines")

    def stepped(self, n: int) -> None:
        raise ValueError(n)


@pytest.fixture
def lines(recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A plan with a cure that breaks; called, it gives the lines that were written."""
    plan = cure.Plan({"settings": {"debug": False, "gc.freeze": True}})
    plan.cures = [_Broken({"debug": False, "gc.freeze": True})]
    monkeypatch.setattr(cure, "plan", plan)

    def written() -> list[dict[str, Any]]:
        path = tmp_path / "applied.rank0.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    return written


def test_an_error_in_a_cure_fails_its_knobs_and_goes_no_further(lines: Any) -> None:
    assert cure.plan is not None
    (broken,) = cure.plan.cures
    assert isinstance(broken, _Broken)
    assert (broken.works(), broken.breaks()) == (1, None)
    cure.plan.stepped(object())
    assert [(line["id"], line["state"]) for line in lines()] == [
        ("debug", "failed"), ("gc.freeze", "failed"),
    ]  # fmt: skip
    assert lines()[0]["reason"] == "RuntimeError: two lines"


def test_nothing_is_written_before_the_process_has_trained(lines: Any) -> None:
    assert cure.plan is not None
    cure.plan.cures[0].applied(was=4, id="debug")
    assert lines() == []
    cure.plan.cures = []
    cure.plan.stepped(object())
    assert [(line["id"], line["was"]) for line in lines()] == [("debug", 4)]


def test_each_state_is_said_once_and_a_failure_stays(lines: Any) -> None:
    assert cure.plan is not None
    cure.plan.steps = 1
    broken = cure.plan.cures[0]
    for say in (broken.unavailable, broken.unavailable, broken.applied, broken.applied):
        say("no")
    broken.failed("it broke")
    broken.applied()
    assert [line["state"] for line in lines()] == ["unavailable", "applied", "failed"]


def test_a_full_disk_is_noted_and_the_job_goes_on(
    lines: Any, recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(recorder.options, "run_dir", "/dev/full")
    cure.write({"kind": "knob"})
    assert "applied" in recorder._failures
