"""Step records: reading what a killed job left, merging lines, choosing the loop's clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.record.steps import Step, merge, read_process, read_stacks, regular

PATHS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

HEADER = {"kind": "header", "pid": 7, "rank": 0, "versions": {"torch": "2.13.0"}, "device": None}
FOOTER = {"kind": "footer", "why": "measured", "versions": {"torch": "2.13.0", "trl": "1"}}
STACK = {"id": "1", "phase": "backward", "frames": [["/a/train.py", "main", 3, "loss.backward()"]]}


def _write(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "steps.rank0.7.jsonl"
    path.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in records))
    return path


def _step(n: int, **fields: Any) -> dict[str, Any]:
    return {"n": n, "t": float(n), "wall": 1.0, "clock": "opt0", **fields}


# ---------------------------------------------------------------------------------- reading


@PATHS
@given(data=st.data())
def test_a_process_killed_at_any_byte_keeps_its_whole_steps(
    data: st.DataObject, tmp_path: Path
) -> None:
    path = _write(tmp_path, HEADER, *[_step(n, samples={"1": [1, 1, 1, 0]}) for n in range(4)])
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    process = read_process(path)
    lines = whole[:cut].count(b"\n")
    if lines == 0:
        assert process is None
    else:
        assert process is not None
        assert [s.n for s in process.steps] == list(range(lines - 1))
        assert process.footer is None


def test_versions_and_device_of_the_end_win_over_those_of_the_start(tmp_path: Path) -> None:
    process = read_process(_write(tmp_path, HEADER, _step(0), {**FOOTER, "device": {"name": "L4"}}))
    assert process is not None
    assert process.versions == {"torch": "2.13.0", "trl": "1"}
    assert process.device == {"name": "L4"}


def test_without_a_footer_the_header_serves(tmp_path: Path) -> None:
    process = read_process(_write(tmp_path, HEADER, _step(0)))
    assert process is not None
    assert process.versions == {"torch": "2.13.0"}
    assert process.device is None


def test_a_step_line_of_another_shape_is_left_out(tmp_path: Path) -> None:
    process = read_process(_write(tmp_path, HEADER, _step(0), _step(1, wall="long"), _step(2)))
    assert process is not None
    assert [s.n for s in process.steps] == [0, 2]


def test_stacks_are_found_beside_the_steps_and_workers_stacks_carry_their_process(
    tmp_path: Path,
) -> None:
    path = _write(tmp_path, HEADER, _step(0))
    (tmp_path / "stacks.rank0.7.jsonl").write_text(json.dumps(STACK) + "\n")
    (tmp_path / "stacks.workers.rank0.jsonl").write_text(json.dumps({**STACK, "pid": 9}) + "\n")
    process = read_process(path)
    assert process is not None
    frame = process.stacks["1"].frames[0]
    assert (frame.file, frame.function, frame.line) == ("/a/train.py", "main", 3)
    assert set(read_stacks(tmp_path / "stacks.workers.rank0.jsonl")) == {"9:1"}
    assert read_stacks(tmp_path / "absent.jsonl") == {}


# ---------------------------------------------------------------------------------- merging

_SUMS = [f.name for f in msgspec.structs.fields(Step) if f.type in (int, float)]
_NOT_SUMS = {"n", "t", "profiled", "probe", "longest"}
_NUMBERS = st.integers(0, 1000)
_STEPS = st.builds(
    Step,
    **dict.fromkeys(_SUMS, _NUMBERS),
    run_delay=st.none() | _NUMBERS,
    debug=st.lists(st.sampled_from(["a", "b"]), max_size=2),
    reads=st.dictionaries(st.sampled_from("xyz"), st.tuples(_NUMBERS, _NUMBERS), max_size=3),
    samples=st.dictionaries(
        st.sampled_from("123"), st.tuples(_NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS), max_size=3
    ),
)


@given(st.lists(_STEPS, min_size=1, max_size=5))
def test_merged_lines_are_the_sum_of_their_fields(steps: list[Step]) -> None:
    before = [msgspec.json.encode(s) for s in steps]
    total = merge(steps)
    for name in set(_SUMS) - _NOT_SUMS:
        assert getattr(total, name) == sum(getattr(s, name) for s in steps), name
    assert (total.n, total.t, total.clock) == (steps[-1].n, steps[-1].t, steps[-1].clock)
    assert total.longest == max(s.longest for s in steps)
    known = [s.run_delay for s in steps if s.run_delay is not None]
    assert total.run_delay == (sum(known) if known else None)
    for key in {k for s in steps for k in s.samples}:
        columns = zip(*[s.samples[key] for s in steps if key in s.samples], strict=True)
        assert tuple(total.samples[key]) == tuple(sum(c) for c in columns)
    assert [msgspec.json.encode(s) for s in steps] == before, "merging changed its input"


@given(st.lists(_STEPS, min_size=3, max_size=6), st.data())
def test_merging_is_associative(steps: list[Step], data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(steps) - 1))
    halves = merge([merge(steps[:at]), merge(steps[at:])])
    assert msgspec.structs.asdict(halves) | {"debug": None} == (
        msgspec.structs.asdict(merge(steps)) | {"debug": None}
    )


def test_a_step_profiled_in_part_counts_as_profiled() -> None:
    assert merge([Step(profiled=1), Step()]).profiled == 1
    assert merge([Step(probe=1), Step()]).probe == 1


# ---------------------------------------------------------------------------------- the clock


def _ticks(*pairs: tuple[str, float]) -> list[Step]:
    """Lines by (clock, wall)."""
    steps, t = [], 0.0
    for n, (clock, wall) in enumerate(pairs):
        t += wall
        steps.append(Step(n=n, t=t, wall=wall, clock=clock))
    return steps


def test_one_optimizer_is_the_clock_and_batches_between_its_steps_are_part_of_them() -> None:
    lines = _ticks(*[("loader", 0.1), ("opt0", 0.4)] * 5)
    clock, steps = regular(lines)
    assert clock == "opt0"
    assert [round(s.wall, 6) for s in steps] == [0.5] * 5


def test_with_accumulation_the_steps_are_the_optimizers_not_the_backward_passes() -> None:
    clock, steps = regular(_ticks(*[("backward", 0.1)] * 3, *[("opt0", 0.4)] * 6))
    assert clock == "opt0"
    assert steps[0].wall == pytest.approx(0.7)


@pytest.mark.parametrize("order", [("opt0", "opt1"), ("opt1", "opt0")])
def test_a_critic_that_steps_five_times_for_one_step_of_the_generator_is_no_clock(
    order: tuple[str, str],
) -> None:
    critic, generator = order
    clock, steps = regular(_ticks(*([(critic, 0.1)] * 5 + [(generator, 0.2)]) * 10))
    assert clock == generator
    assert [round(s.wall, 6) for s in steps] == [0.7] * 10


def test_of_two_optimizers_that_step_once_an_iteration_one_is_the_clock_and_nothing_is_lost() -> (
    None
):
    lines = _ticks(*[("opt0", 0.1), ("opt1", 0.3)] * 8)
    clock, steps = regular(lines)
    assert clock in ("opt0", "opt1")
    assert len(steps) == 8
    assert sum(s.wall for s in steps) == pytest.approx(3.2 if clock == "opt1" else 2.9)


def test_an_optimizer_that_steps_once_in_twenty_is_no_clock() -> None:
    clock, steps = regular(_ticks(*([("opt0", 0.1)] * 20 + [("opt1", 0.1)]) * 4))
    assert clock == "opt0"
    assert len(steps) == 80


def test_an_uneven_optimizer_loses_against_an_even_one() -> None:
    even = [("opt0", 0.1), ("opt0", 0.1), ("opt0", 0.1)]
    lines = _ticks(*even, ("opt1", 0.0), *even, *even, ("opt1", 0.0), ("opt1", 0.0), *even)
    assert regular(lines)[0] == "opt0"


@pytest.mark.parametrize(
    ("lines", "clock", "number"),
    [
        ([("loader", 0.1)] * 4, "loader", 4),
        ([("backward", 0.1)] * 4, "backward", 4),
        ([("loader", 0.1)] * 2 + [("exit", 0.3)], "exit", 1),  # too few to be a rhythm
        ([("opt0", 0.1)] * 2 + [("loader", 0.1)] * 3, "loader", 3),
        ([], "exit", 0),
    ],
)
def test_without_an_optimizer_the_loader_then_backward_then_the_process_gives_the_rhythm(
    lines: list[tuple[str, float]], clock: str, number: int
) -> None:
    found, steps = regular(_ticks(*lines))
    assert (found, len(steps)) == (clock, number)


def test_what_follows_the_last_tick_belongs_to_no_step() -> None:
    _, steps = regular(_ticks(*[("opt0", 0.1)] * 4, ("exit", 9.0)))
    assert sum(s.wall for s in steps) == pytest.approx(0.4)
