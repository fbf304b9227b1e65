"""What keeps the training thread from training, and what only looks so."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import (
    FORWARD,
    MAIN,
    OWN,
    SITE,
    TORCH,
    TRAIN,
    evidence,
    machine,
    process,
    seen,
    stack,
    steps,
)

from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import Evidence, gather
from brim.diagnose.live.hosts import clues, describe, unpriced_modes
from brim.diagnose.live.window import choose
from brim.diagnose.remedies import for_cause


def _clues(found: Evidence, *, memory_stall: float | None = None, **host: Any) -> list[Clue]:
    return clues(found, machine(**host), memory_stall=memory_stall)


def _one(found: Evidence, **rest: Any) -> Clue:
    (clue,) = _clues(found, **rest)
    return clue


def test_a_loop_that_computes_gives_no_clue() -> None:
    assert _clues(evidence(steps(100, samples=seen(("1", 0.1))))) == []


# ---------------------------------------------------------------------------------- collections


def test_automatic_collections_are_the_interpreters_and_asked_for_ones_the_programs() -> None:
    automatic = _one(evidence(steps(10, gc=0.03, gc_n=2, gc_generation_2=1)))
    assert (automatic.cause, automatic.seconds) == ("host.gc", pytest.approx(0.3))
    assert "20 collections (10 of the oldest generation)" in automatic.evidence[0]
    reads: dict[str, tuple[int, float]] = {f"collect|{TRAIN}:70": (1, 0.0), "read|x.py:1": (9, 0.0)}
    asked = _one(evidence(steps(10, collect=0.03, collect_n=1, reads=reads)))
    assert (asked.cause, asked.seconds) == ("memory.cache-flush", pytest.approx(0.3))
    assert asked.where is not None
    assert (asked.where.file, asked.where.line) == (TRAIN, 70)


def test_emptying_the_devices_cache_is_the_same_cause_and_says_what_it_is() -> None:
    clue = _one(evidence(steps(10, flush=0.02, flush_n=1)))
    assert clue.cause == "memory.cache-flush"
    assert clue.evidence == (
        "torch.cuda.empty_cache() was called 10 times and took 200 ms; the memory is allocated "
        "anew each time",
    )


# ---------------------------------------------------------------------------------- the lock

THIEF = stack("7", (TRAIN, "Uploader.crc", 80, "for b in data:"), phase="thief")


def test_a_thread_that_holds_the_interpreter_lock_is_named_with_its_line() -> None:
    lines = steps(10, samples={"1": (4, 0.1, 0.05, 0.04), "7": (2, 0.04, 0.0, 0.0)})
    clue = _one(evidence(lines, THIEF))
    assert (clue.cause, clue.seconds) == ("host.gil", pytest.approx(0.4))
    assert clue.where is not None
    assert (clue.where.function, clue.where.line) == ("Uploader.crc", 80)


def test_a_thread_beside_a_loop_that_never_waited_for_the_lock_is_innocent() -> None:
    lines = steps(10, samples={"1": (4, 0.1, 0.1, 0.0), "7": (2, 0.04, 0.0, 0.0)})
    assert _clues(evidence(lines, THIEF)) == []


# ---------------------------------------------------------------------------------- compilation


def test_compilation_in_the_steady_state_says_in_how_many_steps() -> None:
    lines = steps(10)
    for line in lines[::3]:
        line.compile, line.compile_n = 0.05, 2
    clue = _one(evidence(lines))
    assert (clue.cause, clue.seconds) == ("host.recompile", pytest.approx(0.2))
    assert "in 4 of 10 steps" in clue.evidence[0]
    assert clue.evidence[1] == "torch.compile compiled 8 times"


def test_compilation_of_the_warm_up_is_no_fault() -> None:
    lines = steps(30, samples=seen(("1", 0.1)))
    lines[0].compile, lines[0].compile_n, lines[0].wall = 20.0, 3, 20.1
    found = process(lines)
    assert _clues(gather(found, choose(found))) == []


def test_compilation_seen_only_in_stacks_counts_as_well() -> None:
    triton = stack(
        "8", ("/x/triton/compiler/compiler.py", "compile"), (TRAIN, "step", 21, ""), MAIN
    )
    clue = _one(evidence(steps(10, samples=seen(("1", 0.05), ("8", 0.05))), triton))
    assert (clue.cause, clue.seconds) == ("host.recompile", pytest.approx(0.5))
    assert "in 10 of 10 steps" in clue.evidence[0]
    assert clue.where is not None
    assert clue.where.line == 21


# ---------------------------------------------------------------------------------- debug modes

MODE = "torch.autograd.set_detect_anomaly(True)"
TRACER = f"sys.settrace(tracer {TRAIN}:9)"


def test_what_a_debug_mode_costs_is_measured_by_the_steps_without_it() -> None:
    lines = steps(20, debug=[MODE])
    for line in lines[10:14]:
        line.probe, line.wall = 1, 0.04
    clue = _one(evidence(lines))
    assert (clue.cause, clue.confidence) == ("host.debug-mode", "high")
    assert clue.seconds == pytest.approx(0.06 * 16)
    assert "100 ms with it and 40 ms without" in clue.evidence[1]


def test_a_mode_that_costs_nothing_takes_no_time() -> None:
    lines = steps(20, debug=["torch.use_deterministic_algorithms(warn_only=True)"])
    for line in lines[10:14]:
        line.probe = 1
    assert _one(evidence(lines)).seconds == pytest.approx(0.0, abs=1e-9)


def test_without_probes_the_samples_in_the_tracer_are_a_lower_bound() -> None:
    tracer = stack("8", (TRAIN, "tracer", 11, "count += 1"), *FORWARD.frames)
    clue = _one(evidence(steps(10, debug=[TRACER], samples=seen(("1", 0.07), ("8", 0.03))), tracer))
    assert (clue.confidence, clue.seconds) == ("medium", pytest.approx(0.3))
    assert clue.where is not None
    assert (clue.where.file, clue.where.line) == (TRAIN, 9)


def _profiled(at: set[int]) -> list[Any]:
    """Steps of 100 ms; those in ``at`` begin with the program's profiler on and take 150."""
    lines = steps(30)
    for position in at:
        lines[position].debug, lines[position].wall = ["torch.profiler"], 0.15
    return lines


