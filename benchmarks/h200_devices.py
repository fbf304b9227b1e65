"""Device figures against known work, on a machine with an NVIDIA GPU.

    python benchmarks/h200_devices.py --out folder          under three minutes

* a matrix product of known FLOPs at three duty cycles, and one of zeros, which no power cap slows:
  tensor activity against FLOPs and the mean clock of the driver's ring buffer
* copies of known bytes both ways: PCIe against bytes
* ``nvidia-smi dmon`` beside the first two
* what a sample costs, and that sampling opens no CUDA context
* a recording of NVML's answers under load, for the tests' fake
* the live view beside a small training job, as SVG and text
* ``brim hw --measure``

Writes ``summary.json`` and the files it mentions into the folder.  Needs torch; the view needs
textual.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

Json = dict[str, Any]
SIZE = 8192
COPY_BYTES = 256 << 20
# FLOP per SM and cycle of dense bf16 on Hopper's tensor cores: 989.4e12 / (132 SMs × 1.83 GHz)
HOPPER_FLOP_PER_CYCLE = 4096
SETTLE_S = 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--skip", nargs="*", default=[], choices=[name for name, _ in PARTS])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if (why := _unfit()) is not None:
        print(f"h200_devices: nothing measured: {why}", file=sys.stderr)
        return 1
    summary: Json = {"versions": _versions()}
    for name, part in PARTS:
        if name not in args.skip:
            began = time.monotonic()
            try:
                summary[name] = part(args.out)
            except Exception as error:  # one part must not cost the others
                summary[name] = {"error": f"{type(error).__name__}: {error}"}
            summary[name]["took_s"] = round(time.monotonic() - began, 1)
            print(name, json.dumps(summary[name])[:600], flush=True)
            (args.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return 0


def _unfit() -> str | None:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None


def _environment() -> dict[str, str]:
    """For children: brim's source before what is there already."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def _versions() -> Json:
    import importlib.metadata

    import torch

    names = ("nvidia-ml-py", "textual", "rich", "msgspec", "prometheus-client", "psutil")
    found: Json = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0)}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


# ------------------------------------------------------------------ known work


def known_work(out: Path) -> Json:
    """Phases of known work while ``brim watch --headless --record`` runs beside."""
    import torch

    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    on_device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    pinned = torch.ones(COPY_BYTES, dtype=torch.uint8).pin_memory()

    def product() -> None:
        torch.mm(a, b, out=c)

    zeros = torch.zeros_like(a)

    def product_of_zeros() -> None:
        torch.mm(zeros, zeros, out=c)

    for _ in range(20):
        product()
    torch.cuda.synchronize()
    phases: Json = {}
    recording = out / "devices.host.jsonl"
    with _recorder(recording), _dmon(out):
        time.sleep(3.0)  # the recorder starts
        phases["idle"] = _phase(lambda: time.sleep(0.05), 3.0, duty=1.0)
        for duty in (1.0, 0.5, 0.2):
            phases[f"matmul_{duty}"] = _phase(product, 5.0, duty=duty, flops=2 * SIZE**3)
        phases["matmul_zeros"] = _phase(product_of_zeros, 5.0, duty=1.0, flops=2 * SIZE**3)
        phases["h2d"] = _phase(
            lambda: on_device.copy_(pinned, non_blocking=True), 5.0, duty=1.0, moved=COPY_BYTES
        )
        phases["d2h"] = _phase(
            lambda: pinned.copy_(on_device, non_blocking=True), 5.0, duty=1.0, moved=COPY_BYTES
        )
        time.sleep(0.6)
    return _compare(recording, phases)


def _phase(
    run: Callable[[], Any], seconds: float, *, duty: float, flops: int = 0, moved: int = 0
) -> Json:
    """Repeat ``run`` for some seconds, busy for ``duty`` of every 100 ms; what was done."""
    import torch

    begin = time.monotonic()
    clock = _MeanClock()
    count, marks = 0, [(begin, 0)]
    while time.monotonic() - begin < seconds:
        slice_began = time.monotonic()
        while True:
            run()
            torch.cuda.synchronize()
            count += 1
            if time.monotonic() - slice_began >= 0.1 * duty:
                break
        if duty < 1.0:
            time.sleep(max(0.0, 0.1 - (time.monotonic() - slice_began)))
        marks.append((time.monotonic(), count))
        if time.monotonic() - begin > SETTLE_S:
            clock.read(every_s=0.5)
    return {"marks": marks, "flops": flops, "bytes": moved, "clock_mhz": clock.mean()}


