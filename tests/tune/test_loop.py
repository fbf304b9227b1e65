"""The search on jobs whose optimum is known, with noise, failures and interruptions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tune.simulated import SimulatedJob

from brim.errors import BrimError
from brim.record.ladder import Ended, Ladder
from brim.tune.candidates import Candidate
from brim.tune.knobs import Settings
from brim.tune.loop import Tuner
from brim.tune.outcome import Outcome
from brim.tune.trials import Trials


def _tune(
    job: SimulatedJob, *, budget_s: float = 1e6, path: Path | None = None, lossy: bool = False
) -> Ladder:
    tuner = Tuner(Trials(job.run, budget_s=budget_s, path=path), job.propose, lossy=lossy)
    ended: Ended = tuner.tune()
    return tuner.ladder(["python", "train.py"], ended)


def _fates(ladder: Ladder) -> dict[str, str]:
    return {next(iter(r.settings)): r.fate for r in ladder.rejected}


FAULTY = {"host.debug-mode": 0.05, "memory.cache-flush": 0.04, "host.gc": 0.03}


@pytest.mark.parametrize("seed", range(5))
def test_three_faults_and_a_starving_loader_are_all_cured_and_the_speed_is_the_true_one(
    seed: int,
) -> None:
    job = SimulatedJob(load=0.5, faults=FAULTY, seed=seed)
    ladder = _tune(job)
    best = {"debug": False, "memory.flush": 0, "gc.freeze": True}
    assert best.items() <= ladder.settings.items()
    # 5 workers keep up, with 8 cores more do no harm
    assert 5 <= int(ladder.settings["loader.num_workers"]) <= 8
    true = job.step_s({}) / job.step_s(ladder.settings)
    assert ladder.total is not None
    assert ladder.total.low <= true <= ladder.total.high
    assert job.step_s(ladder.settings) <= 1.03 * job.compute
    assert ladder.ended == "ceiling"
    assert ladder.remaining == []


def test_the_remedy_with_the_largest_expected_gain_is_tried_first() -> None:
    ladder = _tune(SimulatedJob(load=0.5, faults=FAULTY))
    assert ladder.rungs[0].cause == "input.main-process"
    assert [r.cause for r in ladder.rungs[1:]] == list(FAULTY)


def test_a_healthy_job_is_run_once_and_nothing_is_kept() -> None:
    job = SimulatedJob()
    ladder = _tune(job)
    assert len(job.runs) == 1
    assert ladder.rungs == []
    assert ladder.settings == {}
    assert ladder.total is None
    assert ladder.ended == "ceiling"


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.06])
def test_cures_without_an_effect_are_kept_in_fewer_than_two_per_cent_of_the_trials(
    noise: float,
) -> None:
    claimed = {"host.gc": 0.2, "host.debug-mode": 0.3, "memory.cache-flush": 0.1}
    kept = tried = 0
    for seed in range(100):
        job = SimulatedJob(imagined=claimed, run_noise=noise, seed=seed)
        ladder = _tune(job)
        kept += len(ladder.rungs)
        tried += len(ladder.rungs) + len(ladder.rejected)
    assert tried >= 300
    assert kept / tried < 0.02


def test_a_gain_of_a_tenth_is_found_under_two_per_cent_of_noise_in_nine_of_ten_searches() -> None:
    found = 0
    for seed in range(50):
        job = SimulatedJob(faults={"host.gc": 0.012}, seed=seed)
        found += bool(_tune(job).rungs)
    assert found >= 45


def test_a_small_gain_of_a_knob_that_can_be_switched_needs_no_more_restarts() -> None:
    job = SimulatedJob(faults={"host.gc": 0.008}, run_noise=0.02)
    ladder = _tune(job)
    assert ladder.settings == {"gc.freeze": True}
    assert ladder.rungs[0].speed.switched
    assert [sorted(run) for run in job.runs[:3]] == [[], ["gc.freeze"], ["~gc.freeze"]]


@pytest.mark.parametrize(
    "ending", ["crashed", "hung", "out of memory", "not finite", "nothing measured"]
)
def test_a_run_that_fails_marks_its_remedy_and_the_search_goes_on(ending: str) -> None:
    job = SimulatedJob(faults=FAULTY, breaks={"debug": ending})  # type: ignore[dict-item]
    ladder = _tune(job)
    assert _fates(ladder) == {"debug": ending}
    assert "because of debug" in ladder.rejected[0].why
    assert ladder.settings == {"memory.flush": 0, "gc.freeze": True}
    assert ladder.ended == "nothing left"
    assert [f.cause for f in ladder.remaining] == ["host.debug-mode"]


def test_a_lossless_remedy_under_which_the_loss_differs_is_undone_and_named() -> None:
    job = SimulatedJob(faults=FAULTY, other_loss={"debug"})
    ladder = _tune(job)
    assert _fates(ladder)["debug"] == "loss differs"
    assert "instead of" in ladder.rejected[0].why
    assert set(ladder.settings) == {"memory.flush", "gc.freeze"}


def test_a_job_that_is_not_seeded_is_compared_as_a_whole() -> None:
    ladder = _tune(SimulatedJob(faults=FAULTY, seeded=False))
    assert set(ladder.settings) == {"debug", "memory.flush", "gc.freeze"}
    assert all("not seeded" in rung.loss for rung in ladder.rungs)


def test_a_setting_that_cannot_be_applied_is_run_once_and_says_why() -> None:
    job = SimulatedJob(faults=FAULTY, unavailable={"gc.freeze"})
    ladder = _tune(job)
    assert _fates(ladder) == {"gc.freeze": "not applied"}
    assert "there is no such thing here" in ladder.rejected[0].why


def test_a_setting_that_is_known_not_to_apply_costs_no_run() -> None:
    job = SimulatedJob(faults=FAULTY)

    def propose(outcome: Outcome, base: Settings) -> list[Candidate]:
        found = job.propose(outcome, base)
        return [replace(c, absent="it is not installed" if "debug" in c.settings else "")
                for c in found]  # fmt: skip

    tuner = Tuner(Trials(job.run, budget_s=1e6), propose)
    ladder = tuner.ladder(["x"], tuner.tune())
    assert _fates(ladder) == {"debug": "not applied"}
    assert ladder.rejected[0].why == "it is not installed"
    assert not any("debug" in run for run in job.runs)
    assert set(ladder.settings) == {"memory.flush", "gc.freeze"}


def test_a_choice_that_was_kept_is_not_overturned_by_a_less_promising_one() -> None:
    job = SimulatedJob(imagined={"compute.attention": 0.3})
    job.extra = lambda settings: 0.0 if "attention.implementation" in settings else 0.1
    assert _tune(job).settings == {"attention.implementation": "flash_attention_4"}
    tried = {str(run.get("attention.implementation")) for run in job.runs}
    assert tried == {"None", "flash_attention_4"}


def test_a_lossy_remedy_needs_permission() -> None:
    job = SimulatedJob(imagined={"compute.precision": 0.4})
    job.extra = lambda settings: 0.0 if "precision.autocast" in settings else 0.1
    assert _tune(job).rungs == []
    assert "precision.autocast" not in {id for run in job.runs for id in run}
    assert _tune(job, lossy=True).settings == {"precision.autocast": "bfloat16"}


def test_a_remedy_that_the_others_make_superfluous_is_dropped_at_the_end() -> None:
    # collecting is dear only in debug modes; it is cured first, and then has nothing to cure
    def collecting(settings: dict[str, object]) -> float:
        return 0.0 if settings.get("debug") is False or settings.get("gc.freeze") else 0.1

    job = SimulatedJob(faults={"host.debug-mode": 0.06}, imagined={"host.gc": 0.6})
    job.extra = collecting  # type: ignore[assignment]
    ladder = _tune(job)
    assert ladder.settings == {"debug": False}
    assert _fates(ladder)["gc.freeze"] == "not needed"


def test_kept_steps_are_tried_again_by_leaving_them_out() -> None:
    ladder = _tune(SimulatedJob(faults=FAULTY))
    alone = [rung.alone for rung in ladder.rungs[:-1]]
    assert all(speed is not None and speed.ratio > 1.1 for speed in alone)


class _Ctrl:
    """Ctrl-C in the run with this number."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, n: int) -> None:
        if n == self.at:
            self.at = -1
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_ctrl_c_keeps_the_best_so_far_and_the_search_goes_on_without_a_repeated_run(
    at: int, tmp_path: Path
) -> None:
    path = tmp_path / "trials.jsonl"
    whole = SimulatedJob(load=0.5, faults=FAULTY)
    expected = _tune(whole)
    job = SimulatedJob(load=0.5, faults=FAULTY, before_run=_Ctrl(at))
    first = _tune(job, path=path)
    assert first.ended == "interrupted"
    assert first.runs == at
    second = _tune(job, path=path)
    assert second.settings == expected.settings
    assert second.ended == expected.ended
    assert job.runs == whole.runs


