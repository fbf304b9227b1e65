"""Collects what ``brim hw`` shows, and measures when it is asked to.

Nothing here opens a CUDA context in this process: torch runs in a child.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from brim.hardware import attainable, gpus, nccl, settings
from brim.hardware.cores import usable_cores
from brim.hardware.links import Links, links
from brim.hardware.machine import (
    Disk,
    Link,
    Machine,
    MachineDevice,
    Setting,
    Variable,
)
from brim.hardware.storage import storage_of
from brim.observe.devices import open_backend
from brim.observe.nvml import Nvml
from brim.record.devices import Device

_CHILD_TIMEOUT_S = 240

Say = Callable[[str], None]
"""Tells the user what is being done, since it takes seconds."""


def collect(
    *,
    folder: Path | None = None,
    store: attainable.Store | None = None,
    nvml: Any = None,
    arch_list: list[str] | None = None,
) -> Machine:
    """This machine without measuring anything: well under a second.

    ``folder``: whose storage to describe.  ``nvml``: a module like ``pynvml``, None for the
    real one.  Raises :class:`InputError` when the folder does not exist.
    """
    store = attainable.load() if store is None else store
    found, why = open_backend(None if nvml is None else [Nvml(nvml)])
    devices = found.devices() if found is not None else []
    driver = found.driver if found is not None else ""
    if found is not None:
        found.close()
    cores = usable_cores()
    torch = _installed("torch")
    by_index = _links_by_device(devices, nvml) if devices else {}
    return Machine(
        driver=driver,
        why_no_device=why,
        torch=torch,
        devices=[
            _device(device, by_index.get(device.index), torch, arch_list or [], store)
            for device in devices
        ],
        machine_cores=cores.machine,
        usable_cores=cores.usable,
        why_cores=list(cores.reasons),
        memory_bytes=_memory_bytes(),
        nccl=[Variable(**asdict(v)) for v in nccl.variables()],
        storage=_disk(folder, store) if folder is not None else None,
        decode=store.decode,
        cpu=store.device("cpu"),
    )


def measure(
    store: attainable.Store, *, folder: Path | None = None, driver: str = "", say: Say = print
) -> tuple[attainable.Store, list[str], list[str]]:
    """Run the short measurements in children.

    Returns the store with the new figures, the architectures that torch holds code for, and
    what could not be measured, in sentences.
    """
    notes: list[str] = []
    arch_list: list[str] = []
    seen = _child("devices", say, "asking torch for its devices", notes)
    if seen is not None:
        arch_list = seen["arch_list"]
        for figures in _device_figures(seen, driver, say, notes):
            store = store.with_device(figures)
    decoded = _child("decode", say, "decoding JPEG images on one core", notes)
    if decoded is not None:
        store = msgspec.structs.replace(
            store,
            decode=attainable.DecodeFigures(
                images_s=decoded["images_s"], cores=usable_cores().usable, measured_at=time.time()
            ),
        )
    if folder is not None:
        from brim.observe.storage import measure as measure_storage

        say(f"reading files of {folder} past the page cache")
        store = store.with_storage(measure_storage(folder))
    return store, arch_list, notes


def _device_figures(
    seen: dict[str, Any], driver: str, say: Say, notes: list[str]
) -> Iterator[attainable.DeviceFigures]:
    """One device of each model: equal cards are taken to be equal."""
    cpu: list[dict[str, Any]] = [{"name": "cpu", "index": 0, "sm_count": None}]
    devices = {d["name"]: d for d in reversed(seen["devices"])}
    for device in list(devices.values()) or cpu:
        on = f"{device['index']}"
        products = _child("matmul", say, f"matrix products on {device['name']}", notes, on)
        copies = _child("copies", say, f"copies to and from {device['name']}", notes, on)
        if products is not None:
            yield attainable.DeviceFigures(
                name=device["name"],
                sm_count=device["sm_count"],
                driver=driver,
                torch=seen["torch"],
                measured_at=time.time(),
                matmul_flops=products["matmul_flops"],
                copy_bytes_s=(copies or {}).get("copy_bytes_s", {}),
            )


def _child(
    what: str, say: Say, doing: str, notes: list[str], *arguments: str
) -> dict[str, Any] | None:
    """Run one measurement in a process of its own; None with a note when it fails."""
    say(doing)
    command = [sys.executable, "-m", "brim.observe.measure", what, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        notes.append(f"{doing}: no answer in {_CHILD_TIMEOUT_S} s")
        return None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        notes.append(f"{doing}: {last[0]}")
        return None
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _device(
    device: Device,
    found: Links | None,
    torch: str,
    arch_list: list[str],
    store: attainable.Store,
) -> MachineDevice:
    match = gpus.match(
        name=device.name,
        capability=device.capability,
        sm_count=device.sm_count,
        memory_bytes=device.memory_bytes,
        pci_device_id=device.pci_device_id or None,
    )
    gpu = match.gpu
    choices = settings.settings(device.capability, gpu=gpu, torch=torch, arch_list=arch_list)
    dtypes = gpu.dense_tflops if gpu is not None else ()
    peaks = {d: gpus.peak_flops(gpu, d, sm_count=device.sm_count) for d in dtypes if gpu}
    return MachineDevice(
        index=device.index,
        name=device.name,
        uuid=device.uuid,
        capability=".".join(map(str, device.capability)) if device.capability else "",
        memory_bytes=device.memory_bytes,
        power_limit_w=device.power_limit_w,
        known_as=gpu.name if gpu is not None else None,
        identified=match.why,
        peak_flops={d: p for d, p in peaks.items() if p is not None},
        # a MIG slice has a share of the memory's slices, not of the SMs: not in the table
        bandwidth_bytes_s=gpu.bandwidth_gb_s * 1e9 if gpu and not device.parent else None,
        uncertain=list(gpu.uncertain) if gpu is not None else [],
        settings=[Setting(**asdict(choice)) for choice in choices],
        link=_link(found) if found is not None else None,
        attainable=store.device(device.name, device.sm_count),
    )


def _links_by_device(devices: list[Device], lib: Any) -> dict[int, Links]:
    """Links by row: NVML counts whole devices, and partitions follow theirs."""
    whole = [d.index for d in devices if not d.parent]
    return {whole[found.index]: found for found in links(lib) if found.index < len(whole)}


def _link(found: Links) -> Link:
    pcie = found.pcie
    remark = ""
    if pcie is not None and pcie.narrow:
        remark = f"only {pcie.width} of the card's {pcie.max_width} lanes are in use"
    return Link(
        pcie=f"Gen{pcie.max_generation} x{pcie.width}" if pcie is not None else "",
        pcie_gb_s=pcie.gb_s if pcie is not None else None,
        remark=remark,
        nvlinks=found.nvlinks,
        peers={str(other): way for other, way in found.peers.items()},
    )


def _disk(folder: Path, store: attainable.Store) -> Disk:
    found = storage_of(folder)
    measured = next((s for s in store.storage if s.folder == str(found.folder)), None)
    return Disk(
        folder=str(found.folder),
        file_system=found.file_system,
        source=found.source,
        kind=found.kind,
        rotational=found.rotational,
        free_bytes=found.free_bytes,
        total_bytes=found.total_bytes,
        remark=found.remark,
        measured=measured,
    )


def _installed(package: str) -> str:
    """The version by its metadata: importing torch would take seconds."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _memory_bytes() -> int | None:
    import psutil

    return int(psutil.virtual_memory().total)
