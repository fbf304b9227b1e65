"""Nesting of spans, lines of the program, steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.ops import Nest, choose, frame
from brim.diagnose.trace.steps import steps
from brim.record.kineto import Trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
Read = Callable[..., Trace]


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Properly nested spans."""
    out: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and depth < 4 and draw(st.booleans()):
            start = draw(st.integers(at, high - 1))
            end = draw(st.integers(start + 1, high))
            out.append((start, end))
            fill(start, end, depth + 1)
            at = end

    fill(0, 60, 0)
    return out


class _Host:
    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self.start = np.array([a for a, _ in spans], np.int64)
        self.end = np.array([b for _, b in spans], np.int64)


@given(nested(), st.lists(st.integers(-2, 62), min_size=1, max_size=20))
def test_the_innermost_span_is_the_shortest_one_around(
    spans: list[tuple[int, int]], times: list[int]
) -> None:
    ordered = sorted(spans, key=lambda s: (s[0], -s[1]))
    host: Any = _Host(ordered)
    nest = Nest(host, np.arange(len(ordered), dtype=np.int64))
    found = nest.innermost(np.array(times, np.int64)).tolist()
    for time, at in zip(times, found, strict=True):
        around = [s for s in ordered if s[0] <= time < s[1]]
        if not around:
            assert at == -1
        else:
            length = min(b - a for a, b in around)
            assert at >= 0 and ordered[at] in around
            assert ordered[at][1] - ordered[at][0] == length
            assert len(list(nest.chain(at))) == len(around)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train.py(12): step", ("train.py", 12, "step")),
        ("/a b/x.py(7): <module>", ("/a b/x.py", 7, "<module>")),
        ("<built-in method to of Tensor object at 0x7c>", None),
        ("nn.Module: Linear_3", None),
    ],
)
def test_a_frame_is_a_place(text: str, place: tuple[str, int, str] | None) -> None:
    where = frame(text)
    assert (where and (where.file, where.line, where.function)) == place


def test_the_line_of_the_program_comes_before_lines_of_libraries() -> None:
    stack = [
        "<built-in method item of Tensor>",
        "torch/utils/_device.py(100): __torch_function__",
        "/env/lib/python3.11/site-packages/transformers/trainer.py(9): training_step",
        "src/loss.py(44): log",
        "train.py(3): <module>",
    ]
    where = choose(stack)
    assert where is not None and (where.file, where.line) == ("src/loss.py", 44)
    only_libraries = choose(stack[:3])
    assert only_libraries is not None and only_libraries.file == "torch/utils/_device.py"
    assert choose(["<built-in>"]) is None


def test_without_profiler_steps_the_optimizer_marks_them(tape: Any, read: Read) -> None:
    for _ in range(3):
        for _ in range(5):
            tape.run("aten::mm", GEMM, 50)
        with tape.note("Optimizer.step#AdamW.step"):
            tape.run("aten::_fused_adamw_", GEMM, 20)
    device = DeviceSide(read(tape))
    found = steps(device)
    assert [step.name for step in found] == ["step 1", "step 2", "step 3"]
    assert (found[0].start, found[-1].end) == device.window
    assert all(a.end == b.start for a, b in pairwise(found))
    assert device.step_span is None


def test_a_trace_without_marks_has_no_steps(tape: Any, read: Read) -> None:
    for _ in range(5):
        tape.run("aten::mm", GEMM, 50)
    assert steps(DeviceSide(read(tape))) == []
