"""What the device's own counters say of the measured window: clocks, sharing, activity."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from brim.diagnose.live.account import Rank
from brim.diagnose.live.clues import Clue
from brim.hardware.gpus import identify
from brim.record.devices import Device, DeviceSample
from brim.record.run import Run
from brim.units import duration, percent

THROTTLED = 0.1
"""Share of the window with clocks held down, from which on it is looked at."""
_POWER_CAP = "power cap"
_FULL_POWER = 0.95
SHARED = 0.5
"""Share of the samples that show somebody else's process with work on the device."""


def samples(run: Run, rank: Rank) -> list[DeviceSample]:
    """Samples of the rank's device that lie in its window."""
    device = rank.evidence.process.device
    steps = rank.evidence.chosen.steps
    if run.recording is None or device is None or not steps:
        return []
    index = int(device.get("index", 0))
    begin, end = steps[0].t - steps[0].wall, steps[-1].t
    return [s for s in run.recording.of(index) if begin <= s.mono <= end]


def metrics(run: Run, found: Sequence[Rank]) -> dict[str, float]:
    """Mean activity over the window; absent where the device does not tell."""
    rows = samples(run, found[0])
    named: dict[str, float] = {}
    for name in ("gpu_util", "sm_active", "tensor_active", "dram_active", "power_w"):
        values = [v for s in rows if (v := getattr(s, name)) is not None]
        if values:
            named[name] = statistics.fmean(values)
    return named


def clues(run: Run, found: Sequence[Rank]) -> list[Clue]:
    made = []
    for rank in found:
        rows = samples(run, rank)
        if rows:
            made += [_throttled(run, rank, rows), _shared(rank, rows)]
    return [c for c in made if c is not None]


def _throttled(run: Run, rank: Rank, rows: Sequence[DeviceSample]) -> Clue | None:
    """Lost is the time in which clocks were held down, times what of the clock was missing: work
    that the memory bounds loses less, so this is an upper bound."""
    assert run.recording is not None
    known = run.recording.about.devices[rows[0].device]
    harmless = {_POWER_CAP} if _at_full_power(known) else set()
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        for reason, value in (row.throttled_s or {}).items():
            if reason not in harmless:
                seconds[reason] += value
    window = _counted_s(rows)
    share = min(1.0, sum(seconds.values()) / window) if window else 0.0
    clocks = [r.sm_clock_mhz for r in rows if r.sm_clock_mhz]
    top = known.max_sm_clock_mhz
    if share < THROTTLED or not clocks or not top:
        return None
    clock = statistics.fmean(clocks)
    reasons = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items() if value)
    return Clue(
        cause="device.throttled",
        seconds=share * max(0.0, 1 - clock / top) * rank.evidence.wall,
        confidence="medium",
        evidence=(
            f"clocks were held down {percent(share)} of the time: {reasons}",
            f"the SM clock was {clock:.0f} MHz on average, {top:.0f} MHz is the most",
        ),
    )


def _counted_s(rows: Sequence[DeviceSample]) -> float:
    """Seconds that the counters tell about: they are not read at every sample."""
    counted = [r for r in rows if r.throttled_s is not None]
    if any("throttled_s" in r.covers_s for r in counted):
        return sum(r.covers_s.get("throttled_s", r.interval_s) for r in counted)
    return sum(r.interval_s for r in rows)


def _at_full_power(device: Device) -> bool:
    """Whether the power limit is what the board is built for: then a cap is how it always works,
    and every heavy product meets it."""
    gpu = identify(pci_device_id=device.pci_device_id or None, name=device.name)
    if gpu is None or gpu.tdp_w is None or device.power_limit_w is None:
        return False
    return device.power_limit_w >= _FULL_POWER * gpu.tdp_w


def _shared(rank: Rank, rows: Sequence[DeviceSample]) -> Clue | None:
    """Another process with memory on the device, and the device busier than the job makes it
    cannot be told apart from outside: the time is given as what the two could have shared."""
    with_others = [r for r in rows if any(p.whose == "other" for p in r.processes or [])]
    if len(with_others) < SHARED * len(rows):
        return None
    others = {p.pid: p for r in with_others for p in r.processes or [] if p.whose == "other"}
    names = ", ".join(f"{p.name or '?'} ({p.pid})" for p in list(others.values())[:3])
    return Clue(
        cause="device.shared",
        seconds=0.5 * rank.evidence.wall * len(with_others) / len(rows),
        confidence="low",
        evidence=(
            f"{len(others)} process{'es' * (len(others) != 1)} outside the job on the device in "
            f"{percent(len(with_others) / len(rows))} of the samples: {names}",
        ),
    )
