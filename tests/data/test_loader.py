"""The loader process: the right rows, in order, through death, resume and bad samples."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.sets import write_set

from brim.data import loader as loader_module
from brim.data.config import DataConfig
from brim.data.imagecache import ImageCache
from brim.data.loader import HostRow, Loader, LoaderFailed, fingerprint
from brim.data.maker import Guard, Maker, Stopwatch
from brim.data.prepare import Prepared, prepare
from brim.data.quarantine import BadSample, Quarantine, TooManyBadSamples, read_quarantine
from brim.data.rows import assemble
from brim.data.sources import SourceConfig
from brim.data.transfer import DeviceRows, Transfer, views
from brim.errors import ConfigError
from brim.model.batch import PackedBatch, check
from brim.record.loader import read_loader

SLOTS = 8


def prepared_set(folder: Path, small_folder: Path, count: int = 60, **settings: Any) -> Prepared:
    config = DataConfig(
        sources=(SourceConfig(path=str(write_set(folder, count))),),
        **{
            "tokens_per_row": 512,
            "rows_per_step": 4,
            "patch_bucket": 64,
            "max_loader_bytes": SLOTS * (4 << 20),
            "max_bad_share": 0.5,
            **settings,
        },
    )
    return prepare(config, small_folder)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, small_folder: Path) -> Prepared:
    return prepared_set(tmp_path_factory.mktemp("set"), small_folder)


def maker_of(prepared: Prepared, cache: ImageCache | None = None) -> Maker:
    return Maker(
        sources=prepared.sources,
        samples=prepared.samples,
        tokens=prepared.tokens,
        vision=prepared.vision,
        policy=prepared.config.decode,
        tokens_per_row=prepared.config.tokens_per_row,
        cache=cache,
    )


def made_here(prepared: Prepared, step: int, rank: int = 0, world: int = 1) -> list[dict[str, Any]]:
    """The rows of a step, made in this process one after the other."""
    maker, rows = maker_of(prepared), []
    for task in prepared.plan.rows(step, rank, world):
        made = [
            maker.make(task, place, Quarantine(), Stopwatch(), Guard())
            for place in range(len(task.samples))
        ]
        arrays: dict[str, Any] = {}

        def allocate(name: str, shape: Any, dtype: Any, arrays: Any = arrays) -> Any:
            return arrays.setdefault(name, np.empty(shape, dtype))

        documents = [document for document in made if document is not None]
        assemble(
            documents,
            length=maker.tokens_per_row,
            vision=maker.vision,
            bucket=prepared.config.patch_bucket,
            pad=maker.tokens.end_of_text,
            allocate=allocate,
        )
        arrays["samples"] = tuple(document.sample for document in documents)
        rows.append(arrays)
    return rows


def taken(rows: Iterator[HostRow], count: int) -> list[dict[str, Any]]:
    """Copies of the next rows, their memory given back."""
    found = []
    for _ in range(count):
        row = next(rows)
        found.append(copied(row))
        row.release()
    return found


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def copied(row: HostRow) -> dict[str, Any]:
    return {name: array.copy() for name, array in row.arrays.items()} | {"samples": row.samples}


def test_rows_cross_the_process_boundary_bit_by_bit_and_in_order(prepared: Prepared) -> None:
    expected = [row for step in range(3) for row in made_here(prepared, step)]
    with Loader(prepared, stop=3) as loader:
        held = [next(loader) for _ in range(3)]
        check(PackedBatch.from_arrays(held[0].fields()))
        buffer = torch.from_numpy(loader.ring.slot(held[1].slot)).clone()
        for name, tensor in views(buffer, held[1].layout).items():
            np.testing.assert_array_equal(tensor.numpy(), expected[1][name])
        found = [copied(row) for row in held]
        time.sleep(0.2)  # rows that are held stay as they are, whatever is made meanwhile
        assert_same([copied(row) for row in held], expected[:3])
        for row in held:
            row.release()
            row.release()  # twice does no harm
        found += taken(loader, 9)
        with pytest.raises(StopIteration):
            next(loader)
        assert loader._process is not None and loader._connection is not None
        environment = Path(f"/proc/{loader._process.pid}/environ").read_bytes()
        for setting in (b"CUDA_VISIBLE_DEVICES=\0", b"OMP_NUM_THREADS=1\0", b"malloc.hugetlb=1\0"):
            assert setting in environment
        loader._connection.close()  # as the death of the trainer does
        assert loader._process.wait(timeout=10) == 0
    assert_same(found, expected)


def test_a_resumed_loader_goes_on_in_the_middle_of_a_step(prepared: Prepared) -> None:
    state = {"step": 1, "row": 3, "epoch_starts": [0], "plan": fingerprint(prepared.plan)}
    with Loader(prepared, state=state, stop=3) as loader:
        assert (loader.state()["step"], loader.state()["row"]) == (1, 3)
        rows = [
            {name: t.numpy().copy() for name, t in row.tensors.items()} | {"samples": row.samples}
            for row in DeviceRows(loader, "cpu")
        ]
        assert (loader.state()["step"], loader.state()["row"]) == (3, 0)
    assert_same(rows, [row for step in (1, 2) for row in made_here(prepared, step)][3:])


def test_pictures_can_cross_the_process_boundary_whole_and_be_cut_behind_it(
    prepared: Prepared,
) -> None:
    with Loader(prepared, stop=2, whole=True) as loader:
        first = next(loader)
        assert "pixels" in first.arrays and "patches" not in first.arrays
        transfer = Transfer(torch.device("cpu"), prepared.vision)
        rows = []
        for row in (first, *loader):
            tensors = {name: t.numpy() for name, t in transfer(row).items()}
            rows.append({**tensors, "samples": row.samples})
    assert_same(rows, [row for step in range(2) for row in made_here(prepared, step)])


def test_a_position_in_other_data_is_refused(prepared: Prepared) -> None:
    other = dataclasses.replace(prepared, plan=dataclasses.replace(prepared.plan, seed=1))
    state = {"step": 0, "epoch_starts": [0], "plan": fingerprint(prepared.plan)}
    with pytest.raises(ConfigError, match="have changed since the checkpoint"):
        Loader(other, state=state)
    with pytest.raises(ConfigError, match="cannot be read"):
        Loader(prepared, state={"step": "x"})


def test_a_killed_process_is_replaced_at_the_row_that_is_due(
    prepared: Prepared, tmp_path: Path
) -> None:
    expected = [row for step in range(4) for row in made_here(prepared, step, 1, 2)]
    with Loader(prepared, rank=1, world=2, local_world=2, stop=4, run_dir=tmp_path) as loader:
        held = next(loader)  # a row that the trainer holds while its loader dies
        assert loader._process is not None
        os.kill(loader._process.pid, signal.SIGKILL)
        found = [copied(held), *taken(loader, 5)]
        assert_same([copied(held)], expected[:1])
        held.release()
        found += taken(loader, 2)
        assert loader.deaths == 1
    assert_same(found, expected)
    [death] = read_loader(tmp_path / "loader.rank1.jsonl").deaths
    assert (death.exit_code, death.rank) == (-signal.SIGKILL, 1)


def sabotage(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Run ``body`` in the loader process at each sample; ``sample`` is its number."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if any('brim.data.process' in word for word in getattr(sys, 'orig_argv', [])):\n"
        "    from brim.data import maker\n"
        "    original = maker.Maker.document\n"
        "    def document(self, sample, clock):\n"
        f"        {body}\n"
        "        return original(self, sample, clock)\n"
        "    maker.Maker.document = document\n"
    )
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


@pytest.mark.slow
def test_a_sample_that_kills_its_process_three_times_is_replaced(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = prepared.plan.step(0)[1].samples[2]
    sabotage(tmp_path / "site", monkeypatch, f"if sample == {deadly}: os._exit(11)")
    with Loader(prepared, stop=1, run_dir=tmp_path) as loader:
        found = taken(loader, 4)
        assert loader.deaths == 3
    expected = made_here(prepared, 0)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert (ours["samples"] == theirs["samples"]) == (deadly not in theirs["samples"]), number
    assert all(deadly not in row["samples"] for row in found)
    [entry] = read_quarantine(tmp_path / "quarantine.rank0.jsonl")
    assert entry.kind == "sample.deadly"


@pytest.mark.slow
def test_a_sample_that_never_ends_is_given_up(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = prepared.plan.step(0)[0].samples[0]
    monkeypatch.setattr(loader_module, "_HANG_S", 1.0)
    sabotage(tmp_path / "site", monkeypatch, f"if sample == {endless}: time.sleep(1000)")
    with Loader(prepared, stop=1, run_dir=tmp_path) as loader:
        found = taken(loader, 4)
        assert loader.deaths == 1
    assert all(endless not in row["samples"] for row in found)


@pytest.mark.slow
def test_a_sample_that_takes_all_memory_is_replaced_and_harms_nobody(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = prepared.plan.step(0)[0].samples[0]
    sabotage(tmp_path / "site", monkeypatch, f"if sample == {greedy}: bytearray(20 << 30)")
    with Loader(prepared, stop=1, run_dir=tmp_path) as loader:
        found = taken(loader, 4)
        assert loader.deaths == 0
    assert all(greedy not in row["samples"] for row in found)
    [entry] = read_quarantine(tmp_path / "quarantine.rank0.jsonl")
    assert entry.kind == "sample.memory"


@pytest.mark.slow
def test_a_process_that_always_dies_is_an_error_and_no_endless_loop(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_MAX_DEATHS_AT_A_ROW", 1)
    sabotage(tmp_path / "site", monkeypatch, "os._exit(7)")
    words = "died 2 times before one row was made"
    with Loader(prepared, stop=1) as loader, pytest.raises(LoaderFailed, match=words):
        next(loader)


@pytest.mark.slow
def test_a_bug_in_the_process_arrives_with_its_traceback(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(tmp_path / "site", monkeypatch, "raise KeyError('a bug')")
    with Loader(prepared, stop=1) as loader, pytest.raises(LoaderFailed, match="KeyError: 'a bug'"):
        next(loader)


def test_bad_samples_are_replaced_alike_on_every_run(tmp_path: Path, small_folder: Path) -> None:
    prepared = prepared_set(tmp_path, small_folder)
    spoilt = tmp_path / "3.jpg"
    data = spoilt.read_bytes()
    spoilt.write_bytes(data[: len(data) // 2])  # its header is whole: the plan still counts it
    bad = {n for n in range(60) if n % 5 == 3}
    with Loader(prepared, stop=2, run_dir=tmp_path) as loader:
        rows = taken(loader, 8)
    assert_same(rows, [row for step in range(2) for row in made_here(prepared, step)])
    shown = [sample for row in rows for sample in row["samples"]]
    assert not bad & set(shown)
    planned = [s for step in range(2) for task in prepared.plan.step(step) for s in task.samples]
    assert len(shown) == len(planned)
    listed = list(read_quarantine(tmp_path / "quarantine.rank0.jsonl"))
    assert {entry.line for entry in listed} <= {n + 1 for n in bad}
    assert "JPEG" in listed[0].reason
    assert listed[0].image == "3.jpg"


@pytest.mark.slow
def test_too_many_bad_samples_end_the_run_with_their_count(
    tmp_path: Path, small_folder: Path
) -> None:
    prepared = prepared_set(tmp_path, small_folder, max_bad=2)
    for n in range(4):
        path = tmp_path / f"{n}.jpg"
        path.write_bytes(path.read_bytes()[:-200])
    with (
        Loader(prepared, stop=2) as loader,
        pytest.raises(TooManyBadSamples, match="samples are bad"),
    ):
        taken(loader, 8)


def test_a_sample_that_is_not_as_long_as_planned_is_refused(prepared: Prepared) -> None:
    samples = dataclasses.replace(prepared.samples, length=prepared.samples.length + 1)
    maker = dataclasses.replace(maker_of(prepared), samples=samples)
    with pytest.raises(BadSample, match="tokens; it had") as caught:
        maker.document(2, Stopwatch())
    assert caught.value.kind == "sample.changed"


def test_memory_for_fewer_than_4_rows_is_refused(prepared: Prepared) -> None:
    small = dataclasses.replace(prepared.config, max_loader_bytes=1 << 20)
    with pytest.raises(ConfigError, match="4 rows of 512 tokens take"):
        Loader(dataclasses.replace(prepared, config=small))


@pytest.mark.slow
def test_records_tell_windows_stages_and_what_binds(prepared: Prepared, tmp_path: Path) -> None:
    with Loader(prepared, run_dir=tmp_path) as loader:
        next(loader).release()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            next(loader).release()
        waited = loader.wait_s
    windows = read_loader(tmp_path / "loader.rank0.jsonl").windows
    assert sum(window.rows for window in windows) > 10
    assert 0 < sum(window.waited for window in windows) <= waited + 0.1
    busiest = max(windows, key=lambda window: window.samples)
    assert busiest.images == busiest.samples
    assert sum(busiest.stages.values()) <= busiest.task_wall + 0.1
    assert busiest.stages["decode"] > 0
    assert busiest.bound_by