class _MeanClock:
    """Mean SM clock between the first reading and the last, from the driver's ring buffer.

    One reading of the momentary clock twice a second says little while a power cap moves it.
    """

    KIND = 5  # NVML_PROCESSOR_CLK_SAMPLES

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._lib, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self._seen, self._values, self._last = 0, [], 0.0

    def read(self, *, every_s: float) -> None:
        now = time.monotonic()
        if now - self._last < every_s:
            return
        first, self._last = self._last == 0.0, now
        with contextlib.suppress(self._lib.NVMLError):
            _, found = self._lib.nvmlDeviceGetSamples(self._handle, self.KIND, self._seen)
            fresh = [s for s in found if s.timeStamp > self._seen]
            self._seen = max([self._seen, *(s.timeStamp for s in fresh)])
            if not first:  # what the buffer held before
                self._values += [s.sampleValue.uiVal for s in fresh]

    def mean(self) -> float | None:
        return statistics.fmean(self._values) if self._values else None


def _between(marks: list[tuple[float, int]], low: float, high: float) -> float:
    """Runs that ended between two moments, by linear interpolation."""

    def at(t: float) -> float:
        before = max((m for m in marks if m[0] <= t), default=marks[0])
        after = min((m for m in marks if m[0] >= t), default=marks[-1])
        if after[0] == before[0]:
            return float(before[1])
        share = (t - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])

    return at(high) - at(low)


def _compare(recording: Path, phases: Json) -> Json:
    """For each phase: brim's figures, and what FLOPs, clock and bytes say for the same moments."""
    from brim.record.devices import read

    recorded = read(recording)
    device = recorded.about.devices[0]
    import torch

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    result: Json = {"device": device.name, "driver": recorded.about.driver, "phases": {}}
    for name, phase in phases.items():
        marks = phase["marks"]
        inside = [
            s
            for s in recorded.of(0)
            if s.mono - s.interval_s > marks[0][0] + SETTLE_S and s.mono < marks[-1][0]
        ]
        result["phases"][name] = _phase_figures(inside, phase, sms) | {"samples": len(inside)}
    result["absent"] = device.absent
    return result


def _phase_figures(inside: list[Any], phase: Json, sms: int) -> Json:
    from brim.observe.gpm import payload

    if not inside:
        return {"error": "no sample fell into this phase"}
    low, high = inside[0].mono - inside[0].interval_s, inside[-1].mono
    rate = _between(phase["marks"], low, high) / (high - low)

    def mean(field: str) -> float | None:
        values = [v for s in inside if (v := getattr(s, field)) is not None]
        return statistics.fmean(values) if values else None

    fields = (
        "gpu_util", "mem_util", "sm_active", "sm_occupancy", "tensor_active", "dram_active",
        "pcie_rx_bytes_s", "pcie_tx_bytes_s", "power_w", "sm_clock_mhz", "temperature_c",
    )  # fmt: skip
    figures: Json = {field: mean(field) for field in fields}
    counted = [s for s in inside if s.energy_j is not None]
    if len(counted) > 1:
        first, last = counted[0], counted[-1]
        figures["power_from_energy_w"] = (last.energy_j - first.energy_j) / (last.t - first.t)
    throttled: dict[str, float] = {}
    for s in inside:
        for reason, seconds in (s.throttled_s or {}).items():
            throttled[reason] = throttled.get(reason, 0.0) + seconds
    figures["throttled_share"] = {r: round(v / (high - low), 3) for r, v in throttled.items()}
    figures["reasons"] = sorted({r for s in inside for r in s.reasons or ()})
    if phase["flops"]:
        flops = rate * phase["flops"]
        figures["flops"] = flops
        clock = phase.get("clock_mhz") or figures["sm_clock_mhz"]
        figures["mean_clock_mhz"] = phase.get("clock_mhz")
        if clock:
            expected = flops / (sms * HOPPER_FLOP_PER_CYCLE * clock * 1e6)
            figures["tensor_expected"] = expected
            figures["tensor_off_points"] = 100 * ((figures["tensor_active"] or 0) - expected)
    if phase["bytes"]:
        figures["bytes_s"] = rate * phase["bytes"]
        for way in ("pcie_rx_bytes_s", "pcie_tx_bytes_s"):
            if figures[way]:
                figures[f"{way}_over_known"] = figures[way] / figures["bytes_s"]
                figures[f"{way}_payload_over_known"] = (
                    payload(way, figures[way]) / figures["bytes_s"]
                )
    return figures