def test_a_profiler_that_the_program_switches_itself_is_priced_by_its_steps() -> None:
    # five steps in ten, and the one before each five, in which it is switched on
    lines = _profiled({*range(5, 10), *range(15, 20), *range(25, 30)})
    clue = _one(evidence(lines))
    assert (clue.cause, clue.confidence) == ("host.debug-mode", "high")
    assert clue.seconds == pytest.approx(0.05 * 14, rel=0.05)
    assert "steps with it and 100 ms in 12 steps without" in clue.evidence[1]


def test_brim_s_probes_say_nothing_about_a_mode_that_it_leaves_on() -> None:
    lines = steps(20, debug=["tracemalloc"])
    for line in lines[10:14]:
        line.probe = 1
    clue = _one(evidence(lines))
    assert (clue.confidence, clue.seconds) == ("medium", 0.0)
    assert unpriced_modes(evidence(lines)) == ["tracemalloc"]


def test_a_profiler_that_is_always_on_is_priced_by_the_steps_in_which_it_pauses() -> None:
    lines = steps(40, debug=["torch.profiler"], samples=seen(("1", 0.1)))
    for line in lines[10:16]:
        line.probe, line.wall = 2, 0.06
    clue = _one(evidence(lines))
    assert (clue.cause, clue.confidence) == ("host.debug-mode", "high")
    assert clue.seconds == pytest.approx(34 * 0.04)
    assert unpriced_modes(evidence(lines)) == []


def test_what_a_profiler_writes_out_is_seen_in_samples_and_is_its_price() -> None:
    export = stack("8", (f"{TORCH}/autograd/profiler.py", "export_chrome_trace"), *FORWARD.frames)
    lines = steps(20, debug=["torch.profiler"], samples=seen(("1", 0.06), ("8", 0.04)))
    found = evidence(lines, export)
    assert _one(found).seconds == pytest.approx(0.8)
    assert unpriced_modes(found) == []


@pytest.mark.parametrize(
    ("variables", "modes"),
    [
        ({"PYTHONMALLOC": "debug"}, ["PYTHONMALLOC=debug"]),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, ["TORCH_DISTRIBUTED_DEBUG=DETAIL"]),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO", "PYTHONDEVMODE": ""}, []),
    ],
)
def test_modes_that_the_environment_sets_are_named_without_a_price(
    variables: dict[str, str], modes: list[str]
) -> None:
    assert unpriced_modes(evidence(steps(10, samples=seen(("1", 0.1))), env=variables)) == modes


# ---------------------------------------------------------------------------------- periodic work

SAVE = stack("8", (f"{SITE}/safetensors/torch.py", "save_file"), (TRAIN, "keep", 55, ""), MAIN)
LOG = stack("9", (f"{SITE}/matplotlib/figure.py", "savefig"), (TRAIN, "plot", 66, ""), MAIN)
EVALUATE = stack("10", *FORWARD.frames[:-1], (TRAIN, "evaluate", 60, "model(x)"), MAIN)


