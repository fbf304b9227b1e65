"""When to measure, when to profile, when to stop; called after each step."""

from __future__ import annotations

import os
import sys
from typing import Any

from _brim_hooks import interpreter
from _brim_hooks import recorder as _r
from _brim_hooks.recorder import Recorder

now = _r.now

STEADY_AFTER = 10  # steps before anything but recording is tried
PROFILED = 3  # steps under torch.profiler: the first one is its own warm-up
PROBED = 6  # steps with debug modes off, then as many with them on, and so on
PROBED_S = 0.4  # seconds of such steps: of short ones it takes many to see a few per cent
MOST_PROBES = 16
EXTRA = 10  # recorded on top of what was asked for: the first steps are no steady state


class _Plan:
    """One per process: which steps are what."""

    def __init__(self) -> None:
        self.first = now()
        self.wanted = _r.options.get("steps", 100) + _r.options.get("warmup", EXTRA)
        self.least_s = _r.options.get("least_s", 20.0)
        self.most_s = _r.options.get("most_s", 900.0)
        self.profiler: Any = None
        self.profiled = 0
        self.profile_done = False
        self.probe: Any = None
        self.probed = 0
        self.mark = 0
        self.watched = 0  # steps in a row under a profiler of the program's
        self.probes = 0
        self.next_probe = 2 * STEADY_AFTER
        self.probe_done = False
        self.debug: list[str] = []

    def measured(self, steps: int, elapsed: float) -> bool:
        """Enough steps, over enough time to see what comes once in a while."""
        if steps >= self.wanted and elapsed >= self.least_s:
            return True
        few = steps >= min(self.wanted, 30) and elapsed >= 120.0
        return few or elapsed >= self.most_s


def after_step(rec: Recorder) -> None:
    try:
        _after_step(rec)
    except Exception as error:
        _r.failed("window", error)


def _after_step(rec: Recorder) -> None:
    if rec.plan is None:
        rec.plan = _Plan()
        _arm_reads()
    plan: _Plan = rec.plan
    if _r.full:
        leave(rec, "records could not be written")
        return
    steps = max(rec.clocks.values())
    elapsed = rec.last - plan.first
    if not plan.profile_done and _profiling(rec, plan, steps, elapsed):
        return
    if _probing(rec, plan, steps):
        return
    if plan.measured(steps, elapsed):
        from _brim_hooks import transfers

        transfers.disarm()
        rec.finish("measured %d steps" % steps)


def leave(rec: Recorder, why: str) -> None:
    """End in the middle of the job: put all back as the job had it."""
    from _brim_hooks import transfers

    plan = rec.plan
    try:
        if plan is not None and plan.probe is not None:
            plan.probe.__exit__()
        if plan is not None and plan.profiler is not None:
            plan.profiler.on_trace_ready = None
            plan.profiler.stop()
    finally:
        transfers.disarm()
        rec.finish(why)


def _arm_reads() -> None:
    from _brim_hooks import transfers

    transfers.arm()


def _probing(rec: Recorder, plan: _Plan, steps: int) -> bool:
    """Debug modes cost what the same steps take less without them: switch them off for a few."""
    if plan.probe is not None:
        rec.sums["probe"] = plan.mark  # marks the step that begins now
        plan.probed += 1
        if plan.probed >= PROBED:
            plan.probe.__exit__()
            plan.probe = None
            rec.sums.pop("probe", None)
            _plan_next_probe(plan, steps)
        return True
    modes = interpreter.lasting_modes()
    if steps % 8 == 0:
        plan.debug = interpreter.switchable_modes()
        modes += plan.debug
    if modes:
        rec.sums["debug"] = modes
    # a profiler with a schedule is priced by the steps without it
    plan.watched = plan.watched + 1 if "torch.profiler" in modes else 0
    pauses = plan.watched >= 2 * STEADY_AFTER and interpreter.profiler_pauses()
    if (plan.debug or pauses) and not plan.probe_done and steps >= plan.next_probe:
        plan.probe, plan.probed = interpreter.DebugOff(profiler=pauses).__enter__(), 0
        rec.sums["probe"] = plan.mark = 2 if pauses else 1
        return True
    return False


def _plan_next_probe(plan: _Plan, steps: int) -> None:
    plan.probes += 1
    plan.next_probe = steps + PROBED
    seconds = plan.probes * PROBED * (now() - plan.first) / steps
    plan.probe_done = seconds >= PROBED_S or plan.probes >= MOST_PROBES


def _profiling(rec: Recorder, plan: _Plan, steps: int, elapsed: float) -> bool:
    """One short torch.profiler window on CUDA devices, early enough for short runs."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        plan.profile_done = steps > 4 * STEADY_AFTER  # a job on the CPU
        return False
    if plan.profiler is None:
        if steps < 2 * STEADY_AFTER or elapsed < _r.options.get("profile_after_s", 2.0):
            return False
        _start_profiler(rec, plan, torch)
        return plan.profiler is not None
    plan.profiled += 1
    plan.profiler.step()  # the last one ends the recording and exports it
    if plan.profiled < PROFILED:
        rec.sums["profiled"] = 1
    else:
        torch.cuda.synchronize()
        plan.profiler.stop()
        plan.profiler, plan.profile_done = None, True
        rec.restart()
    return True


def _start_profiler(rec: Recorder, plan: _Plan, torch: Any) -> None:
    if torch.autograd._profiler_enabled():
        plan.profile_done = True  # the job profiles itself; two profilers exclude each other
        _r.failed("profiler", "the job runs a profiler of its own")
        return
    kinds = torch.profiler.ProfilerActivity
    # The schedule's first step warms the profiler up: starting CUPTI stalls the device once.
    plan.profiler = torch.profiler.profile(
        activities=[kinds.CPU, kinds.CUDA],
        record_shapes=True,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=PROFILED - 1, repeat=1),
        on_trace_ready=_export,
    )
    torch.cuda.synchronize()
    plan.profiler.start()
    plan.profiled = 0
    rec.restart()
    rec.sums["profiled"] = 1


def _export(profiler: Any) -> None:
    """Write the trace under its final name only when it is whole."""
    path = os.path.join(_r.options["run_dir"], "trace.rank%d.json.gz" % _r.rank())
    if not os.path.exists(path):
        part = path.replace(".json.gz", ".part.json.gz")
        try:
            profiler.export_chrome_trace(part)
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.unlink(part)