def test_ctrl_c_in_the_very_first_run_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        _tune(SimulatedJob(before_run=_Ctrl(0)))


def test_a_finished_search_is_read_back_without_any_run(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    first = _tune(SimulatedJob(faults=FAULTY), path=path)
    job = SimulatedJob(faults=FAULTY)
    assert _tune(job, path=path) == first
    assert job.runs == []


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_log_that_is_cut_at_any_byte_costs_one_run(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    first = _tune(SimulatedJob(faults=FAULTY), path=path)
    path.write_bytes(path.read_bytes()[:-cut])
    job = SimulatedJob(faults=FAULTY)
    assert _tune(job, path=path).settings == first.settings
    assert len(job.runs) == 1


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 8])
def test_no_run_begins_that_would_not_end_within_the_budget(runs: int) -> None:
    job = SimulatedJob(load=0.5, faults=FAULTY, run_s=60.0)
    ladder = _tune(job, budget_s=60.0 * runs + 1)
    assert len(job.runs) <= runs
    assert ladder.ended == "budget"
    assert ladder.wall_s == 60.0 * len(job.runs)


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    job = SimulatedJob(load=0.5, faults=FAULTY)
    _tune(job, path=path, budget_s=35)
    before = len(job.runs)
    ladder = _tune(job, path=path)
    assert before == 3  # two in 80 % of the time, and one more of before at the end
    assert ladder.ended == "ceiling"
    assert ladder.runs == len(job.runs), "a run was made and not used"


