"""``brim tune config.toml``: the fields of brim's own trainer as knobs.

The trainer writes its own records, so its runs carry no hooks.  A setting maps dotted fields to
values, as ``brim train --set`` takes them; an empty text leaves a choice to the device.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from brim.record import devices
from brim.record.findings import Finding
from brim.record.ladder import Change, Ladder
from brim.train import config as configuration
from brim.train import tables
from brim.tune.candidates import Candidate
from brim.tune.jobs import Tunable
from brim.tune.knobs import Settings, Value
from brim.tune.outcome import Outcome
from brim.tune.reading import Judge
from brim.tune.runner import Runner, Start, Starter, Window

WARMUP: Final = 12
"""Steps before the measured ones: compilation, and the profiler window after the tenth."""
LONGEST_ROW: Final = 65_536

_AUTOMATIC: Final[tuple[tuple[str, Value, float], ...]] = (
    ("model.dtype", "", 2.0),
    ("model.attention", "", 1.3),
    ("model.recompute_text_blocks", 0, 1.25),
    ("model.compile", "", 1.2),
    ("data.threads", 0, 1.2),
    ("model.recompute_vision_blocks", 0, 1.1),
    ("parallel.data", "auto", 1.1),
    ("parallel.gradient_sync", "auto", 1.1),
    ("parallel.reshard_after_forward", "auto", 1.05),
)
"""Field, the value with which the trainer chooses by itself, and what that is often worth."""

_UNSEEN: Final = 1.01
"""What a cure is expected to bring where the diagnosis shows no loss of its kind."""
_HALVED: Final = 0.5
"""The part of the gain that rows twice as long may bring against padding: half of it goes."""

_ON_A_DEVICE: Final[tuple[tuple[dict[str, Value], float], ...]] = (
    ({"model.fp8": "tensorwise"}, 1.25),
    ({"model.activation_budget": "1.0"}, 1.04),
    ({"optimizer.states": "bfloat16"}, 1.04),
    ({"model.attention": "fa4"}, 1.03),
    ({"model.attention": "varlen"}, 1.02),
    ({"model.activation_budget": "0.8"}, 1.01),
)

_FOR_INPUT: Final[tuple[tuple[dict[str, Value], float], ...]] = (
    ({"data.image_cache_bytes": 20_000_000_000}, 0.7),
    ({"data.dct_scaling": True}, 0.5),
)
"""Against a loader that cannot keep up, and the part of the finding's gain that each may bring."""


def of_config(
    path: Path, runs: Path, *, judge: Judge, host: dict[str, Any], window: Window
) -> Tunable:
    """Raises :class:`brim.errors.ConfigError` when ``path`` is no configuration."""
    table = tables.flat(configuration.load(path))
    runner = Runner(
        ["brim", "train", str(path)], runs, _starter(path, window), judge=judge, host=host
    )

    def propose(outcome: Outcome, base: Settings) -> list[Candidate]:
        return fields(outcome, {**table, **base})

    return Tunable(run=runner, propose=propose, change=lambda ladder: change(path, ladder))


def fields(outcome: Outcome, now: Mapping[str, Any]) -> list[Candidate]:
    """What could be tried when the configuration is ``now`` (dotted fields)."""
    waits = _gain(outcome, "input.") > 1.0
    found = [
        Candidate(
            settings={field: value},
            expected=_UNSEEN if field == "data.threads" and not waits else worth,
        )
        for field, value, worth in _AUTOMATIC
        if field in now and now[field] != value
    ]
    found += [c for finding in outcome.findings for c in _for_input(finding)]
    longer = _longer_rows(now)
    if longer is not None:
        fewer = 1.1 if outcome.on_device else 1.02
        padding = _gain(outcome, "compute.padding") ** _HALVED
        found.append(Candidate(settings=longer, expected=max(fewer, padding)))
    if outcome.on_device:
        found += [Candidate(settings=dict(s), expected=worth) for s, worth in _ON_A_DEVICE]
    return sorted(found, key=lambda c: -c.expected)


def _gain(outcome: Outcome, cause: str) -> float:
    """The most that the findings of a kind promise; 1 where there is none."""
    return max((f.gain[1] for f in outcome.findings if f.cause.startswith(cause)), default=1.0)


def _for_input(finding: Finding) -> list[Candidate]:
    if not finding.cause.startswith("input."):
        return []
    return [
        Candidate(
            settings=dict(settings),
            cause=finding.cause,
            expected=max(finding.gain[1], 1.0) ** part,
            share=finding.share,
        )
        for settings, part in _FOR_INPUT
    ]