@contextlib.contextmanager
def _recorder(path: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "brim", "watch", "--headless", "--record", str(path)]
    env = _environment()
    path.unlink(missing_ok=True)
    child = subprocess.Popen([*command, "--interval", "0.25"], env=env)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(10)


@contextlib.contextmanager
def _dmon(out: Path) -> Iterator[None]:
    """``nvidia-smi dmon`` beside, with and without GPM's figures."""
    commands = {
        "dmon.txt": ["nvidia-smi", "dmon", "-s", "pucmt", "-o", "T", "-d", "1"],
        "dmon_gpm.txt": ["nvidia-smi", "dmon", "--gpm-metrics", "2,3,5,10,20,21", "-o", "T"],
    }
    with contextlib.ExitStack() as stack:
        for name, command in commands.items():
            file = stack.enter_context((out / name).open("w"))
            with contextlib.suppress(OSError):
                child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
                stack.callback(child.wait, 10)
                stack.callback(child.terminate)
        yield


# ------------------------------------------------------------------ cost, recording


def under_load(out: Path) -> Json:
    """CPU and wall time of a sample and of each call, no context opened; then the recording."""
    import pynvml
    import record_nvml

    from brim.observe.devices import Probe

    with _load():
        probe = Probe()
        walls, cpus = [], []
        for _ in range(40):
            time.sleep(0.5)  # as watch does: the readings' periods follow from it
            wall, cpu = time.perf_counter(), time.thread_time()
            probe.sample()
            walls.append(time.perf_counter() - wall)
            cpus.append(time.thread_time() - cpu)
        devices = len(probe.devices())
        probe.close()
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pids = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        calls = _calls(pynvml, handle)
        recording = record_nvml.record(pynvml, seconds=8.0, period=0.5)
    (out / "h200.json").write_text(json.dumps(recording, indent=1) + "\n")
    half_second = statistics.fmean(cpus) / 0.5
    return {
        "devices": devices,
        "sample_wall_ms": _spread(walls, 1e3),
        "sample_cpu_ms": _spread(cpus, 1e3),
        "core_share_at_2_hz": half_second,
        "calls_us": calls,
        "cuda_processes": pids,
        "own_pid": os.getpid(),
    }


