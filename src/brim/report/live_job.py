"""The running job beside the devices: steps, tokens and images per second, where a step goes.

Read from the run directory that the job's hooks, or brim's own trainer, append to.  Times are the
host's: on an accelerator the host runs ahead, so this is where the training thread spends its
time, and only ``brim diagnose`` says what the device loses.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from pathlib import Path

import msgspec

from brim.errors import InputError
from brim.record import findings
from brim.record.follow import Follower
from brim.record.run import RunInfo
from brim.record.steps import Header, Step, regular
from brim.report.live_ranks import RanksView, across

WINDOW_S = 20.0
"""Figures are means over the steps of the last seconds."""
_TAIL_BYTES = 256 << 10
_FRESH_S = 120.0
_MOST_RANKS = 64

# field of a step → its name; what is left is forward and everything else
PHASES = {
    "input_wait": "input",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "save": "saving",
}
REST = "forward, rest"


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """What the view shows of a job; absent where nothing was counted."""

    name: str
    ranks: int
    step: int
    steps_s: float | None = None
    tokens_s: float | None = None
    """Over all ranks, padding left out."""
    images_s: float | None = None
    samples_s: float | None = None
    loss: float | None = None
    phases: dict[str, float] = {}
    """Phase → share of the training threads' time."""
    across: RanksView | None = None
    """Who waits for whom; None with one rank."""
    state: str = ""
    """``running``, ``ended with 0``, or how long nothing was written."""
    verdict: str = ""
    """The diagnosis' sentence, once there is one."""


class JobFollower:
    """Follows one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ranks: dict[str, _Rank] = {}

    def view(self, now: float | None = None) -> JobView | None:
        """What is known now; None before the first step.  Never raises for what the job writes.

        ``now``: CLOCK_MONOTONIC, in seconds.
        """
        now = time.monotonic() if now is None else now
        for path in sorted(self.folder.glob("steps.*.jsonl"))[:_MOST_RANKS]:
            if path.name not in self._ranks:
                self._ranks[path.name] = _Rank(path)
        ranks = self._training()
        if not ranks:
            return None
        steps = [s for rank in ranks for s in rank.recent()]
        wall = max(sum(s.wall for s in rank.recent()) for rank in ranks)
        first = ranks[0]
        return JobView(
            name=self.folder.name,
            ranks=len(ranks),
            step=first.count,
            steps_s=_steps_per_s(first.recent()),
            tokens_s=_tokens(ranks, wall),
            images_s=_rate(sum(s.images for s in steps), wall),
            samples_s=_rate(sum(s.documents for s in steps), wall),
            loss=next((s.loss for s in reversed(first.recent()) if s.loss is not None), None),
            phases=_phases(steps),
            across=_across(ranks),
            state=self._state(now - max(rank.last_t for rank in ranks)),
            verdict=self._verdict(),
        )

    def _training(self) -> list[_Rank]:
        """For each rank the process with most steps: launchers and helpers may record too."""
        best: dict[str, _Rank] = {}
        for name, rank in self._ranks.items():
            key = name.split(".")[1]
            if rank.update() and (key not in best or rank.lines > best[key].lines):
                best[key] = rank
        return [best[key] for key in sorted(best)]

    def _state(self, silent_s: float) -> str:
        info = _info(self.folder)
        if info is not None and info.exit_code is not None:
            return f"ended with {info.exit_code}"
        # the clock starts anew with the machine: after a reboot this is negative
        if silent_s < 0 or silent_s > _FRESH_S:
            return "nothing written for minutes"
        return f"no step for {silent_s:.0f} s" if silent_s > 10 else "running"

    def _verdict(self) -> str:
        with contextlib.suppress(InputError):
            return findings.read(self.folder / "findings.json").verdict
        return ""


def find_running(runs: Path) -> Path | None:
    """The newest run directory below ``runs`` whose job has not ended and still writes."""
    try:
        folders = [f for f in runs.iterdir() if (f / "run.json").is_file()]
    except OSError:
        return None
    for folder in sorted(folders, key=lambda f: f.name, reverse=True):
        info = _info(folder)
        if info is not None and info.exit_code is None and _written_lately(folder):
            return folder
    return None


def _written_lately(folder: Path) -> bool:
    now = time.time()
    for path in (folder / "run.json", *folder.glob("*.jsonl")):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime < _FRESH_S:
                return True
    return False


class _Rank:
    """The steps of one training process, as far back as the window."""

    def __init__(self, path: Path) -> None:
        self._follower = Follower(path, tail_bytes=_TAIL_BYTES)
        self._steps: deque[Step] = deque(maxlen=4096)
        self.count = 0
        self.lines = 0
        self.last_t = 0.0
        self.tokens = self.pad_tokens = self.counted = 0
        self.rank = _number(path)
        self.on_device = _has_device(path)

    def update(self) -> bool:
        """Read what is new; True once there has been a step."""
        for line in self._follower.lines():
            step = _step(line)
            if step is not None and step.wall > 0:
                self._steps.append(step)
                self.count = max(self.count, step.n)
                self.lines += 1
                self.last_t = step.t
                self.tokens += step.tokens
                self.pad_tokens += step.pad_tokens
                self.counted += step.counted_batches
        while len(self._steps) > 1 and self.last_t - self._steps[0].t > WINDOW_S:
            self._steps.popleft()
        return bool(self._steps)

    def recent(self) -> list[Step]:
        return list(self._steps)


def _step(line: bytes) -> Step | None:
    """None for what is no line of this schema; a header or footer has no wall time."""
    try:
        return msgspec.json.decode(line, type=Step)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int:
    """``steps.rank3.4711.jsonl`` → 3."""
    text = path.name.split(".")[1].removeprefix("rank")
    return int(text) if text.isdigit() else 0


def _has_device(path: Path) -> bool:
    """Does the file's header say that the process uses an accelerator?"""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.readline(1 << 16), type=Header).device is not None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return False


def _across(ranks: list[_Rank]) -> RanksView | None:
    if len(ranks) < 2:
        return None
    steps = {rank.rank: regular(rank.recent())[1] for rank in ranks}
    return across(steps, on_device=any(rank.on_device for rank in ranks))


def _steps_per_s(recent: list[Step]) -> float | None:
    """Steps of the training loop's clock: a line may be less than a step."""
    clock, steps = regular(recent)
    wall = sum(s.wall for s in steps)
    return len(steps) / wall if clock != "exit" and wall > 0 else None


def _tokens(ranks: list[_Rank], wall: float) -> float | None:
    """Real tokens per second.  Hooks count the first batches only: these stand for the rest."""
    total = 0.0
    for rank in ranks:
        recent = rank.recent()
        if rank.counted:
            per_batch = (rank.tokens - rank.pad_tokens) / rank.counted
            total += per_batch * sum(s.batches for s in recent)
        else:
            total += sum(s.tokens - s.pad_tokens for s in recent)
    return _rate(total, wall)


def _rate(count: float, wall: float) -> float | None:
    return count / wall if count > 0 and wall > 0 else None


def _phases(steps: list[Step]) -> dict[str, float]:
    wall = sum(s.wall for s in steps)
    if wall <= 0:
        return {}
    shares = {
        name: min(1.0, sum(getattr(s, field) for s in steps) / wall)
        for field, name in PHASES.items()
    }
    shares[REST] = max(0.0, 1.0 - sum(shares.values()))
    return {name: share for name, share in shares.items() if share >= 0.0005}


def _info(folder: Path) -> RunInfo | None:
    try:
        return msgspec.json.decode((folder / "run.json").read_bytes(), type=RunInfo)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
