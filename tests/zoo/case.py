"""What a case of the zoo is: a script, its arms, the verdict that is right for each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to run a script."""

    name: str
    cause: str | None
    """The id that ``findings[0].cause`` must be; None: the run must have no finding."""
    also: tuple[str | None, ...] = ()
    """Other verdicts that are as right, with the reason in ``because``."""
    because: str = ""
    prefix: tuple[str, ...] = ()
    """What stands before the command, as ``taskset -c 0``."""
    environment: dict[str, str] = field(default_factory=dict)

    def right(self, verdict: str | None) -> bool:
        return verdict == self.cause or verdict in self.also


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A faulty arm against the arm that cures it."""

    faulty: str
    fixed: str
    slowdown: float
    """The faulty arm takes at least this many times as long for the same work."""
    steps: tuple[int, int]
    """``--steps`` of a short and a long run: their difference leaves the start out."""
    work: float = 1.0
    """What a step of the fixed arm does, as a multiple of the faulty arm's step."""


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    script: str
    source: str
    """Where it was reported; empty for a healthy run."""
    why: str
    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...] = ()
    ranks: int = 1
    """Above 1 the script runs under torchrun."""

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)