def _longer_rows(now: Mapping[str, Any]) -> dict[str, Value] | None:
    """Rows twice as long, half as many: the same tokens in a step in fewer, larger pieces."""
    tokens = now["data.tokens_per_row"]
    counted = "train.gradient_accumulation_steps"
    rows = counted if now[counted] else "data.rows_per_step"
    if now[rows] % 2 or now[rows] < 2 or 2 * tokens > LONGEST_ROW:
        return None
    return {"data.tokens_per_row": 2 * tokens, rows: now[rows] // 2}


def _starter(path: Path, window: Window) -> Starter:
    def start(settings: Settings, folder: Path, alternate: Settings | None) -> Start:
        assert alternate is None, "no field can be switched inside a run"
        output = folder / "output"
        run = {
            **settings,
            "output_dir": str(output.resolve()),
            "train.max_steps": WARMUP + window.steps,
            "train.save_steps": 0,
            "train.eval_steps": 0,
            "train.save_at_end": False,
            "train.resume": False,
        }
        return Start(
            command=[sys.executable, "-m", "brim", "train", str(path), *as_options(run)],
            env=dict(os.environ),
            measured=_Measured(output, window),
            records=lambda: _records(folder, output),
            packed=True,
        )

    return start


def as_options(settings: Settings) -> list[str]:
    """``--set a.b=c`` for each field."""
    return [
        word for field, value in settings.items() for word in ("--set", _assigned(field, value))
    ]


def _assigned(field: str, value: Value) -> str:
    return f"{field}={str(value).lower() if isinstance(value, bool) else value}"


class _Measured:
    """A run ends by itself after its steps; slow ones are ended when they took long enough."""

    def __init__(self, output: Path, window: Window) -> None:
        self._output, self._window = output, window
        self._since: float | None = None

    def __call__(self) -> bool:
        lines = sum(
            path.read_bytes().count(b"\n")
            for path in self._output.glob("records/*/steps.rank0.jsonl")
        )
        if lines > WARMUP and self._since is None:
            self._since = time.monotonic()
        if self._since is None:
            return False
        enough = lines > WARMUP + min(10, self._window.steps)
        return enough and time.monotonic() - self._since > self._window.most_s


def _records(folder: Path, output: Path) -> Path | None:
    """The run's records, with the devices' samples beside them; what else it wrote is large and
    of no use."""
    for name in ("checkpoints", "model", "adapter"):
        shutil.rmtree(output / name, ignore_errors=True)
    found = sorted(output.glob("records/*/run.json"))
    if not found:
        return None
    sampled = folder / devices.FILE
    if sampled.exists():
        shutil.copy(sampled, found[-1].parent / devices.FILE)
    return found[-1].parent


def change(path: Path, ladder: Ladder) -> Change:
    """The command with ``--set``, and the same as a patch of the file."""
    if not ladder.settings:
        return Change()
    text = path.read_text()
    patch = "".join(
        difflib.unified_diff(
            text.splitlines(keepends=True),
            edited(text, ladder.settings).splitlines(keepends=True),
            f"a/{path}",
            f"b/{path}",
        )
    )
    command = ["brim", "train", str(path), *as_options(ladder.settings)]
    return Change(command=command, patch=patch)


def edited(text: str, settings: Settings) -> str:
    """TOML with fields set, everything else (comments, order) as it was."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    for field, value in settings.items():
        table, _, name = field.rpartition(".")
        _set(lines, table, name, _literal(field, value))
    return "".join(lines)


def _literal(field: str, value: Value) -> str:
    """A number for the fields that are one; an empty text is the trainer's own choice."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or field == "model.activation_budget":
        return str(value)
    return f'"{value}"'


def _set(lines: list[str], table: str, name: str, value: str) -> None:
    header = re.compile(rf"^\s*\[\s*{re.escape(table)}\s*\]")
    at = next((i for i, line in enumerate(lines) if header.match(line)), None)
    if at is None:
        lines += ["\n", f"[{table}]\n", f"{name} = {value}\n"]
        return
    end = next((i for i in range(at + 1, len(lines)) if lines[i].lstrip().startswith("[")), None)
    field = re.compile(rf"^(\s*{re.escape(name)}\s*=\s*)(\"[^\"]*\"|[^#\s]+)(.*)$", re.DOTALL)
    for i in range(at + 1, len(lines) if end is None else end):
        found = field.match(lines[i])
        if found:
            lines[i] = f"{found[1]}{value}{found[3]}"
            return
    lines.insert(at + 1, f"{name} = {value}\n")