def _spread(values: list[float], factor: float) -> Json:
    ordered = sorted(v * factor for v in values)
    return {"median": ordered[len(ordered) // 2], "max": ordered[-1]}


def _calls(lib: Any, handle: Any) -> Json:
    """Median µs of wall time and of CPU of each call that a sample makes or could make."""
    from brim.observe.gpm import Gpm

    calls: dict[str, Callable[[], Any]] = {
        **{
            f"field {number}": lambda number=number: lib.nvmlDeviceGetFieldValues(handle, [number])
            for number in (83, 74, 76, 185, 186, 197, 198, 269, 270, 271)
        },
        "fields": lambda: lib.nvmlDeviceGetFieldValues(handle, [83, 74, 76, 269, 270, 271]),
        "samples": lambda: lib.nvmlDeviceGetSamples(handle, 1, 0),
        "power": lambda: lib.nvmlDeviceGetPowerUsage(handle),
        "energy": lambda: lib.nvmlDeviceGetTotalEnergyConsumption(handle),
        "violation": lambda: lib.nvmlDeviceGetViolationStatus(handle, 0),
        "memory": lambda: lib.nvmlDeviceGetMemoryInfo(handle),
        "clock": lambda: lib.nvmlDeviceGetClockInfo(handle, 1),
        "reasons": lambda: lib.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "processes": lambda: lib.nvmlDeviceGetComputeRunningProcesses(handle),
        "temperature": lambda: lib.nvmlDeviceGetTemperature(handle, 0),
        "utilization": lambda: lib.nvmlDeviceGetUtilizationRates(handle),
        "pcie_throughput": lambda: lib.nvmlDeviceGetPcieThroughput(handle, 0),
    }
    with contextlib.suppress(lib.NVMLError):
        calls["gpm"] = Gpm(lib, handle).read
    found: Json = {}
    for name, call in calls.items():
        times, cpus = [], []
        try:
            for _ in range(20):
                began, cpu = time.perf_counter(), time.thread_time()
                call()
                cpus.append((time.thread_time() - cpu) * 1e6)
                times.append((time.perf_counter() - began) * 1e6)
                time.sleep(0.01)
            found[name] = [round(statistics.median(values), 1) for values in (times, cpus)]
        except lib.NVMLError as error:
            found[name] = str(error)
    return found


# ------------------------------------------------------------------ the live view

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Tokens(Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.randint(0, 32000, (512,))

def main(seconds):
    model = torch.nn.Sequential(
        torch.nn.Embedding(32000, 2048),
        torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.0), 4),
        torch.nn.Linear(2048, 32000)).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    end = time.monotonic() + seconds
    for ids in DataLoader(Tokens(), batch_size=16, num_workers=4):
        ids = ids.cuda()
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        if time.monotonic() > end: break

if __name__ == "__main__":
    main(float(sys.argv[1]))
"""


def live_view(out: Path) -> Json:
    """The view at 80×24 and 120×30 beside a job with hooks, as SVG and as text."""
    from brim.observe.child import Child
    from brim.observe.devices import Probe
    from brim.observe.feed import Feed
    from brim.record.run import create
    from brim.report.live_job import JobFollower
    from brim.report.live_rows import Canvas, plain, rows
    from brim.report.live_state import LiveState

    script = out / "train.py"
    script.write_text(TRAINING)
    folder = create(out / "runs", ["python", "train.py"], {}, "0")
    child = Child([sys.executable, str(script), "30"], folder, output=folder / "output.log")
    probe = Probe(job=child.pid, with_root=True)
    state = LiveState(probe.about(0.5))

    def consume(about: Any, devices: Any, host: Any) -> None:
        state.about = about
        state.add(devices, host)

    feed = Feed(probe, 0.5, consume)
    follower = JobFollower(folder)

    def tick() -> bool:
        feed.tick()
        state.job = follower.view()
        return True

    try:
        end = time.monotonic() + 12
        while time.monotonic() < end:
            time.sleep(0.5)
            tick()
        text = [plain(r) for r in rows(state, Canvas(), clock="12:00:00")]
        (out / "watch.txt").write_text("\n".join(text) + "\n")
        with contextlib.suppress(ImportError):
            asyncio.run(_shoot(state, tick, out))
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        feed.close()
    return {"job": state.job is not None, "alerts": [a.text for a in state.alerts()]}


async def _shoot(state: Any, tick: Callable[[], bool], out: Path) -> None:
    from brim.report.live import LiveApp

    for width, height in ((80, 24), (120, 30)):
        app = LiveApp(state, tick, 0.5)
        async with app.run_test(size=(width, height)) as pilot:
            await pilot.pause(1.6)
            (out / f"watch_{width}x{height}.svg").write_text(app.export_screenshot())


@contextlib.contextmanager
def _load() -> Iterator[None]:
    """A training-like load from another process."""
    path = Path(f"/tmp/brim_load_{os.getpid()}.py")
    path.write_text(TRAINING)
    child = subprocess.Popen([sys.executable, str(path), "60"], start_new_session=True)
    try:
        time.sleep(9.0)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        path.unlink()


def view_cost(out: Path) -> Json:
    """CPU share of the whole view in a terminal: this machine's devices, and eight by the fake."""
    import watch_cost

    found: Json = {}
    recording = out / "eight.json"
    recording.write_text(json.dumps(watch_cost._recording("eight")))
    for name, source in (("this machine", None), ("fake of eight", recording)):
        share, drawn = watch_cost.measure(source, 7.0, 2.5, [])
        found[name] = {"core_share": round(share, 5), "bytes_drawn_per_s": round(drawn)}
    return found


def hw(out: Path) -> Json:
    """``brim hw --measure``, its facts and its page."""
    command = [sys.executable, "-m", "brim", "hw", str(out), "--measure"]
    env = {
        **_environment(),
        "XDG_CACHE_HOME": str(out.resolve() / "cache"),
        "COLUMNS": "100",
    }
    done = subprocess.run(
        [*command, "--json", str(out / "hw.json")], env=env, capture_output=True, text=True
    )
    (out / "hw.txt").write_text(done.stdout + done.stderr)
    return {"exit_code": done.returncode}


PARTS: list[tuple[str, Callable[[Path], Json]]] = [
    ("known_work", known_work),
    ("live_view", live_view),
    ("under_load", under_load),
    ("view_cost", view_cost),
    ("hw", hw),
]


if __name__ == "__main__":
    raise SystemExit(main())
