"""Remedies applied from outside: ``BRIM_APPLY`` says which, ``applied.rank<R>.jsonl`` what came.

``BRIM_APPLY`` is a JSON object: ``settings`` maps knobs of ``brim.tune.knobs`` to values, and
``alternate``, if there, is ``{"every": N, "settings": {...}}``: from the start the settings hold
(arm 0 in the step records); after every N optimizer steps those of ``alternate`` are laid over
them, or taken away again (arm 1, arm 0, …).

A cure never raises into the job.  One that cannot work says so, and the job runs as it was.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks import recorder as _r

_WEIGHT = {"": 0, "unavailable": 1, "applied": 2, "failed": 3}
SETTLED = 5  # optimizer steps after which a cure that met nothing to cure says so
_MODULES = (
    "cure_loader", "cure_worker", "cure_transfer", "cure_host", "cure_flush", "cure_precision",
    "cure_model", "cure_attention", "cure_recompute", "cure_optimizer", "cure_ddp", "cure_trainer",
    "cure_affinity", "cure_environment",
)  # fmt: skip

plan: Plan | None = None


class Cure:
    """One or several knobs that are turned together."""

    ids: tuple[str, ...] = ()
    never = "the job never did what this changes"  # said when nothing was reported

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted

    @property
    def value(self) -> Any:
        """Of the only knob; None: as the job has it."""
        return self.wanted.get(self.ids[0])

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        """(module, function of the module) to call right after that module is imported."""
        return []

    def stepped(self, n: int) -> None:
        """The optimizer has stepped for the ``n``-th time, from 1 on."""

    def switch(self, wanted: dict[str, Any]) -> None:
        """From now on other values hold; a knob that is missing is as the job has it."""
        self.wanted = wanted

    def applied(self, was: Any = None, reason: str = "", id: str = "") -> None:
        self._report(id, "applied", reason, was)

    def unavailable(self, reason: str, id: str = "") -> None:
        self._report(id, "unavailable", reason, None)

    def failed(self, error: Any, id: str = "") -> None:
        text = error if isinstance(error, str) else "%s: %s" % (type(error).__name__, error)
        self._report(id, "failed", text, None)

    def _report(self, id: str, state: str, reason: str, was: Any) -> None:
        if plan is not None:
            plan.report(id or self.ids[0], state, reason, was)


def safely(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a cure whose error fails the cure's knobs, and nothing else; None then."""

    @functools.wraps(method)
    def call(self: Cure, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            for id in self.ids:
                if plan is not None and id in plan.known:
                    self.failed(error, id)
            return None

    return call


def compiling() -> bool:
    """True while torch.compile traces the caller: what it sees must have no side effects."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and compiler.is_compiling()


class Plan:
    """All cures of this process, which of them hold, and what has been said about them."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.settings: dict[str, Any] = dict(order.get("settings") or {})
        other = order.get("alternate") or {}
        self.other: dict[str, Any] = dict(other.get("settings") or {})
        self.every = int(other.get("every") or 0)
        self.known = set(self.settings) | (set(self.other) if self.every else set())
        self.cures = list(_cures(self.known, self.settings))
        self.said: dict[str, str] = {}
        self.waiting: list[dict[str, Any]] = []  # until this process has trained
        self.steps = 0
        self.ticks = 0
        self.clock: int | None = None
        self.pid = os.getpid()

    def report(self, id: str, state: str, reason: str, was: Any) -> None:
        """Say it, unless it is known: what was applied once stays so, whatever a second loader or
        model is like, until it fails."""
        had = self.said.get(id, "")
        if id not in self.known or _WEIGHT[state] < _WEIGHT[had] or state == had:
            return
        self.said[id] = state
        value = self.other.get(id, self.settings.get(id))
        line = {"kind": "knob", "id": id, "state": state, "value": value}
        if reason:
            line["reason"] = " ".join(str(reason).split())[:300]
        if was is not None:
            line["was"] = was if isinstance(was, (bool, int, float, str)) else str(was)
        self.waiting.append(line)
        if self.steps or os.getpid() != self.pid:
            self.flush()

    def flush(self) -> None:
        while self.waiting:
            write(self.waiting.pop(0))

    def stepped(self, optimizer: Any, args: Any = None, kwargs: Any = None) -> None:
        """After an optimizer step; the first optimizer that is seen counts."""
        del args, kwargs
        self.clock = id(optimizer) if self.clock is None else self.clock
        if self.clock != id(optimizer):
            return
        self.steps += 1
        for cure in self.cures:
            try:
                cure.stepped(self.steps)
            except Exception as error:
                cure.failed(error)
        self.flush()
        if self.steps == SETTLED + self.every:
            self.settle()

    def settle(self) -> None:
        """What has met nothing to cure by now says so; it may be applied yet."""
        for cure in self.cures:
            for id in cure.ids:
                if id in self.known and id not in self.said:
                    cure.unavailable(cure.never, id)
        covered = {id for cure in self.cures for id in cure.ids}
        for id in sorted(self.known - covered):
            self.report(id, "unavailable", "this version of the hooks does not know it", None)

    def ticked(self, clock: str) -> None:
        """After each recorded step: change arms when it is time."""
        if clock != "opt0":
            return
        self.ticks += 1
        if self.ticks % self.every == 0:
            _r.setting = (self.ticks // self.every) % 2
            wanted = dict(self.settings, **self.other) if _r.setting else self.settings
            for cure in self.cures:
                try:
                    cure.switch(_only(wanted, cure.ids))
                except Exception as error:
                    cure.failed(error)


def _only(settings: dict[str, Any], ids: tuple[str, ...]) -> dict[str, Any]:
    return {id: settings[id] for id in ids if id in settings}


def _cures(known: set[str], settings: dict[str, Any]) -> list[Cure]:
    """The cures that are asked for; modules of others are not even imported."""
    found = []
    for name in _MODULES if known else ():
        try:
            module = importlib.import_module("_brim_hooks." + name)
            kinds = [kind for kind in module.CURES if known & set(kind.ids)]
            found += [kind(_only(settings, kind.ids)) for kind in kinds]
        except Exception as error:
            _r.failed(name, error)
    return found


def write(line: dict[str, Any]) -> None:
    """Append to this rank's file, also after the measurement; never raises."""
    if _r.full:
        return
    try:
        text = json.dumps(dict(line, pid=os.getpid()), separators=(",", ":"), default=str)
        path = os.path.join(_r.options["run_dir"], "applied.rank%d.jsonl" % _r.rank())
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, (text + "\n").encode("utf-8", "replace"))
        finally:
            os.close(fd)
    except Exception as error:
        _r.failed("applied", error)


def arm() -> list[tuple[str, Callable[[Any], None]]]:
    """Read ``BRIM_APPLY``; what to patch, nothing without it."""
    global plan
    text = os.environ.get("BRIM_APPLY")
    if not text:
        return []
    plan = Plan(json.loads(text))
    if plan.every:
        _r.setting = 0
        _r.ticked.append(plan.ticked)
    atexit.register(_at_exit, os.getpid())
    patches = [patch for cure in plan.cures for patch in cure.patches()]
    return [*patches, ("torch.optim.optimizer", _count_steps)]


def _count_steps(module: Any) -> None:
    assert plan is not None
    module.register_optimizer_step_post_hook(plan.stepped)


def _at_exit(pid: int) -> None:
    """A process that trained, or was about to, says why it ended."""
    if plan is None or os.getpid() != pid or not (_r.current is not None or _r.off or plan.steps):
        return
    if not plan.steps:
        plan.settle()
    plan.flush()
    kind = getattr(sys, "last_type", None)
    if kind is not None:
        text = " ".join(str(getattr(sys, "last_value", "")).split())[:300]
        write({"kind": "error", "name": kind.__name__, "text": text})
