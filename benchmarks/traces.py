"""How fast traces are read and judged, against a bare typed decode and against other tools.

    python benchmarks/traces.py [--trace FILE] [--megabytes N] [--large] [--peers PYTHON]

A real trace is repeated in time until it has the wanted size.  Then, each in a process of its own:

bare      msgspec decodes the whole file into structs with the needed fields, and nothing else
brim      ``read_traces`` + ``diagnose_traces``: the whole diagnosis, on all usable cores and on one
linear    the same for a quarter and a half of the file (``--large``: and for two and four times it)
ranks     eight files of one job, one process against all usable cores
peers     HolisticTraceAnalysis or traceinsight load the file (``--peers``: a Python that has them)

Seconds are wall time (beside it the CPU time of the whole process, which a busy machine disturbs
less), the least of ``--repeat`` runs, taken in turn; peak memory is that of the process and its
largest child together.  Exit code 1: brim takes more than twice the bare decode, or its peak is
more than 1.5 times the file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PUBLIC = ROOT.parent / "shared/traces/hta_a100_16rank_rank0/rank0.json.gz"
FIXTURES = ROOT / "tests/fixtures/traces"
TIMES_OF_BARE, TIMES_OF_FILE = 2.0, 1.5

_PEAK = """
import json, resource, time
def done(seconds, **more):
    own = resource.getrusage(resource.RUSAGE_SELF)
    child = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = (own.ru_maxrss + child.ru_maxrss) / 1024
    cpu = own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": peak, **more}))
"""
_BARE = """
import sys, msgspec
class Args(msgspec.Struct, gc=False):
    correlation: int = -1
    stream: int = -1
    device: int = -1
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: Args | None = None
class Trace(msgspec.Struct, gc=False):
    traceEvents: list[Event]
begin = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    trace = msgspec.json.decode(file.read(), type=Trace)
done(time.perf_counter() - begin, events=len(trace.traceEvents))
"""
_BRIM = """
import sys
from brim.record.kineto import read_traces
from brim.diagnose.trace import diagnose_traces
if __name__ == "__main__":
    processes = int(sys.argv[2]) or None
    begin = time.perf_counter()
    traces = read_traces([sys.argv[1]], processes=processes)
    read = time.perf_counter()
    diagnosis = diagnose_traces(traces)
    end = time.perf_counter()
    done(end - begin, read=read - begin, ranks=len(traces), verdict=diagnosis.verdict)
"""
_PEER = """
import sys, tempfile, shutil, os
try:
    from hta.trace_analysis import TraceAnalysis
except ImportError:
    print(json.dumps({"absent": "HolisticTraceAnalysis / traceinsight is not installed"}))
    raise SystemExit
with tempfile.TemporaryDirectory() as folder:
    os.symlink(os.path.abspath(sys.argv[1]), os.path.join(folder, "rank-0.json"))
    begin = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: os.path.join(folder, "rank-0.json")}, trace_dir=folder)
    load = time.perf_counter()
    analysis.get_temporal_breakdown(visualize=False)
    done(time.perf_counter() - begin, read=load - begin)
