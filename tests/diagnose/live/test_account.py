"""All ranks' windows as one diagnosis."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.diagnose.live.records import TRAIN, process, run, seen, stack, steps

from brim.diagnose.causes import CAUSES, COMPUTE, UNKNOWN
from brim.diagnose.live.account import Rank, close, diagnose_run, look, part_of
from brim.record.devices import About, HostSample, Recording
from brim.record.findings import Diagnosis, Entry, check, encode
from brim.record.run import Run
from brim.record.steps import Footer, Process, Step
from brim.record.workers import WorkerLine

WORKS = seen(("1", 0.1))


def _diagnose(of: Run) -> Diagnosis:
    return check(diagnose_run(of, look(of, warmup=0)))


def _shares(diagnosis: Diagnosis) -> dict[str, float]:
    return {e.cause: e.share for e in diagnosis.account}


# ---------------------------------------------------------------------------------- verdicts


def test_a_loop_that_computes_is_healthy_and_has_no_findings() -> None:
    found = _diagnose(run(process(steps(50, samples=WORKS), footer=Footer())))
    assert found.findings == []
    assert found.verdict.startswith("Healthy: the training thread computes 100% of the time")
    assert _shares(found) == {COMPUTE: pytest.approx(1.0)}
    assert found.metrics["step_s"] == pytest.approx(0.1)
    assert found.notes == []


def test_a_loop_whose_time_cannot_be_told_apart_is_not_called_healthy() -> None:
    found = _diagnose(run(process(steps(50), footer=Footer())))
    assert found.findings == []
    assert found.verdict == ""
    assert _shares(found) == {UNKNOWN: pytest.approx(1.0)}


def test_a_run_with_a_mode_whose_price_is_not_known_is_not_called_healthy() -> None:
    lines = steps(50, samples=WORKS, debug=["tracemalloc"])
    found = _diagnose(run(process(lines, footer=Footer())))
    assert (found.findings, found.verdict) == ([], "")
    assert "tracemalloc is on in all steps" in found.notes[0]


def test_time_that_no_rule_knows_is_said_to_be_somewhere() -> None:
    found = _diagnose(
        run(process(steps(50, samples=seen(("1", 0.06), ("3", 0.04))), footer=Footer()))
    )
    (note,) = found.notes
    assert note.startswith("40.0 % of the time the training thread is in Python that no rule knows")
    assert note.endswith("shuffle_things (me/train.py) at me/train.py:50")


@pytest.mark.parametrize(("wait", "reported"), [(0.004, False), (0.006, True)])
def test_a_cause_is_a_finding_from_five_percent_on(wait: float, reported: bool) -> None:
    found = _diagnose(
        run(process(steps(50, input_wait=wait, input_main=wait, input_cpu=wait, samples=WORKS)))
    )
    assert [f.cause for f in found.findings] == ["input.main-process"] * reported
    assert _shares(found)["input.main-process"] == pytest.approx(wait / 0.1)


def test_a_price_that_everybody_pays_is_in_the_account_and_no_finding_below_its_own_limit() -> None:
    lines = steps(50, input_wait=0.007, batches=1, ready=3, samples=WORKS)
    found = _diagnose(run(process(lines)))
    assert found.findings == []
    assert _shares(found)["input.workers"] == pytest.approx(0.07)


def test_findings_come_largest_first_with_evidence_gain_and_remedies() -> None:
    found = _diagnose(
        run(process(steps(50, gc=0.01, input_wait=0.05, input_main=0.05, input_cpu=0.05,
                          samples=WORKS)))
    )  # fmt: skip
    assert [f.cause for f in found.findings] == ["input.main-process", "host.gc"]
    for finding in found.findings:
        assert finding.evidence
        assert finding.remedies
        assert 1 < finding.gain[0] <= finding.gain[1]


def test_the_mean_step_is_divided_so_that_rare_long_steps_are_in_it() -> None:
    lines = steps(50, samples=WORKS)
    lines[25].wall, lines[25].save, lines[25].save_n, lines[25].samples = 2.6, 2.5, 1, {}
    found = _diagnose(run(process(lines)))
    assert _shares(found)["host.periodic"] == pytest.approx(2.5 / 7.5)


def test_a_long_first_batch_is_added_to_what_was_seen_once() -> None:
    lines = steps(51, samples=WORKS)
    lines[0].input_first = lines[0].input_cpu = 5.0
    lines[0].wall = 5.1
    of = run(process(lines))
    found = check(diagnose_run(of, look(of, warmup=1)))
    assert [f.cause for f in found.findings] == ["input.startup"]
    assert _shares(found)["input.startup"] == pytest.approx(5 / 10)
    assert _shares(found)[COMPUTE] == pytest.approx(5 / 10)


def test_first_batches_of_every_epoch_lie_in_the_window_and_are_counted_once() -> None:
    """They are the same cause as a long start, but no second of them lies outside the window."""
    lines = steps(50, input_wait=0.03, input_first=0.03, epochs=1, samples=WORKS)
    found = _diagnose(run(process(lines)))
    assert [f.cause for f in found.findings] == ["input.startup"]
    assert _shares(found) == {
        "input.startup": pytest.approx(0.3),
        COMPUTE: pytest.approx(0.7),
    }


def test_padding_is_taken_from_computing_and_is_busy_but_lost() -> None:
    lines = steps(50, tokens=100, pad_tokens=30, counted_batches=1, batches=1, samples=WORKS)
    found = _diagnose(run(process(lines)))
    assert [(e.part, e.cause) for e in found.account] == [
        ("useful", COMPUTE), ("busy-lost", "compute.padding"),
    ]  # fmt: skip
    assert _shares(found)["compute.padding"] == pytest.approx(0.3)
    assert found.metrics["pad_share"] == pytest.approx(0.3)
    assert found.metrics["tokens_per_s"] == pytest.approx(700)


def test_two_ranks_share_one_account() -> None:
    waits = process(steps(50, input_wait=0.1, input_main=0.1, input_cpu=0.1), rank=0)
    works = process(steps(50, samples=WORKS), rank=1)
    found = _diagnose(run(waits, works))
    assert found.window.ranks == 2
    assert _shares(found)["input.main-process"] == pytest.approx(0.5)


# ---------------------------------------------------------------------------------- what is said


def test_a_killed_job_says_that_its_recording_was_cut_off() -> None:
    assert any("cut off" in n for n in _diagnose(run(process(steps(50, samples=WORKS)))).notes)


def test_a_hook_that_failed_and_an_exit_code_are_said() -> None:
    of = run(process(steps(50, samples=WORKS), footer=Footer(failures={"gc": "x", "save": "y"})))
    of.info.exit_code = 3
    notes = _diagnose(of).notes
    assert "the job ended with exit code 3" in notes
    assert any("gc, save" in n for n in notes)


def test_a_run_in_which_nothing_trained_is_unknown_and_says_so() -> None:
    of = run()
    of.info.exit_code = 2
    found = _diagnose(of)
    assert _shares(found) == {UNKNOWN: 1.0}
    assert "no process of the command trained" in found.verdict
    assert "the job ended with exit code 2" in found.notes


def test_few_steps_are_said_to_be_rough() -> None:
    assert any("rough" in n for n in _diagnose(run(process(steps(5, samples=WORKS)))).notes)


# ---------------------------------------------------------------------------------- the machine


def _recording(**fields: Any) -> Recording:
    about = About(t=0, host="h", backend="none", period_s=1.0)
    host = [HostSample(t=n, mono=n, interval_s=1.0, **fields) for n in range(5)]
    return Recording(about=about, samples=[], host=host, notes=[])


def test_host_samples_without_a_reading_are_absent_and_not_zero() -> None:
    of = run(process(steps(50, samples=WORKS)), recording=_recording())
    assert _diagnose(of).findings == []


def test_memory_pressure_comes_from_the_hosts_own_figures() -> None:
    stalled = _recording(psi={"memory.some": 0.4}, swap_in_bytes_s=2e6)
    of = run(process(steps(50, samples=WORKS)), recording=stalled)
    assert [f.cause for f in _diagnose(of).findings] == ["memory.pressure"]


def test_a_neighbours_memory_stalls_are_not_the_jobs_where_memory_is_plenty() -> None:
    stalled = _recording(psi={"memory.some": 0.4}, memory_available_bytes=18 << 30)
    of = run(process(steps(50, samples=WORKS)), recording=stalled)
    assert _diagnose(of).findings == []


def test_a_cgroups_throttling_reaches_the_rules() -> None:
    of = run(
        process(steps(50, input_wait=0.06, batches=1, samples=WORKS)),
        recording=_recording(throttled=0.5),
        workers={0: [WorkerLine(pid=9, workers=1, t=t, wall=1, getitem=1, thread_cpu=1, cpu=1,
                                fetches=1, samples=1, cores=8, running=1, threads=1)
                     for t in range(5)]},
    )  # fmt: skip
    assert [f.cause for f in _diagnose(of).findings] == ["input.cpu-limit"]


# ---------------------------------------------------------------------------------- the rules


def test_every_cause_of_the_list_has_its_part_of_the_account() -> None:
    parts = {cause: part_of(cause) for cause in CAUSES}
    assert set(parts.values()) == {"idle", "busy-lost", "busy-not-computing"}
    assert parts["comm.exposed"] == "busy-not-computing"
    assert parts["compute.padding"] == "busy-lost"
    assert parts["transfer.pageable"] == "idle"
    assert (part_of(COMPUTE), part_of(UNKNOWN)) == ("useful", "unknown")


def test_shares_are_closed_to_exactly_one_by_the_largest() -> None:
    thirds = [Entry(part="idle", cause=c, share=0.1) for c in ("input.workers", "host.gc")]
    closed = close([Entry(part="useful", cause=COMPUTE, share=0.7999999), *thirds])
    assert math.fsum(e.share for e in closed) == 1.0
    assert close([])[0].cause == UNKNOWN


_SECONDS = st.floats(0, 3, allow_subnormal=False)
_FLOATS = [
    "input_wait", "input_cpu", "input_main", "input_iter", "input_first", "input_shutdown",
    "rebuild", "backward", "optimizer", "evaluation", "save", "compile", "comm", "gc", "collect",
    "flush", "own", "cpu", "getitem", "collate",
]  # fmt: skip
_COUNTS = [
    "batches", "ready", "epochs", "worker_starts", "backward_n", "evaluation_n", "save_n", "comm_n",
    "compile_n", "synced_backwards", "gc_n", "collect_n", "flush_n", "tokens", "counted_batches",
]  # fmt: skip


@st.composite
def a_process(draw: st.DrawFn, rank: int) -> Process:
    """Records as no job would write them: any field may be anything."""
    rows, t = [], 0.0
    for n in range(draw(st.integers(0, 6))):
        wall = draw(st.floats(1e-4, 3, allow_subnormal=False))
        t += wall
        chosen = draw(st.lists(st.sampled_from(_FLOATS), unique=True, max_size=6))
        counted = draw(st.lists(st.sampled_from(_COUNTS), unique=True, max_size=5))
        fields: dict[str, Any] = {name: draw(_SECONDS) for name in chosen}
        fields |= {name: draw(st.integers(0, 9)) for name in counted}
        fields["pad_tokens"] = draw(st.integers(0, fields.get("tokens", 0)))
        samples = draw(
            st.dictionaries(
                st.sampled_from("1279"),
                st.tuples(st.integers(1, 9), _SECONDS, _SECONDS, _SECONDS),
                max_size=3,
            )
        )
        clock = draw(st.sampled_from(["opt0", "opt0", "opt1", "loader", "exit"]))
        debug = draw(st.sampled_from([[], ["torch.profiler"]]))
        delay = draw(st.none() | _SECONDS)
        rows.append(Step(n=n, t=t, wall=wall, clock=clock, samples=samples, debug=debug,
                         run_delay=delay, **fields))  # fmt: skip
    return process(rows, THIEF, rank=rank, footer=draw(st.none() | st.just(Footer())))


THIEF = stack("9", (TRAIN, "hold", 80, "x"), phase="thief")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(a_process(0), a_process(1)), st.booleans())
def test_the_account_sums_to_one_and_nothing_is_negative_whatever_was_recorded(
    processes: tuple[Process, Process], both: bool
) -> None:
    of = run(*processes[: 1 + both])
    found = look(of)
    diagnosis = diagnose_run(of, found)
    assert math.fsum(e.share for e in diagnosis.account) == pytest.approx(1.0, abs=1e-9)
    assert all(0 <= e.share <= 1 + 1e-9 for e in diagnosis.account)
    shares = [f.share for f in diagnosis.findings]
    assert shares == sorted(shares, reverse=True)
    assert len({f.cause for f in diagnosis.findings}) == len(shares)
    for finding in diagnosis.findings:
        assert finding.cause in CAUSES
        assert 0.05 <= finding.share <= 1 + 1e-9
        assert 1 <= finding.gain[0] <= finding.gain[1]
    assert all(isinstance(r, Rank) for r in found)
    encode(check(diagnosis))
