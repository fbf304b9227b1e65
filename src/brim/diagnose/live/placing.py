"""Python of the program that no rule knows, told by where it stands in the loop.

The function that calls forward, backward and the optimizer runs its lines in their order: what
stands before the forward pass prepares a batch, what stands after the optimizer looks at results.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from brim.diagnose.live import stacks
from brim.diagnose.live.occasional import Sampled
from brim.record.steps import Frame, Stack

BEFORE: Final = "before the step"
AFTER: Final = "after the step"

_UPDATES: Final = ("backward", "optimizer")
_LOOP = re.compile(r"^(async )?(for|while|with) ")

Lines = dict[tuple[str, str], set[int]]
"""(file, function) → lines."""


def place(sites: Iterable[Sampled]) -> None:
    """Rename what is only known as Python, where a function shows the order of a step."""
    entries = list(sites)
    updates = _lines(e.stack.frames for e in entries if e.stack.phase in _UPDATES)
    forward = _lines(_outside(e.stack) for e in entries if e.stack.phase not in _UPDATES)
    for entry in entries:
        if entry.kind == stacks.PYTHON and not entry.stack.phase:
            entry.kind = _kind(entry.stack, forward, updates)


def _lines(rows: Iterable[Iterable[Frame]]) -> Lines:
    found: Lines = defaultdict(set)
    for frames in rows:
        for frame in filter(stacks.is_own, frames):
            found[frame.file, frame.function].add(frame.line)
    return found


def _outside(stack: Stack) -> tuple[Frame, ...]:
    """Frames that call a module; none where no module is called."""
    calls = [i for i, f in enumerate(stack.frames) if f.function.endswith("_call_impl")]
    return stack.frames[calls[-1] + 1 :] if calls else ()


def _kind(stack: Stack, forward: Lines, updates: Lines) -> str:
    for depth, frame in enumerate(stack.frames):
        place = frame.file, frame.function
        if not stacks.is_own(frame) or place not in updates:
            continue
        # The loop's own line is the interpreter's work, and brim's; a leaf may be torch's, in C.
        if _LOOP.match(frame.text) or (depth == 0 and "np." not in frame.text):
            return stacks.PYTHON
        if frame.line < min(forward.get(place, set()) | updates[place]):
            return BEFORE
        return AFTER if frame.line > max(updates[place]) else stacks.PYTHON
    return stacks.PYTHON