"""


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        return _run(args, Path(folder))


def _run(args: argparse.Namespace, folder: Path) -> int:
    source = _load(args.trace)
    whole = tile(source, folder / "trace.json", args.megabytes << 20)
    size = whole.stat().st_size / 2**20
    print(f"{args.trace.name} repeated: {size:.0f} MiB")
    out = {"file_mb": size, "cores": len(os.sched_getaffinity(0)), **_speed(whole, args.repeat)}
    out["linear"] = _linear(source, folder, args)
    out["ranks"] = _ranks(source, folder, args)
    out["peers"] = _show("peer", _measure(_PEER, whole, python=args.peers)) if args.peers else None
    if args.out:
        args.out.write_text(json.dumps(out, indent=2) + "\n")
    ratio = out["brim"]["seconds"] / out["bare"]["seconds"]
    memory = out["brim"]["peak_mb"] / size
    print(f"brim / bare: {ratio:.2f} in time (at most {TIMES_OF_BARE}), "
          f"{memory:.2f} of the file in memory (at most {TIMES_OF_FILE})")  # fmt: skip
    return int(ratio > TIMES_OF_BARE or memory > TIMES_OF_FILE)


def _speed(path: Path, repeat: int) -> dict[str, Any]:
    """The least of ``repeat`` runs of each arm, taken in turn."""
    arms = {"bare": (_BARE, ()), "brim": (_BRIM, ("0",)), "brim_one_core": (_BRIM, ("1",))}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for _ in range(repeat):
        for name, (program, more) in arms.items():
            runs[name].append(_measure(program, path, *more))
    return {
        name: _show(name, min(found, key=lambda r: r["seconds"])) for name, found in runs.items()
    }


def _linear(source: dict[str, Any], folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for times in (0.25, 0.5, *((2, 4) if args.large else ())):
        path = tile(source, folder / "part.json", int(times * (args.megabytes << 20)))
        found = _measure(_BRIM, path, "0")
        size = path.stat().st_size / 2**20
        rows.append({"file_mb": size, **_show(f"{size:.0f} MiB", found)})
    return rows


def _ranks(source: dict[str, Any], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    job = folder / "job"
    job.mkdir()
    for rank in range(8):
        info = {"backend": "nccl", "rank": rank, "world_size": 8}
        each = {**source, "distributedInfo": info}
        tile(each, job / f"rank{rank}.json", (args.megabytes << 20) // 8)
    return {
        "one": _show("8 ranks, one process", _measure(_BRIM, job, "1")),
        "all": _show("8 ranks, all cores", _measure(_BRIM, job, "0")),
    }


def _measure(program: str, path: Path, *more: str, python: str = sys.executable) -> dict[str, Any]:
    """Run ``program`` on ``path`` in a process of its own; its last line is the result."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_PEAK + program)
        script.flush()
        done = subprocess.run(
            [python, script.name, str(path), *more], capture_output=True, text=True, check=False
        )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _show(name: str, found: dict[str, Any]) -> dict[str, Any]:
    if "seconds" in found:
        read = f" (reading {found['read']:.2f} s)" if "read" in found else ""
        print(
            f"{name:22} {found['seconds']:7.2f} s {found['cpu']:7.2f} s of CPU "
            f"{found['peak_mb']:7.0f} MiB{read}"
        )
    else:
        print(f"{name:22} {found}")
    return found


def _load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(
        gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    )
    return document


def tile(document: dict[str, Any], path: Path, size: int) -> Path:
    """Write ``document`` repeated in time until ``path`` has about ``size`` bytes.

    Each repetition has times and correlation ids of its own; one event stands on a line.
    """
    events = document["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X" and e.get("cat") != "Trace"]
    first = min(e["ts"] for e in timed)
    span = max(e["ts"] + e["dur"] for e in timed) - first + 1000
    with path.open("w") as out:
        head = {key: value for key, value in document.items() if key != "traceEvents"}
        out.write(json.dumps(head)[:-1] + (", " if head else "") + '"traceEvents": [\n')
        number = 0
        while number == 0 or out.tell() < size:
            lines = (json.dumps(_moved(e, number * span, number * 10_000_000)) for e in events)
            out.write((",\n" if number else "") + ",\n".join(lines))
            number += 1
        out.write("\n]}\n")
    return path


def _moved(event: dict[str, Any], later: float, ids: int) -> dict[str, Any]:
    args = event.get("args")
    moved = {**event, "ts": round(event.get("ts", 0) + later, 3)}
    if isinstance(args, dict) and "correlation" in args:
        moved["args"] = {**args, "correlation": args["correlation"] + ids}
    if "id" in event and isinstance(event["id"], int):
        moved["id"] = event["id"] + ids
    return moved


def _arguments() -> argparse.Namespace:
    fixtures = sorted(FIXTURES.glob("*.json.gz"), key=lambda p: -p.stat().st_size)
    default = PUBLIC if PUBLIC.exists() else next(iter(fixtures), None)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=default, help="a Kineto trace to repeat")
    parser.add_argument("--megabytes", type=int, default=430, help="size of the file (430 MiB)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="also two and four times the size")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has the peers")
    parser.add_argument("--scratch", type=Path, help="folder for the large files")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    args = parser.parse_args()
    if args.trace is None or not args.trace.exists():
        parser.error("no trace to repeat: give one with --trace")
    return args


if __name__ == "__main__":
    raise SystemExit(main())
