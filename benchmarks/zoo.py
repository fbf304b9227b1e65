"""What the real faults cost without brim, and how often brim names them.

    python benchmarks/zoo.py [--only ID …] [--repeat N]             cost of each fault
    python benchmarks/zoo.py --verdicts [--only ID …] [--repeat N]  verdicts, confusion table

Run it on a machine that does nothing else: the share of CPU time that went to others is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "zoo"))

from cases import CASES, Arm, Case, Pair
from runner import Run, diagnose, measure, verdict


def main() -> int:
    args = _arguments()
    chosen = [c for c in CASES if not args.only or any(o in c.id for o in args.only)]
    with tempfile.TemporaryDirectory() as scratch:
        data = args.data or Path(scratch)
        data.mkdir(parents=True, exist_ok=True)
        if args.verdicts:
            return _verdicts(chosen, data, args)
        return _costs(chosen, data, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="*", metavar="ID", help="ids, or parts of them")
    parser.add_argument("--arm", nargs="*", help="these arms only (verdicts)")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--data", type=Path, help="keep photographs and runs in this folder")
    parser.add_argument("--json", type=Path, help="write every single result to this file")
    return parser.parse_args()


# ---------------------------------------------------------------------------------- costs


def _costs(chosen: list[Case], data: Path, args: argparse.Namespace) -> int:
    """Slowdown of each pair; 1 when a fault does not cost what the table claims."""
    rows, short = [], 0
    print(f"{'case':<28} {'faulty':>9} {'fixed':>9}  slowdown (spread)     claimed  others")
    for case in chosen:
        for pair in case.pairs:
            row = _cost(case, pair, data, args.repeat)
            rows.append(row)
            short += row["slowdown"] < pair.slowdown
            print(_cost_line(row, pair), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if short else 0


def _cost(case: Case, pair: Pair, data: Path, repeat: int) -> dict[str, Any]:
    """Seconds per step of both arms, measured in turn so that drift meets both."""
    _ready(case, data, pair)
    faulty, fixed, foreign = [], [], []
    for _ in range(repeat):
        for name, into in ((pair.faulty, faulty), (pair.fixed, fixed)):
            short, long = (measure(case, case.arm(name), data, steps) for steps in pair.steps)
            into.append(_per_step(short, long, pair.steps))
            foreign += [short.foreign, long.foreign]
    ratios = [pair.work * a / b for a, b in zip(faulty, fixed, strict=True)]
    return {
        "case": case.id, "faulty": pair.faulty, "fixed": pair.fixed,
        "faulty_s": statistics.median(faulty), "fixed_s": statistics.median(fixed),
        "slowdown": statistics.median(ratios), "low": min(ratios), "high": max(ratios),
        "foreign": max(foreign),
    }  # fmt: skip


def _ready(case: Case, data: Path, pair: Pair) -> None:
    """A first run makes the data that later runs find."""
    measure(case, case.arm(pair.fixed), data, pair.steps[0])


def _per_step(short: Run, long: Run, steps: tuple[int, int]) -> float:
    return max(1e-6, (long.wall_s - short.wall_s) / (steps[1] - steps[0]))


def _cost_line(row: dict[str, Any], pair: Pair) -> str:
    name = f"{row['case']} {row['faulty']}"
    mark = "" if row["slowdown"] >= pair.slowdown else "  TOO CHEAP"
    return (
        f"{name:<28} {1e3 * row['faulty_s']:>6.0f} ms {1e3 * row['fixed_s']:>6.0f} ms  "
        f"{row['slowdown']:>5.2f} ({row['low']:.2f}–{row['high']:.2f})"
        f"{pair.slowdown:>14.2f}  {100 * row['foreign']:>4.0f} %{mark}"
    )


# ------------------------------------------------------------------------------- verdicts


def _verdicts(chosen: list[Case], data: Path, args: argparse.Namespace) -> int:
    """Every arm under ``brim diagnose``; 1 when a verdict is wrong."""
    results = []
    for case, arm in _arms(chosen, args):
        for _ in range(args.repeat):
            results.append(_verdict(case, arm, data))
            print(_verdict_line(results[-1]), flush=True)
    _print_confusion(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(result["right"] for result in results) else 1


def _arms(chosen: list[Case], args: argparse.Namespace) -> Iterator[tuple[Case, Arm]]:
    for case in chosen:
        yield from ((case, arm) for arm in case.arms if not args.arm or arm.name in args.arm)


def _verdict(case: Case, arm: Arm, data: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"case": case.id, "arm": arm.name, "expected": arm.cause}
    try:
        found = diagnose(case, arm, data)
    except Exception as error:  # one broken run must not end the table
        return {**result, "got": "(failed)", "right": False, "error": str(error)[-1500:]}
    got = verdict(found)
    return {
        **result, "got": got, "right": arm.right(got), "findings": found["findings"],
        "account": found["account"], "window": found["window"], "notes": found.get("notes", []),
    }  # fmt: skip


def _verdict_line(result: dict[str, Any]) -> str:
    shares = ", ".join(f"{f['cause']} {f['share']:.0%}" for f in result.get("findings", []))
    return (
        f"{'ok   ' if result['right'] else 'WRONG'} {result['case']:<26} {result['arm']:<13} "
        f"{result['expected'] or 'healthy'} ← {shares or result['got'] or 'healthy'}"
    )


def _print_confusion(results: list[dict[str, Any]]) -> None:
    """Expected (rows) against named (columns), as a list of counts."""
    counts = Counter((r["expected"] or "healthy", r["got"] or "healthy") for r in results)
    right = sum(r["right"] for r in results)
    print(f"\n{right} of {len(results)} right\n{'expected':<26} {'named':<26} runs")
    for (expected, got), count in sorted(counts.items()):
        mark = "" if expected == got else "  ←"
        print(f"{expected:<26} {got:<26} {count:>4}{mark}")


if __name__ == "__main__":
    sys.exit(main())
