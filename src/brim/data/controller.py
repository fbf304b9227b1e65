"""How many threads, how many rows ahead: decided from what is measured, while it runs.

Little's law gives the threads that the trainer's rate needs: N* = samples a row × seconds a sample
/ seconds a row.  When the trainer waits although they are there, the queue's occupancy tells
variance (rows lie ready on average: look further ahead) from a lack of throughput (none do: more
threads).  A single wait that stands out says how far: by the rows that the trainer takes meanwhile.
A step that brought nothing is taken back, and what binds is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

WAIT_GOAL = 0.01
"""Share of time that the trainer may wait before anything is changed."""
_MARGIN = 1.2
_FULL = 0.8
_CALM_WINDOWS = 3
_HELPED = 0.02
_READ_BOUND = 0.5
_ALONE = 0.6
_COVER = 2.0
"""Rows ahead, by those that a stall costs: the next one may come before the queue is full again."""
_FEWEST = 2
"""Threads, where there may be so many: with one, a stall stops everything."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What was measured since the last decision; seconds."""

    wall: float
    rows: int
    """Rows that the trainer took."""
    made: int
    """Rows made."""
    samples: int
    """Samples made."""
    waited: float
    """Time in which the trainer waited for rows."""
    task_wall: float
    """Thread time in samples: running or waiting."""
    ready: float
    """Rows that lay ready when the trainer asked, on average, as a share of the depth."""
    longest: float = 0.0
    """The longest single wait for a row."""
    read_share: float = 0.0
    """Of ``task_wall``, reading."""
    text_share: float = 0.0
    """Of ``task_wall``, tokenizing and positions."""
    write_share: float = 0.0
    """Of ``task_wall``, laying rows into shared memory."""

    @property
    def wait_share(self) -> float:
        return self.waited / self.wall if self.wall else 0.0

    @property
    def pace(self) -> float:
        """Seconds a row that the trainer itself takes."""
        return max(self.wall - self.waited, 1e-3 * self.wall) / self.rows

    @property
    def stall(self) -> float:
        """A wait that stands out: one slow sample, not a lack of throughput."""
        alone = self.rows >= 3 and self.longest >= _ALONE * self.waited
        return self.longest if alone and self.longest > 2 * self.pace else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A decision, with its reason."""

    threads: int
    depth: int
    reason: str


@dataclass
class Controller:
    """Holds ``threads`` and ``depth`` (rows in work or ready) within their limits."""

    max_threads: int
    max_depth: int
    cores: float
    """CPU cores of this rank."""
    threads: int = 1
    depth: int = 2
    fixed_threads: bool = False
    bound_by: str = "starting"
    """What limits the rate: consumer (nothing waits), read, text, decode, transport, variance,
    cores or memory."""
    _calm: int = 0
    _deeper: int = 0
    _tried: tuple[str, int, int, Window] | None = field(default=None, repr=False)
    """(what, threads, depth, window) before the last step up."""
    _settling: bool = False
    """The last step up is young: the rows taken now were begun before it."""
    _spare: int = 0
    """Threads beyond those that the pace needs, for the time that a stall holds one."""
    _futile: set[str] = field(default_factory=set, repr=False)

    def update(self, window: Window) -> Change | None:
        """Decide on one window; None: nothing changes."""
        if not (window.rows and window.made and window.samples):
            return None
        if self._settling:
            self._settling = False
            return None
        needed = self._needed(window)
        undone = self._judge(window)
        if undone:
            return undone
        if window.wait_share <= WAIT_GOAL:
            return self._relax(window, needed)
        self._calm = 0
        return self._raise(window, needed)

    def _needed(self, window: Window) -> int:
        """N*: threads for the trainer's own pace, the waiting left out."""
        per_row = window.samples / window.made
        per_sample = window.task_wall / window.samples
        return max(1, math.ceil(_MARGIN * per_row * per_sample / window.pace))

    def _limit(self, window: Window) -> int:
        """Threads that compute are useful up to the cores; threads that wait for storage, beyond.

        The time outside reading is the measure, not CPU time: threads that wait for a core, because
        there are too many already, look idle too.
        """
        if self.fixed_threads:
            return self.threads
        useful = math.ceil(self.cores / max(1 - window.read_share, 0.05))
        return max(1, min(self.max_threads, useful))

    def _raise(self, window: Window, needed: int) -> Change | None:
        limit = self._limit(window)
        wanted = min(needed, limit)
        more = max(self.threads, min(limit, math.ceil(self.threads * 1.25)))
        # rows that outlast such a stall, when it comes again, and a thread that goes on meanwhile
        self._spare = max(self._spare, bool(window.stall))
        covered = self.depth + math.ceil(_COVER * window.stall / window.pace)
        if self.threads < wanted and "threads" not in self._futile:
            room = min(self.max_depth, max(self._room(wanted), covered))
            return self._set(window, "threads", wanted, room, "too few threads")
        if (window.ready >= 0.25 or window.stall) and "depth" not in self._futile:
            self._deeper += 1
            factor = 2 if self._deeper == 1 else 4
            deeper = min(self.max_depth, max(self.depth * factor, covered))
            if deeper > self.depth:
                # the deeper queue must also be filled, faster than it is drained
                return self._set(window, "depth", more, deeper, "rows are uneven")
        if more > self.threads and "both" not in self._futile:
            deeper = min(self.max_depth, max(self.depth * 2, self._room(more)))
            return self._set(window, "both", more, deeper, "rows come too slowly")
        self.bound_by = self._binding(window, limit)
        return None

    def _room(self, threads: int) -> int:
        """A depth with which that many threads find work."""
        return min(self.max_depth, max(self.depth, 2, threads // 4 + 2))

    def _set(self, window: Window, what: str, threads: int, depth: int, why: str) -> Change:
        self._tried, self._settling = (what, self.threads, self.depth, window), True
        self.bound_by = "variance" if what == "depth" else self._stage(window)
        reason = (
            f"{why}: the trainer waited {window.wait_share:.0%}, {window.ready:.0%} of the rows "
            f"ahead were ready; threads {self.threads} → {threads}, rows ahead "
            f"{self.depth} → {depth}"
        )
        self.threads, self.depth = threads, depth
        return Change(threads, depth, reason)

    def _judge(self, window: Window) -> Change | None:
        """Take back a step up that brought less than 2 %."""
        if self._tried is None:
            return None
        what, threads, depth, before = self._tried
        self._tried = None
        faster = window.samples / window.wall >= (1 + _HELPED) * before.samples / before.wall
        if faster or before.wait_share - window.wait_share >= _HELPED:
            self._futile.discard(what)
            return None
        # looking further ahead pays only after the queue has filled: it keeps what it got
        if what == "depth" or self.threads <= threads:
            return None
        self._futile |= {"threads", "both"}
        self.bound_by = self._binding(window, self.threads)
        reason = f"{self.threads} threads are no faster than {threads}: bound by {self.bound_by}"
        self.threads, self.depth = threads, depth
        return Change(threads, depth, reason)

    def _relax(self, window: Window, needed: int) -> Change | None:
        self.bound_by, self._deeper = "consumer", 0
        self._futile.clear()
        self._calm = self._calm + 1 if window.ready > _FULL else 0
        needed = max(needed + self._spare, _FEWEST)
        if self._calm < _CALM_WINDOWS or self.threads <= needed or self.fixed_threads:
            return None
        self._calm = 0
        self.threads -= 1
        reason = f"{needed} threads would do: threads {self.threads + 1} → {self.threads}"
        return Change(self.threads, self.depth, reason)

    def _binding(self, window: Window, limit: int) -> str:
        stage = self._stage(window)
        if stage != "read" and self.threads >= limit and not self.fixed_threads:
            return "cores"
        if self.depth >= self.max_depth and window.ready >= 0.25:
            return "memory"
        return stage

    @staticmethod
    def _stage(window: Window) -> str:
        if window.read_share >= _READ_BOUND:
            return "read"
        rest = 1 - window.read_share - window.text_share - window.write_share
        shares = {"decode": rest, "text": window.text_share, "transport": window.write_share}
        return max(shares, key=shares.__getitem__)
