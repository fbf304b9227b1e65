"""Which ``input.*`` a wait for brim's own loader is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.live.records import evidence, machine, steps

from brim.diagnose.live import threads
from brim.diagnose.live.account import diagnose_run, look
from brim.diagnose.live.inputs import Machine, clues
from brim.record.loader import LoaderDeath, LoaderLine, LoaderRecord, append
from brim.record.run import create, read_run

WAITS: dict[str, Any] = {"input_wait": 0.06, "batches": 1}


def line(t: float, **fields: Any) -> LoaderLine:
    """Two seconds of two threads that decode all the time."""
    base: dict[str, Any] = {
        "wall": 2.0, "rows": 20, "samples": 100, "waited": 1.2, "threads": 2, "depth": 4,
        "ready": 0.05, "stages": {"read": 0.2, "decode": 3.0, "resize": 0.7}, "task_wall": 3.9,
        "task_cpu": 3.8, "bound_by": "decode",
    }  # fmt: skip
    return LoaderLine(t=t, **(base | fields))


def of(host: Machine, **fields: Any) -> Any:
    """The one clue of 100 steps of 0.1 s that wait 60 % of the time."""
    found = evidence(steps(100, **WAITS))
    record = LoaderRecord([line(t, **fields) for t in (2.0, 4.0, 6.0, 8.0, 10.0)], [])
    (clue,) = clues(found, None, host, own=threads.gather(record, found.chosen))
    return clue


SLOW_DISK: dict[str, Any] = {
    "stages": {"read": 3.5, "decode": 0.3}, "task_cpu": 0.4, "bound_by": "read",
}  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "host", "fields"),
    [
        ("input.workers", machine(), {}),
        ("input.decode", machine(machine=2, usable=2.0), {"bound_by": "cores"}),
        ("input.cpu-limit", machine(usable=2.0), {"bound_by": "cores"}),
        ("input.storage", machine(), SLOW_DISK),
        ("input.storage", machine(machine=2, usable=2.0), SLOW_DISK),
        # eight cores, four ranks: two for each, and they are used up
        ("input.decode", machine(ranks=4), {}),
        # as many threads as cores: another one would find none
        ("input.decode", machine(machine=2, usable=2.0), {"task_cpu": 1.0}),
    ],
)
def test_the_loaders_own_figures_name_the_cause(
    cause: str, host: Machine, fields: dict[str, Any]
) -> None:
    assert of(host, **fields).cause == cause


def test_the_evidence_has_the_figures_and_what_the_loader_says_itself() -> None:
    clue = of(machine(), change="too few threads: threads 1 → 2", bound_by="variance")
    text = "\n".join(clue.evidence)
    assert "the trainer waited 6 s of 10 s for brim's loader: 2 threads" in text
    assert "5.0 % of 4 rows ahead lay ready" in text
    assert "decode 76.9 %" in text and "used 1.9 of 8.0 cores" in text
    assert "rows are uneven" in text
    assert "it says: too few threads: threads 1 → 2" in text
    assert "a sample takes a thread 39 ms" in text


def test_only_windows_that_overlap_the_measured_steps_count() -> None:
    found = evidence(steps(100, begin=50.0, **WAITS))
    early, inside = line(20.0, rows=7), line(55.0)
    record = LoaderRecord([early, inside], [LoaderDeath(t=55.0), LoaderDeath(t=20.0)])
    seen = threads.gather(record, found.chosen)
    assert seen is not None and (seen.rows, seen.deaths) == (20, 1)
    assert threads.gather(LoaderRecord([early], []), found.chosen) is None
    assert threads.gather(None, found.chosen) is None


def test_a_run_directory_of_brim_train_is_diagnosed_from_its_loaders_lines(tmp_path: Path) -> None:
    import msgspec

    folder = create(tmp_path, ["brim", "train", "sft.toml"], {"cores": 8}, "0")
    with (folder / "steps.rank0.jsonl").open("wb") as f:
        header = {"kind": "header", "pid": 1, "t": 0.0, "cores": 8, "versions": {"brim": "0"}}
        for record in (header, *steps(100, **WAITS)):
            f.write(msgspec.json.encode(record) + b"\n")
    for t in (2.0, 4.0, 6.0, 8.0, 10.0):
        append(folder / "loader.rank0.jsonl", line(t, **SLOW_DISK))
    run = read_run(folder)
    found = diagnose_run(run, look(run))
    (finding,) = found.findings
    assert finding.cause == "input.storage" and finding.confidence == "high"
    assert finding.share == pytest.approx(0.6, abs=0.01)
    assert found.frameworks == ["brim", "torch"]
    assert "data.image_cache_bytes" in finding.remedies[0].settings["brim"]