@pytest.mark.parametrize(
    ("number", "doing", "line"),
    [("8", "saving (checkpoints, images)", 55), ("9", "logging", 66), ("10", "evaluation", 30)],
)
def test_work_that_stops_training_now_and_then_says_what_it_is_and_how_often(
    number: str, doing: str, line: int
) -> None:
    lines = steps(60, samples=seen(("1", 0.1)))
    for position in range(9, 60, 10):
        lines[position].samples = seen(("1", 0.1), (number, 0.4))
        lines[position].wall = 0.5
    clue = _one(evidence(lines, SAVE, LOG, EVALUATE))
    assert clue.cause == "host.periodic"
    assert clue.seconds == pytest.approx(6 * 0.4, rel=0.01)
    assert f"{doing} took" in clue.evidence[0]
    assert "every 10 steps" in clue.evidence[0]
    assert clue.where is not None
    assert clue.where.line == line


def test_work_in_every_step_is_not_called_periodic_in_words() -> None:
    clue = _one(evidence(steps(20, samples=seen(("1", 0.08), ("9", 0.02))), LOG))
    assert "in every step" in clue.evidence[0]


def test_a_part_of_every_step_that_a_sample_hits_now_and_then_has_no_period() -> None:
    lines = steps(60, samples=seen(("1", 0.1)))
    for position in range(0, 60, 4):
        lines[position].samples = seen(("9", 0.1))
    assert "spread over all steps" in _one(evidence(lines, LOG)).evidence[0]


def test_copies_of_the_weights_are_to_be_averaged_in_place() -> None:
    copies = stack(
        "8", (f"{TORCH}/nn/parameter.py", "Parameter.__deepcopy__"),
        ("/usr/lib/python3.12/copy.py", "deepcopy"), (TRAIN, "keep", 20, ""), MAIN,
    )  # fmt: skip
    clue = _one(evidence(steps(20, samples=seen(("1", 0.08), ("8", 0.02))), copies))
    assert "copying or averaging the weights took 400 ms" in clue.evidence[0]
    assert for_cause(clue.cause, clue.facts)[0].id == "average-in-place"


def test_work_without_a_period_gives_the_number_of_steps() -> None:
    lines = steps(60, samples=seen(("1", 0.1)))
    for position in (3, 30, 44):
        lines[position].samples = seen(("9", 0.1))
    assert "in 3 of 60 steps" in _one(evidence(lines, LOG)).evidence[0]


# ---------------------------------------------------------------------------------- the machine


@pytest.mark.parametrize(
    ("delay", "host", "named"),
    [
        (0.03, {"usable": 1.0}, True),
        (0.03, {"throttled": 0.2}, True),
        (0.03, {}, False),  # a busy machine, and no limit of the job
        (0.005, {"usable": 1.0}, False),  # limited, and it costs nothing
        (None, {"usable": 1.0}, False),  # the kernel does not say
    ],
)
def test_a_thread_that_waits_for_a_core_under_a_limit_is_the_limits_fault(
    delay: float | None, host: dict[str, float], named: bool
) -> None:
    lines = steps(10, run_delay=delay, samples=seen(("1", 0.1)))
    found = [c.cause for c in _clues(evidence(lines), **host)]
    assert found == ["input.cpu-limit"] * named


def test_more_compute_threads_than_cores_cost_what_the_training_thread_waits_for_them() -> None:
    waits = {"1": (1, 0.1, 0.02, 0.0)}  # of 0.1 s of computing 0.02 s on a core
    found = evidence(steps(10, run_delay=0.04, samples=waits), threads=24)
    (clue,) = _clues(found, machine=2, usable=2.0)
    assert (clue.cause, clue.seconds) == ("input.oversubscription", pytest.approx(0.8))
    assert for_cause(clue.cause, clue.facts)[0].id == "threads-as-cores"


def test_on_a_device_the_thread_may_be_off_its_core_for_the_devices_sake() -> None:
    waits = {"1": (1, 0.1, 0.02, 0.0)}
    found = evidence(steps(10, run_delay=0.04, samples=waits), threads=24, device={"name": "H200"})
    (clue,) = _clues(found, machine=2, usable=2.0)
    assert clue.seconds == pytest.approx(0.4)


@pytest.mark.parametrize(("stall", "named"), [(None, False), (0.05, False), (0.3, True)])
def test_memory_is_short_when_tasks_wait_for_it_a_tenth_of_the_time(
    stall: float | None, named: bool
) -> None:
    lines = steps(10, samples=seen(("1", 0.1)))
    found = _clues(evidence(lines), memory_stall=stall)
    assert [c.cause for c in found] == ["memory.pressure"] * named


def test_a_site_is_described_by_function_and_place() -> None:
    found = evidence(steps(1, samples=seen(("3", 0.1))))
    assert describe(found.sites[0]) == "shuffle_things (me/train.py) at me/train.py:50"
    assert OWN.frames[0].line == 50