def test_a_job_that_cannot_run_as_it_is_says_so_and_where_its_output_is() -> None:
    job = SimulatedJob(breaks={})
    job.run = lambda settings: _crash()  # type: ignore[method-assign]
    with pytest.raises(BrimError, match=r"crashed: exit code 1(.|\n)*output\.log"):
        _tune(job)


def _crash():  # type: ignore[no-untyped-def]
    return Outcome(ending="crashed", why="exit code 1", folder="runs/x")


def test_what_counts_as_noise_is_said_once_a_setting_was_run_twice() -> None:
    assert _tune(SimulatedJob()).notes == []
    (note,) = _tune(SimulatedJob(faults=FAULTY, run_noise=0.02)).notes
    assert note.startswith("runs of one setting are taken to differ by ")
    assert 1.0 < float(note.split(" by ")[1].split("%")[0]) < 5.0


def test_the_figures_of_a_rung_are_the_means_of_its_runs() -> None:
    job = SimulatedJob(faults={"host.gc": 0.1}, run_noise=0.0)
    ladder = _tune(job)
    assert ladder.before.step_s == pytest.approx(0.2)
    assert ladder.rungs[0].figures.step_s == pytest.approx(0.1)
    assert ladder.rungs[0].figures.mfu is None
    assert math.isclose(ladder.rungs[0].speed.ratio, 2.0, rel_tol=0.05)


def test_time_that_is_up_before_the_last_comparison_leaves_the_search_s_own_end() -> None:
    job = SimulatedJob(faults={"host.gc": 0.1}, run_s=10.0)
    # 80 % of it hold the two runs that decide; the two that compare before and after do not fit
    ladder = _tune(job, budget_s=25.0)
    assert ladder.ended == "ceiling"
    assert len(job.runs) == 2
    assert any("the time was up" in note for note in ladder.notes)
    assert ladder.total is not None
    assert ladder.total.pairs == 1
