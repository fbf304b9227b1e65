"""The live view as rows of styled text: the same for the terminal view and for ``--once``.

Pure functions of the state, so that what is drawn at 80×24 is a test.  Foreign text (names of
processes, devices, runs) is cleaned, and every row is exactly as wide as it may be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from brim.record.devices import Device, DeviceSample, HostSample, why_absent
from brim.report import live_ranks
from brim.report.live_job import JobView
from brim.report.live_state import LiveState
from brim.report.palette import cells
from brim.report.words import clean, number

Row = list[tuple[str, str]]
"""Pieces of (text, style name)."""

STYLES = {
    "": "",
    "dim": "bright_black",
    "head": "bold",
    "value": "bold green",
    "warn": "yellow",
    "bad": "bold red",
    "input": "red",
    "forward": "green",
    "backward": "cyan",
    "optimizer": "blue",
    "evaluation": "magenta",
    "saving": "bright_magenta",
}

_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_ASCII = " .:-=+*#"
_BAR = "█▓▒░╱╳"
_BAR_ASCII = "#=+-/x"
_ABSENT = "–"
_MAKERS = ("NVIDIA ", "GeForce ", "Tesla ", "AMD Instinct ")
_MEMORY_SIZE = re.compile(r"[- ]\d+GB.*$")


@dataclass(frozen=True, slots=True)
class Canvas:
    """How much room there is, and which characters the terminal has."""

    width: int = 80
    height: int = 24
    unicode: bool = True


def rows(state: LiveState, canvas: Canvas, *, clock: str, footer: str = "") -> list[Row]:
    """The whole screen; at most ``canvas.height`` rows, the process table takes what is left.

    ``clock``: the time as text.  ``footer``: the last row.
    """
    head = [_title(state, canvas, clock), *_devices(state, canvas)]
    alerts = _alerts(state, canvas)
    body = [*_job(state.job, canvas), *_host(state, canvas)]
    foot = [[(_fit(footer, canvas.width), "dim")]] if footer else []
    left = canvas.height - len(head) - len(alerts) - len(body) - len(foot)
    table = _processes(state, canvas, left) if left >= 2 else []
    screen = [*head, *alerts, *body, *table]
    room = canvas.height - len(foot)
    # on a screen that is too small the devices and the alerts stay
    screen = [_cut(row, canvas.width) for row in screen[:room]]
    gap: list[Row] = [[]] * (room - len(screen)) if foot else []
    return [*screen, *gap, *foot]


def plain(row: Row) -> str:
    """The row's text without styles or trailing spaces."""
    return "".join(text for text, _ in row).rstrip()


def _title(state: LiveState, canvas: Canvas, clock: str) -> Row:
    about = state.about
    driver = f" · driver {about.driver}" if about.driver else ""
    left = f"brim watch · {clean(about.host)}{driver}"
    return [(_fit(left, canvas.width - len(clock) - 1), "head"), (f" {clock}", "dim")]


def _devices(state: LiveState, canvas: Canvas) -> list[Row]:
    if not state.devices:
        text = f"no device: {state.about.why_none or 'none was found'}"
        return [[(_fit(text, canvas.width), "warn")]]
    name_width, spark_width = _flexible(canvas.width)
    label = state.activity(state.devices[0].index)[0]
    heading = (
        f"{'dev':<4}{'name':<{name_width}}{'util':>5}{'SM':>5}{'tensor':>7}{'DRAM':>5}"
        f"{'memory GiB':>12}{'watt':>6}{'MHz':>5}{'in B/s':>7}{'out':>6} "
    )
    table: list[Row] = [[(_fit(heading + label, canvas.width), "dim")]]
    table += [_device(state, device, name_width, spark_width, canvas) for device in state.devices]
    missing = _missing(state)
    if missing:
        table.append([(_fit(f"{_ABSENT} {missing}", canvas.width), "dim")])
    return table


