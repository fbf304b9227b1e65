"""Faults that need a GPU, each under ``brim diagnose``: verdict, account and cost.

    python benchmarks/zoo_gpu.py --out DIR [--only NAME,…]

Prints a table of expected and found causes, and writes each findings.json and, for small runs,
the profiler's trace.  Cost of the fault: median step of the faulty arm over that of the fixed one,
both measured under brim in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "tests" / "zoo" / "gpu_scripts"
BUSY = ("--width", "4096", "--layers", "4", "--batch", "8", "--length", "1024", "--steps", "60",
        "--dtype", "bfloat16", "--fused")  # fmt: skip
FP32 = ("--width", "4096", "--layers", "4", "--batch", "8", "--length", "1024", "--steps", "40",
        "--fused")  # fmt: skip

MEDIUM = ("--width", "1024", "--layers", "12", "--batch", "8", "--length", "512", "--steps", "250",
          "--dtype", "bfloat16", "--fused")  # fmt: skip

PLAIN = ("--no-bias", "--patches", "4096")


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    arguments: tuple[str, ...]
    expected: str | None
    fixed: str = ""
    """Name of the case that is its cure."""


CASES = (
    Case("sync", "language_model.py", (*BUSY, "--log-every", "1", "--prepare", "60000"),
         "host.sync", "sync-fixed"),
    Case("sync-fixed", "language_model.py", (*BUSY, "--prepare", "60000"), None),
    Case("norms", "language_model.py", (*MEDIUM, "--norms"), "host.launch"),
    Case("log-each", "language_model.py", ("--log-every", "1", "--fused"), "host.launch"),
    Case("launch", "language_model.py", ("--steps", "300"), "host.launch"),
    Case("launch32", "language_model.py", ("--layers", "32", "--length", "64"), "host.launch"),
    Case("flush", "language_model.py",
         ("--tidy", "--vary", "--length", "1024", "--width", "1024", "--layers", "12", "--batch",
          "8", "--objects", "3000000", "--steps", "60", "--fused", "--dtype", "bfloat16"),
         "memory.cache-flush", "flush-fixed"),
    Case("flush-fixed", "language_model.py",
         ("--vary", "--length", "1024", "--width", "1024", "--layers", "12", "--batch", "8",
          "--objects", "3000000", "--steps", "60", "--fused", "--dtype", "bfloat16"), "any"),
    Case("fp32", "language_model.py", FP32, "compute.precision", "tf32"),
    Case("tf32", "language_model.py", (*FP32, "--tf32"), "any"),
    Case("offload", "cpu_adam.py", (), "host.offload", "offload-fixed"),
    Case("offload-fixed", "cpu_adam.py", ("--arm", "fixed"), "any"),
    Case("conv", "patch_tower.py", (), "compute.slow-kernel", "conv-fixed"),
    Case("conv-fixed", "patch_tower.py", ("--arm", "fixed"), "any"),
    Case("conv-plain", "patch_tower.py", (*PLAIN, "--arm", "faulty"), "compute.slow-kernel",
         "conv-plain-fixed"),
    Case("conv-plain-fixed", "patch_tower.py", (*PLAIN, "--arm", "fixed"), "any"),
    Case("experts", "mixture.py", (), "compute.expert-loop", "experts-fixed"),
    Case("experts-fixed", "mixture.py", ("--arm", "fixed"), "any"),
    Case("healthy", "language_model.py", BUSY, None),
    Case("healthy-item", "language_model.py", (*BUSY, "--log-every", "1"), None),
    Case("vlm", "vlm_padded.py", (), "compute.padding"),
    Case("vlm-vision", "vlm_padded.py", ("--train-vision", "--batch", "6"), "compute.padding"),
)  # fmt: skip


def run(case: Case, out: Path) -> dict[str, object]:
    """One case under brim; what it found."""
    runs = out / "runs"
    found = out / f"{case.name}.json"
    command = [sys.executable, "-m", "brim", "diagnose", "--runs", str(runs), "--json", str(found),
               "--", sys.executable, str(SCRIPTS / case.script), *case.arguments]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    began = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    (out / f"{case.name}.txt").write_text(done.stdout[-4000:] + "\n" + done.stderr[-20000:])
    row: dict[str, object] = {"case": case.name, "expected": case.expected, "code": done.returncode,
                              "seconds": time.monotonic() - began}  # fmt: skip
    if found.exists():
        verdict = json.loads(found.read_text())
        row["found"] = [(f["cause"], round(f["share"], 3)) for f in verdict["findings"]]
        row["metrics"] = verdict["metrics"]
        row["account"] = {e["cause"]: round(e["share"], 3) for e in verdict["account"]}
    for folder in sorted(runs.iterdir()) if runs.exists() else []:
        shutil.move(folder, out / f"run-{case.name}")
    return row


def verdict(row: dict[str, object]) -> str:
    found = row.get("found") or []
    first = found[0][0] if isinstance(found, list) and found else None
    return "-" if row["expected"] == "any" else "ok" if first == row["expected"] else "WRONG"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = set(filter(None, args.only.split(",")))
    rows = [run(c, args.out) for c in CASES if not wanted or c.name in wanted]
    (args.out / "table.json").write_text(json.dumps(rows, indent=1))
    for row in rows:
        metrics = row.get("metrics") or {}
        assert isinstance(metrics, dict)
        step = metrics.get("step_s", float("nan"))
        util = metrics.get("gpu_util", float("nan"))
        print(f"{verdict(row):6}{row['case']:14}{step * 1e3:9.1f} ms  GPU-Util {util:.2f}")
        print(f"      {row.get('found')}  {row.get('account')} exit {row['code']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
