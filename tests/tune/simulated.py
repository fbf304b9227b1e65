"""A job whose costs are known, with the noise of real ones: what a search must find is computed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from brim.diagnose.gain import gain
from brim.record.applied import Knob as Applied
from brim.record.findings import Finding
from brim.tune.candidates import Candidate, Job, candidates
from brim.tune.knobs import Settings, Value
from brim.tune.outcome import Ending, Outcome

COSTS = ("host.debug-mode", "memory.cache-flush", "host.gc", "compute.recompute")
CURES: dict[str, tuple[str, Value]] = {
    "host.debug-mode": ("debug", False),
    "memory.cache-flush": ("memory.flush", 0),
    "host.gc": ("gc.freeze", True),
    "compute.recompute": ("recompute", "none"),
}


@dataclass(kw_only=True)
class SimulatedJob:
    """Seconds of a step: computing, waiting for the loader, and what faults add."""

    compute: float = 0.1
    load: float = 0.0
    """Making a batch, on one core."""
    workers: int = 0
    cores: int = 8
    faults: dict[str, float] = field(default_factory=dict)
    """Cause → seconds a step, until its cure is applied."""
    imagined: dict[str, float] = field(default_factory=dict)
    """Cause → share that the diagnosis claims, and no cure changes."""
    breaks: dict[str, Ending] = field(default_factory=dict)
    """Knob → how the job ends under it."""
    other_loss: set[str] = field(default_factory=set)
    """Knobs under which it computes something else."""
    unavailable: set[str] = field(default_factory=set)
    seeded: bool = True
    step_noise: float = 0.05
    run_noise: float = 0.02
    run_s: float = 10.0
    seed: int = 0
    steps: int = 40
    runs: list[dict[str, Value]] = field(default_factory=list)
    before_run: Callable[[int], None] = lambda n: None
    extra: Callable[[Settings], float] = lambda settings: 0.0

    def parts(self, settings: Settings) -> dict[str, float]:
        """Cause → seconds of a step; ``""`` is computing."""
        workers = int(settings.get("loader.num_workers", self.workers))
        used = {"": self.compute + self.extra(settings)}
        if self.load and workers == 0:
            used["input.main-process"] = self.load
        elif self.load:
            wait = max(0.0, self.load / min(workers, self.cores) - self.compute)
            # workers beyond the cores fight for them
            wait += 0.02 * max(0, workers - self.cores)
            used["input.workers"] = wait
        for cause, seconds in self.faults.items():
            knob, value = CURES[cause]
            used[cause] = 0.0 if settings.get(knob) == value else seconds
        return used

    def step_s(self, settings: Settings) -> float:
        return sum(self.parts(settings).values())

    def run(self, settings: Settings, alternate: Settings | None = None) -> Outcome:
        self.before_run(len(self.runs))
        if alternate is not None:
            return self._switching(settings, alternate)
        self.runs.append(dict(settings))
        for knob, ending in self.breaks.items():
            if knob in settings:
                return Outcome(ending=ending, why=f"because of {knob}", wall_s=self.run_s)
        dice = random.Random(f"{self.seed} {len(self.runs)} {sorted(settings.items())}")
        mean = self.step_s(settings) * math.exp(dice.gauss(0, self.run_noise))
        return Outcome(
            ending="measured",
            wall_s=self.run_s,
            steps={n: mean * math.exp(dice.gauss(0, self.step_noise)) for n in range(self.steps)},
            losses=self._losses(settings, dice),
            figures={"step_s": mean},
            findings=self._findings(settings),
            applied=[
                Applied(id=id, state="unavailable" if id in self.unavailable else "applied",
                        reason="there is no such thing here" if id in self.unavailable else "")
                for id in settings
            ],
        )  # fmt: skip

    def _switching(self, settings: Settings, alternate: Settings) -> Outcome:
        """Blocks of five steps under each in turn; what changes between runs is in both."""
        self.runs.append({**settings, **{f"~{id}": value for id, value in alternate.items()}})
        both = dict(settings), {**settings, **alternate}
        dice = random.Random(f"{self.seed} {len(self.runs)} switching {sorted(alternate.items())}")
        level = math.exp(dice.gauss(0, self.run_noise))
        arms = {n: n // 5 % 2 for n in range(2 * self.steps)}
        return Outcome(
            ending="measured",
            wall_s=self.run_s,
            arms=arms,
            steps={n: self.step_s(both[arm]) * level * math.exp(dice.gauss(0, self.step_noise))
                   for n, arm in arms.items()},
        )  # fmt: skip

    def _losses(self, settings: Settings, dice: random.Random) -> dict[int, float | None]:
        if not self.seeded:
            return {n: 3.0 + dice.gauss(0, 0.3) for n in range(self.steps)}
        off = 1.1 if self.other_loss & set(settings) else 1.0
        data = random.Random(7)  # the same data in every run
        drift = [1 + 1e-6 * n * dice.random() for n in range(self.steps)]
        return {n: (3.0 - 0.02 * n + data.gauss(0, 0.2)) * off * drift[n]
                for n in range(self.steps)}  # fmt: skip

    def _findings(self, settings: Settings) -> list[Finding]:
        parts = self.parts(settings)
        whole = sum(parts.values())
        shares = {cause: seconds / whole for cause, seconds in parts.items() if cause}
        shares.update(self.imagined)
        found = [
            Finding(cause=cause, share=share, gain=gain(cause, share), confidence="high",
                    evidence=[], facts=self._facts(cause, settings))
            for cause, share in shares.items()
            if share >= 0.05
        ]  # fmt: skip
        return sorted(found, key=lambda f: -f.share)

    def _facts(self, cause: str, settings: Settings) -> dict[str, float | int | str]:
        if cause != "input.workers":
            return {}
        now = int(settings.get("loader.num_workers", self.workers))
        return {"now": now, "workers": now + 1, "needed": now + 1}

    def propose(self, outcome: Outcome, base: Settings) -> list[Candidate]:
        return candidates(outcome.findings, Job(cores=self.cores))
