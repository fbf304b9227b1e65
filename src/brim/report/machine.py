"""``brim hw`` in a terminal: devices, settings with reasons, cores, links, NCCL, storage."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from brim.hardware.attainable import DeviceFigures, StorageFigures
from brim.hardware.machine import Disk, Link, Machine, MachineDevice
from brim.report.words import clean, number
from brim.units import percent, rate, size

_SHOWN_TYPES = ("bf16", "fp16", "fp8", "tf32", "fp32")


def render(machine: Machine, console: Console) -> None:
    """Print the machine; foreign text (names, values, paths) is cleaned first."""
    shown: list[MachineDevice] = []
    for device in machine.devices:
        _device(device, machine.driver, console, like=_like(device, shown))
        shown.append(device)
    if not machine.devices:
        _line(console, "devices", f"none: {machine.why_no_device}", style="yellow")
        if machine.cpu is not None:
            products = [f"{t} {rate(v, 'FLOP')}" for t, v in machine.cpu.matmul_flops.items()]
            _line(console, "CPU reaches", " · ".join(products))
    _cores(machine, console)
    _decode(machine, console)
    if machine.storage is not None:
        _storage(machine.storage, console)
    _nccl(machine, console)
    for note in machine.notes:
        _line(console, "note", note, style="yellow")


def _line(console: Console, label: str, text: str, *, style: str = "") -> None:
    """A label, and text that wraps under itself."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=14)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="dim"), Text(clean(text), style=style))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _like(device: MachineDevice, shown: list[MachineDevice]) -> MachineDevice | None:
    """An earlier device of the same model, whose settings need not be told again."""
    return next((s for s in shown if s.name == device.name and s.settings == device.settings), None)


def _device(
    device: MachineDevice, driver: str, console: Console, *, like: MachineDevice | None
) -> None:
    console.print(Text(f"device {device.index}: {clean(device.name)}", style="bold"))
    if like is not None:
        _line(console, "", f"as device {like.index}")
        if device.link is not None:
            _link(device.link, console)
        return
    known = f"{device.known_as}, {device.identified}" if device.known_as else device.identified
    _line(console, "known as", known, style="" if device.known_as else "yellow")
    _line(console, "has", _facts(device, driver))
    if device.peak_flops:
        _line(console, "peak", _flops(device.peak_flops) + ", dense")
    if device.attainable is not None:
        _attained(device, device.attainable, console)
    else:
        _line(console, "reached", "not measured here yet: brim hw --measure")
    if device.link is not None:
        _link(device.link, console)
    _settings(device, console)
    if device.uncertain:
        _line(console, "not confirmed", "; ".join(device.uncertain), style="dim")


def _facts(device: MachineDevice, driver: str) -> str:
    facts = [
        f"sm_{device.capability.replace('.', '')}" if device.capability else "",
        size(device.memory_bytes) if device.memory_bytes is not None else "",
        rate(device.bandwidth_bytes_s, "B") if device.bandwidth_bytes_s is not None else "",
        f"{device.power_limit_w:g} W limit" if device.power_limit_w is not None else "",
        f"driver {driver}" if driver else "",
    ]
    return " · ".join(f for f in facts if f)


def _flops(figures: dict[str, float]) -> str:
    shown = [t for t in _SHOWN_TYPES if t in figures]
    return " · ".join(f"{t} {number(figures[t] / 1e12)}" for t in shown) + " TFLOP/s"


def _attained(device: MachineDevice, figures: DeviceFigures, console: Console) -> None:
    parts = []
    for dtype in (t for t in _SHOWN_TYPES if t in figures.matmul_flops):
        reached = figures.matmul_flops[dtype]
        peak = device.peak_flops.get(dtype)
        of_peak = f" ({percent(reached / peak)})" if peak else ""
        parts.append(f"{dtype} {number(reached / 1e12)}{of_peak}")
    _line(console, "reached", " · ".join(parts) + " TFLOP/s, of peak")
    if figures.copy_bytes_s:
        copies = [f"{name} {rate(v, 'B')}" for name, v in figures.copy_bytes_s.items()]
        _line(console, "copies", " · ".join(copies))


def _link(link: Link, console: Console) -> None:
    parts = []
    if link.pcie:
        speed = f", {link.pcie_gb_s:.0f} GB/s each way" if link.pcie_gb_s is not None else ""
        parts.append(f"PCIe {link.pcie}{speed}")
    if link.nvlinks:
        parts.append(f"{link.nvlinks} NVLinks")
    parts += [f"to {other}: {way}" for other, way in link.peers.items()]
    _line(console, "links", " · ".join(parts) or "not known to the driver")
    if link.remark:
        _line(console, "", link.remark, style="yellow")


def _settings(device: MachineDevice, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold", max_width=24)
    table.add_column("because", overflow="fold", style="dim")
    for setting in device.settings:
        style = "red" if setting.value == "does not fit" else ""
        table.add_row(setting.name, Text(setting.value, style=style), Text(setting.why))
    console.print(Padding(table, (0, 0, 1, 2)))


def _cores(machine: Machine, console: Console) -> None:
    text = f"{machine.usable_cores:g} of {machine.machine_cores} usable"
    if machine.why_cores:
        text += ": " + "; ".join(machine.why_cores)
    limited = machine.usable_cores < machine.machine_cores
    _line(console, "cores", text, style="yellow" if limited else "")
    if machine.memory_bytes is not None:
        _line(console, "memory", size(machine.memory_bytes))


def _decode(machine: Machine, console: Console) -> None:
    if machine.decode is not None:
        rates = [f"{name} {v:.0f}" for name, v in machine.decode.images_s.items()]
        text = " · ".join(rates) + " images of 1 Mpx per second and core"
        _line(console, "decodes", text)


def _storage(disk: Disk, console: Console) -> None:
    spinning = {True: ", spinning", False: ", solid state", None: ""}[disk.rotational]
    text = (
        f"{disk.folder}: {disk.file_system} on {disk.source} ({disk.kind}{spinning}), "
        f"{size(disk.free_bytes)} free of {size(disk.total_bytes)}"
    )
    _line(console, "storage", text)
    if disk.remark:
        _line(console, "", disk.remark, style="yellow")
    if disk.measured is not None:
        _line(console, "", _reading(disk.measured))


def _reading(measured: StorageFigures) -> str:
    eight = (
        f", {rate(measured.read_bytes_s_8, 'B')} with eight readers"
        if measured.read_bytes_s_8 is not None
        else ""
    )
    cached = "; the page cache could not be emptied, so this is too good" if measured.cached else ""
    return (
        f"reads {rate(measured.read_bytes_s, 'B')}{eight}, first byte after "
        f"{measured.first_byte_ms:.3g} ms, in {measured.files} files{cached}"
    )


def _nccl(machine: Machine, console: Console) -> None:
    if not machine.nccl:
        _line(console, "NCCL", "no variables set: its own choices hold")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("variable", "class", "from", "remark"):
        table.add_column(name, overflow="fold")
    for v in machine.nccl:
        style = "dim" if not v.effective else "yellow" if v.kind == "debugging" else ""
        cells = (f"{v.name}={v.value}", v.kind, v.origin, v.note)
        table.add_row(*(Text(clean(c), style=style) for c in cells))
    console.print(Padding(table, (0, 0, 0, 2)))