def _flexible(width: int) -> tuple[int, int]:
    """(name, sparkline): the rest of a row is 62 wide."""
    name = max(10, min(24, 10 + (width - 80) // 3))
    return name, max(0, width - 63 - name)


def _device(
    state: LiveState, device: Device, name_width: int, spark_width: int, canvas: Canvas
) -> Row:
    sample = state.last(device.index)
    if sample is None:
        return [(_fit(f"{device.index:<4}{_name(device)} (no sample yet)", canvas.width), "dim")]
    row: Row = [
        (f"{device.index:<4}", ""),
        (_fit(_name(device), name_width - 1) + " ", ""),
        # dim: it says 98 % at 3 % and at 50 % of the peak alike
        (f"{_share(sample.gpu_util):>5}", "dim"),
        (f"{_share(sample.sm_active):>5}", ""),
        (f"{_share(sample.tensor_active):>7}", "value"),
        (f"{_share(sample.dram_active):>5}", ""),
        (f"{_memory(sample, device):>12}", ""),
        (f"{_whole(sample.power_w):>6}", ""),
        (f"{_whole(sample.sm_clock_mhz):>5}", "warn" if _held(state, device) else ""),
        (f"{_bytes(sample.pcie_rx_bytes_s):>7}", ""),
        (f"{_bytes(sample.pcie_tx_bytes_s):>6} ", ""),
    ]
    _, history = state.activity(device.index)
    row.append((sparkline(history, spark_width, unicode=canvas.unicode), "forward"))
    return row


def sparkline(values: list[float], width: int, *, unicode: bool = True) -> str:
    """The newest ``width`` shares, newest last, padded on the left."""
    levels = _SPARK if unicode else _SPARK_ASCII
    if width <= 0:
        return ""
    top = len(levels) - 1
    marks = [levels[min(top, max(0, round(v * top)))] for v in values[-width:]]
    return "".join(marks).rjust(width)


def _missing(state: LiveState) -> str:
    """Why a column is empty: one reason for the first device that lacks something."""
    for device in state.devices:
        sample = state.last(device.index)
        if sample is None:
            continue
        for field in ("tensor_active", "gpu_util", "power_w"):
            if getattr(sample, field) is None and (why := why_absent(state.about, sample, field)):
                return f"{field} on device {device.index}: {clean(why)}"
    return ""


def _held(state: LiveState, device: Device) -> bool:
    return any(share >= 0.05 for share in state.throttling(device.index).values())


def _alerts(state: LiveState, canvas: Canvas) -> list[Row]:
    found = state.alerts()
    most = max(1, canvas.height // 8)
    shown: list[Row] = [
        [(_fit(f"! {clean(a.text)}", canvas.width), "bad" if a.severe else "warn")]
        for a in found[:most]
    ]
    if len(found) > most:
        shown[-1] = [(_fit(f"! and {len(found) - most + 1} more alerts", canvas.width), "bad")]
    return shown


def _job(job: JobView | None, canvas: Canvas) -> list[Row]:
    if job is None:
        return []
    facts = [f"step {job.step}"]
    if job.steps_s:
        facts.append(f"{number(1 / job.steps_s)} s/step")
    if job.tokens_s is not None:
        facts.append(f"{number(job.tokens_s)} tokens/s")
    if job.images_s is not None:
        facts.append(f"{number(job.images_s)} images/s")
    if job.loss is not None:
        facts.append(f"loss {job.loss:.4g}")
    if job.samples_s is not None:  # last: on a narrow screen the end is left out
        facts.append(f"{number(job.samples_s)} samples/s")
    ranks = f" · {job.ranks} ranks" if job.ranks > 1 else ""
    title = f"job {clean(job.name)}{ranks} · {job.state}"
    found: list[Row] = [
        [(_fit(title, canvas.width), "head")],
        [(_fit(_joined(facts, canvas.width), canvas.width), "")],
    ]
    if job.phases:
        found += _phases(job.phases, canvas)
    if job.across is not None and (line := live_ranks.words(job.across)):
        found.append([(_fit(line, canvas.width), "warn")])
    if job.verdict:
        found.append([(_fit(clean(job.verdict), canvas.width), "warn")])
    return found


def _phases(phases: dict[str, float], canvas: Canvas) -> list[Row]:
    """Where the training threads' time goes: a bar, and its legend in the same order."""
    glyphs = _BAR if canvas.unicode else _BAR_ASCII
    bar: Row = []
    legend: Row = []
    for i, (name, count) in enumerate(zip(phases, _bar_cells(phases, canvas), strict=True)):
        style = name.partition(",")[0]
        glyph = glyphs[i % len(glyphs)]
        bar.append((glyph * count, style))
        legend.append((f"{glyph} ", style))
        legend.append((f"{name} {phases[name]:.0%}  ", ""))
    return [bar, legend]


def _bar_cells(phases: dict[str, float], canvas: Canvas) -> list[int]:
    return cells(list(phases.values()), canvas.width)


def _host(state: LiveState, canvas: Canvas) -> list[Row]:
    host, about = state.host, state.about
    if host is None:
        return []
    usable = about.usable_cores
    of = f" of {usable:g} usable" if usable is not None else ""
    job = f", job {host.job_cpu:.1f}" if host.job_cpu is not None else ""
    parts = [f"cores {_one(host.cpu)} busy{of}{job}", *_pressure(host)]
    parts.append(f"disk {_bytes(host.disk_read_bytes_s)}/{_bytes(host.disk_write_bytes_s)} B/s")
    parts.append(f"net {_bytes(host.net_rx_bytes_s)}/{_bytes(host.net_tx_bytes_s)}")
    if host.page_cache_bytes is not None:
        parts.append(f"cache {_bytes(host.page_cache_bytes)}")
    return [[(_fit(_joined(parts, canvas.width), canvas.width), "")]]


def _joined(parts: list[str], width: int) -> str:
    """As many of the parts as fit whole, the first in any case."""
    text = parts[0]
    for part in parts[1:]:
        longer = f"{text} · {part}"
        if cell_len(longer) > width:
            break
        text = longer
    return text


def _pressure(host: HostSample) -> list[str]:
    psi = host.psi or {}
    words = {"cpu.some": "cpu", "io.some": "io", "memory.some": "memory"}
    waits = [f"{word} {psi[name]:.0%}" for name, word in words.items() if psi.get(name, 0) >= 0.01]
    return [f"waits {' '.join(waits)}"] if waits else []


def _processes(state: LiveState, canvas: Canvas, room: int) -> list[Row]:
    """Processes on devices, then those of the job by CPU; ``room`` rows with the heading."""
    heading = (
        f"{'pid':>8} {'whose':<8}{'device GiB':>11}{'cpu':>6}{'kernel':>7} {'st':<3}{'thr':>4}"
    )
    heading += f"{'rss':>7}  name"
    lines: list[Row] = []
    on_device = _by_pid(state)
    host = {p.pid: p for p in (state.host.processes if state.host else [])}
    for pid in [*on_device, *(p for p in host if p not in on_device)]:
        whose, memory, name = on_device.get(pid, ("job", None, ""))
        seen = host.get(pid)
        text = (
            f"{pid:>8} {whose:<8}{_gib(memory):>11}{_one(seen.cpu if seen else None):>6}"
            f"{_one(seen.system if seen else None):>7} {seen.state if seen else '':<3}"
            f"{(seen.threads if seen and seen.threads else ''):>4}"
            f"{_bytes(seen.rss_bytes if seen else None):>7}  {clean(seen.name if seen else name)}"
        )
        lines.append([(_fit(text, canvas.width), "bad" if whose == "other" else "")])
    if not lines:
        return []
    return [[(_fit(heading, canvas.width), "dim")], *lines[: room - 1]]


def _by_pid(state: LiveState) -> dict[int, tuple[str, int | None, str]]:
    """pid → (whose, bytes on all devices, name); another's first."""
    found: dict[int, tuple[str, int | None, str]] = {}
    for device in state.devices:
        sample = state.last(device.index)
        for p in (sample.processes if sample else None) or []:
            _, before, _ = found.get(p.pid, ("", None, ""))
            known = p.memory_bytes is not None or before is not None
            total = (before or 0) + (p.memory_bytes or 0) if known else None
            found[p.pid] = (p.whose, total, p.name)
    order = {"other": 0, "job": 1, "unknown": 2}
    return dict(sorted(found.items(), key=lambda item: order[item[1][0]]))


def _name(device: Device) -> str:
    name = clean(device.name)
    for maker in _MAKERS:
        name = name.removeprefix(maker)
    if device.parent and "MIG" in name:
        return "└ " + name[name.find("MIG") + 4 :]
    # the memory has a column of its own
    return _MEMORY_SIZE.sub("", name)


def _share(value: float | None) -> str:
    return _ABSENT if value is None else f"{value * 100:.0f}%"


def _whole(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.0f}"


def _one(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.1f}"


def _memory(sample: DeviceSample, device: Device) -> str:
    if sample.memory_used_bytes is None:
        return _ABSENT
    total = f"/{device.memory_bytes / 2**30:.0f}" if device.memory_bytes else ""
    return f"{sample.memory_used_bytes / 2**30:.1f}{total}"


def _gib(value: int | None) -> str:
    return _ABSENT if value is None else f"{value / 2**30:.1f}"


def _bytes(value: float | None) -> str:
    """``842000000`` → ``842M``, at most four characters for what a machine moves."""
    if value is None:
        return _ABSENT
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            scaled = value / factor
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def _fit(text: str, width: int) -> str:
    """Exactly ``width`` cells: cut, or filled with spaces."""
    return set_cell_size(text, max(0, width))


def _cut(row: Row, width: int) -> Row:
    """The row's pieces up to ``width`` cells."""
    kept: Row = []
    for text, style in row:
        cells_of = cell_len(text)
        if cells_of > width:
            return [*kept, (_fit(text, width), style)]
        kept.append((text, style))
        width -= cells_of
    return kept
