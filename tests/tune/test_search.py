"""The search among the values of one knob, on costs that are known."""

from __future__ import annotations

import pytest
from tests.tune.simulated import SimulatedJob

from brim.record.ladder import Ladder
from brim.tune.candidates import Axis, Candidate
from brim.tune.knobs import Settings
from brim.tune.loop import Tuner
from brim.tune.outcome import Outcome
from brim.tune.trials import Trials

VALUES = (1, 2, 4, 8, 16, 32)


def _tune(job: SimulatedJob, start: int, knob: str = "batch.micro") -> Ladder:
    """One candidate with an axis, against a cause that is found as long as it is claimed."""

    def propose(outcome: Outcome, base: Settings) -> list[Candidate]:
        axis = Axis(knob=knob, values=VALUES)
        return [Candidate(settings={knob: start}, cause=f.cause, expected=1.5, share=f.share,
                          axis=axis) for f in outcome.findings]  # fmt: skip

    tuner = Tuner(Trials(job.run, budget_s=1e6), propose)
    ended = tuner.tune()
    return tuner.ladder(["x"], ended)


def _job(cost: dict[int, float], *, seed: int = 0, claimed: float = 0.3) -> SimulatedJob:
    """Seconds of a step by the value of the knob; without it 0.5 s."""
    job = SimulatedJob(compute=0.0, imagined={"host.launch": claimed}, run_noise=0.01, seed=seed)
    job.extra = lambda settings: cost.get(int(settings.get("batch.micro", 0)), 0.5)
    return job


@pytest.mark.parametrize("best", VALUES)
@pytest.mark.parametrize("start", [2, 4, 16])
def test_the_walk_ends_at_the_best_value_wherever_it_is(best: int, start: int) -> None:
    cost = {v: 0.1 * 1.3 ** abs(VALUES.index(v) - VALUES.index(best)) for v in VALUES}
    job = _job(cost)
    ladder = _tune(job, start)
    assert ladder.settings == {"batch.micro": best}
    tried = {run["batch.micro"] for run in job.runs if run}
    assert len(tried) <= abs(VALUES.index(best) - VALUES.index(start)) + 3


def test_the_rung_has_the_speed_of_the_value_that_was_kept_against_before() -> None:
    ladder = _tune(_job({2: 0.25, 4: 0.125, 8: 0.2}), 2)
    (rung,) = ladder.rungs
    assert rung.settings == {"batch.micro": 4}
    assert rung.speed.ratio == pytest.approx(4.0, rel=0.05)
    assert [r.settings for r in ladder.rejected] == [{"batch.micro": 8}]


def test_a_cause_that_is_gone_ends_the_walk() -> None:
    job = _job({2: 0.2, 4: 0.1})
    found = job._findings
    job._findings = lambda s: [] if s.get("batch.micro") == 2 else found(s)  # type: ignore[method-assign]
    ladder = _tune(job, 2)
    assert ladder.settings == {"batch.micro": 2}
    assert ladder.ended == "ceiling"
    assert {"batch.micro": 4} not in job.runs


def test_memory_that_runs_out_ends_the_walk_in_that_direction() -> None:
    job = _job({2: 0.3, 4: 0.2, 8: 0.1})
    run = job.run

    def limited(settings: Settings, alternate: Settings | None = None) -> Outcome:
        outcome = run(settings, alternate)
        if settings.get("batch.micro", 0) in (8, 16, 32):
            return Outcome(ending="out of memory", why="CUDA out of memory", wall_s=10.0)
        return outcome

    job.run = limited  # type: ignore[method-assign]
    ladder = _tune(job, 2)
    assert ladder.settings == {"batch.micro": 4}
    assert [(r.settings["batch.micro"], r.fate) for r in ladder.rejected] == [(8, "out of memory")]
    assert {"batch.micro": 16} not in job.runs


def test_a_value_that_the_walk_has_tried_is_not_proposed_again() -> None:
    job = _job({2: 0.2, 4: 0.3, 1: 0.3})
    ladder = _tune(job, 2)
    assert ladder.settings == {"batch.micro": 2}
    tried = [r.settings["batch.micro"] for r in ladder.rejected]
    assert sorted(tried) == [1, 4]


def test_a_remedy_that_failed_is_tried_again_when_its_cause_has_doubled() -> None:
    # the loader hides what collecting costs; once it keeps up, collecting is half of the step
    def collecting(settings: Settings) -> float:
        hidden = "loader.num_workers" not in settings
        return 0.0 if settings.get("gc.freeze") or hidden else 0.1

    job = SimulatedJob(load=0.5, workers=1)
    job.extra = collecting
    plain = job._findings

    def findings(settings: Settings) -> list:
        share = 0.5 if "loader.num_workers" in settings else 0.06
        job.imagined = {} if settings.get("gc.freeze") else {"host.gc": share}
        return sorted(plain(settings), key=lambda f: f.cause)  # gc first

    job._findings = findings  # type: ignore[method-assign]
    tuner = Tuner(
        Trials(job.run, budget_s=1e6),
        lambda outcome, base: sorted(job.propose(outcome, base), key=lambda c: c.cause),
    )
    ended = tuner.tune()
    ladder = tuner.ladder(["x"], ended)
    assert ladder.settings["gc.freeze"] is True
    assert "gc.freeze" in {next(iter(r.settings)) for r in ladder.rejected}
