"""Public traces of 2021 to 2025: device times to the nanosecond, and the true cause first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.diagnose.trace import TraceContext, diagnose_traces
from brim.record.findings import Diagnosis
from brim.record.kineto import read_trace, read_traces

FIELDS = ("window_us", "busy_us", "idle_us", "compute_us", "exposed_comm_us", "exposed_copy_us")

# Folder → the causes of which one must come first; empty where nothing may be found.
# A capture too short or of a start-up only must not be sold as a finding about training.
TRUTH = {
    "tb_resnet50_v100_workers0": ["input.main-process"],
    "tb_resnet50_v100_workers4": ["host.launch"],
    "hta_ddp_a100_rank3of8": ["comm.exposed"],
    # 12.9 % are copies within the device, which no cause stands for
    "hta_ddp_v100_rank1of2": ["comm.exposed"],
    "hta_v100_2rank": ["host.launch"],
    "hta_nccl_a100": ["host.launch"],
    "hta_a100_16rank_rank0": ["transfer.pageable"],
    "hta_v100_ns": [],
    "hta_alexnet_a100": [],
    "hta_128rank_sampled": ["comm.exposed", "comm.straggler-data"],
    "hta_cuda_event_sync": [],
    "hta_triton": [],
    # the workers are not in the trace, so which input cause it is stays open
    "param_resnet_2080ti": ["input.workers"],
    "param_linear_2080ti": ["host.launch"],
    "param_dlrm_v100_8rank": ["host.launch"],
    "tl_b200_eager": ["host.launch"],
    "tl_h100_owlv2": ["input.main-process"],
    "tl_mi300_owlv2": ["input.main-process"],
    "tl_h100_timesformer": ["input.main-process"],
    # 92 % busy, and 44 % of it in eager element-wise kernels; launches come second
    "tl_h100_qwen05b": ["compute.unfused"],
    "tl_mi300_resnet_8rank": ["comm.exposed"],
    "own_h200_qwen3vl4b_hf_liger": ["compute.unfused"],
    "own_h200_qwen3vl4b_packed_fa4": [],
}


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[str, Any]:
    files: dict[str, Any] = json.loads((shared / "traces" / "expected.json").read_text())["files"]
    return files


@pytest.fixture(scope="module")
def diagnoses(shared: Path) -> dict[str, Diagnosis]:
    return {
        folder: diagnose_traces(read_traces([shared / "traces" / folder], processes=1))
        for folder in TRUTH
    }


def _per_file(
    diagnoses: dict[str, Diagnosis], expected: dict[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for folder, diagnosis in diagnoses.items():
        names = sorted(name for name in expected if name.startswith(f"{folder}/"))
        assert len(names) == len(diagnosis.device_time), folder
        for name, rank in zip(names, diagnosis.device_time, strict=True):
            yield name, rank, expected[name]


def test_all_31_files_are_judged(shared: Path, expected: dict[str, Any]) -> None:
    folders = {name.split("/")[0] for name in expected}
    assert folders == set(TRUTH)
    assert len(expected) == 31


def test_device_times_equal_the_reference_to_the_nanosecond(
    diagnoses: dict[str, Diagnosis], expected: dict[str, Any]
) -> None:
    for name, rank, facts in _per_file(diagnoses, expected):
        for window in ("kernel_span", "step_window"):
            got, want = getattr(rank, window), facts[window]
            assert (got is None) == (want is None), (name, window)
            for field in FIELDS if want is not None else ():
                assert getattr(got, field) == pytest.approx(want[field], abs=0.0015), (name, field)


@pytest.mark.parametrize("folder", TRUTH)
def test_the_true_cause_comes_first(folder: str, diagnoses: dict[str, Diagnosis]) -> None:
    found = [finding.cause for finding in diagnoses[folder].findings]
    if TRUTH[folder]:
        assert found[0] in TRUTH[folder]
    else:
        assert found == []


def test_idle_by_cause_agrees_with_the_split_by_host_activity(
    diagnoses: dict[str, Diagnosis], expected: dict[str, Any]
) -> None:
    """Where the reference saw the loader, so does the account (it follows Python frames, too)."""
    for name, rank, facts in _per_file(diagnoses, expected):
        reference = (facts["step_window"] or facts["kernel_span"])["idle_by_host_pct"]
        if reference["dataloader"] > 2:
            table = diagnoses[name.split("/")[0]].details["ranks"]
            row = next(r for r in table if r["rank"] == rank.rank)
            loader = 100 * sum(
                s for cause, s in row["idle_by_cause"].items() if cause.startswith("input.")
            )
            assert reference["dataloader"] - 0.5 <= loader <= reference["dataloader"] + 5.0, name


def test_404_collectives_a_step_are_too_many(diagnoses: dict[str, Diagnosis]) -> None:
    found = {f.cause: f for f in diagnoses["hta_v100_2rank"].findings}
    assert found["comm.too-many"].share == pytest.approx(0.206, abs=0.002)
    assert "404 collectives per step" in found["comm.too-many"].evidence[0]


def test_rank_7_of_8_comes_last_and_waits_least(diagnoses: dict[str, Diagnosis]) -> None:
    diagnosis = diagnoses["param_dlrm_v100_8rank"]
    rows = {row["rank"]: row for row in diagnosis.details["ranks"]}
    assert max(rows, key=lambda r: rows[r]["late_us"]) == 7
    assert min(rows, key=lambda r: rows[r]["comm_wait_us"]) == 7
    assert any(f.cause == "comm.straggler-data" for f in diagnosis.findings)


def test_the_gain_of_a_loader_holds_the_measured_1_26(
    shared: Path, diagnoses: dict[str, Diagnosis]
) -> None:
    before, after = (diagnoses[f"tb_resnet50_v100_workers{n}"] for n in (0, 4))
    measured = before.window.wall_s / after.window.wall_s
    assert measured == pytest.approx(1.26, abs=0.01)
    low, high = before.findings[0].gain
    assert low <= measured <= high < 1.5
    assert low > 1.15, "a range that says nothing is no answer"


def test_the_fix_of_the_loader_leaves_what_hid_behind_it(diagnoses: dict[str, Diagnosis]) -> None:
    found = [f.cause for f in diagnoses["tb_resnet50_v100_workers4"].findings]
    assert found == ["host.launch", "transfer.pageable"]


def test_the_line_of_a_2021_trace_comes_from_its_call_stacks(
    diagnoses: dict[str, Diagnosis],
) -> None:
    where = diagnoses["tb_resnet50_v100_workers0"].findings[0].where
    assert where is not None
    assert (where.file, where.line) == ("resnet50_profiler_api.py", 42)


def test_recompute_of_activation_checkpointing_is_seen(diagnoses: dict[str, Diagnosis]) -> None:
    account = diagnoses["tl_mi300_resnet_8rank"].account
    assert any(e.cause == "compute.recompute" and e.share > 0.03 for e in account)


def test_padding_in_our_own_trace_needs_the_measured_share(shared: Path) -> None:
    trace = read_trace(next((shared / "traces" / "own_h200_qwen3vl4b_hf_liger").iterdir()))
    diagnosis = diagnose_traces([trace], context=TraceContext(padding=0.35))
    assert [f.cause for f in diagnosis.findings] == ["compute.padding", "compute.unfused"]
