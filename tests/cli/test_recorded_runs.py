"""Runs recorded on an H200 (torch 2.11, CUDA 13.0): the whole way from records to verdict.

Each folder is what ``brim diagnose`` left of a script in ``tests/zoo/gpu_scripts``; paths were
shortened, nothing else was touched.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from brim.cli.measured import judge
from brim.record.findings import Diagnosis

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Diagnosis]:
    """Every recorded run, judged once from a copy."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for run in RUNS.glob("h200-*"):
        found[run.name.removeprefix("h200-")] = judge(shutil.copytree(run, folder / run.name))
    return found


def share(diagnosis: Diagnosis, cause: str) -> float:
    return math.fsum(e.share for e in diagnosis.account if e.cause == cause)


def test_a_read_that_keeps_the_next_batch_from_being_prepared_costs_27_percent(
    verdict: dict[str, Diagnosis],
) -> None:
    # 129.9 ms a step against 95.0 ms when the value is read every 50 steps: 26.9 % measured
    found = verdict["sync"].findings
    assert [f.cause for f in found] == ["host.sync"]
    assert found[0].share == pytest.approx(0.269, abs=0.04)
    assert found[0].where is not None
    assert (found[0].where.file, found[0].where.line) == ("/home/user/job/language_model.py", 53)


def test_the_same_read_is_innocent_while_the_device_is_busy(
    verdict: dict[str, Diagnosis],
) -> None:
    # 95.7 ms a step with the read, 95.0 ms without
    assert verdict["item-innocent"].findings == []
    assert share(verdict["item-innocent"], "host.sync") < 0.03


def test_collecting_and_emptying_the_cache_in_every_step_is_named_with_its_line(
    verdict: dict[str, Diagnosis],
) -> None:
    # 795 ms a step against 139 ms without the two calls: 82.5 % measured
    found = verdict["flush"].findings
    assert [f.cause for f in found] == ["memory.cache-flush"]
    assert found[0].share == pytest.approx(0.825, abs=0.03)
    assert found[0].where is not None
    assert found[0].where.line == 47


def test_an_optimizer_on_the_host_beside_an_empty_device_is_offloading(
    verdict: dict[str, Diagnosis],
) -> None:
    # 903 ms a step under load against 34 ms with the states on the device
    found = verdict["offload"].findings
    assert found[0].cause == "host.offload"
    assert found[0].share > 0.9


def test_plain_fp32_costs_77_percent_though_the_host_is_four_steps_ahead(
    verdict: dict[str, Diagnosis],
) -> None:
    # 851 ms a step against 195 ms with TF32: 77.0 % measured.  The host's two profiled steps took
    # 376 ms, in which the device still worked on what was launched before the profiler
    found = verdict["fp32"].findings
    assert [f.cause for f in found] == ["compute.precision"]
    assert found[0].share == pytest.approx(0.770, abs=0.03)
    low, high = found[0].gain
    assert low < 851 / 195 < high + 0.5
    assert verdict["fp32"].metrics["profiled_step_s"] == pytest.approx(0.851, abs=0.005)


def test_device_figures_stand_beside_each_other_and_absent_ones_are_absent(
    verdict: dict[str, Diagnosis],
) -> None:
    metrics = verdict["item-innocent"].metrics
    assert metrics["gpu_util"] > metrics["tensor_active"] > 0
    assert "tokens_per_s" not in metrics  # no loader showed a batch, and no mask was passed


@pytest.mark.parametrize("name", ["sync", "item-innocent", "flush", "offload", "fp32"])
def test_the_account_of_a_recorded_run_sums_to_one(
    verdict: dict[str, Diagnosis], name: str
) -> None:
    assert math.fsum(e.share for e in verdict[name].account) == pytest.approx(1.0, abs=1e-9)
    assert verdict[name].device == "NVIDIA H200"


def test_figures_of_hw_measure_stand_beside_the_utilisation_of_a_run(tmp_path: Path) -> None:
    folder = shutil.copytree(RUNS / "h200-item-innocent", tmp_path / "run")
    info = json.loads((folder / "run.json").read_text())
    info["host"] = {**info.get("host", {}), "matmul_flops": {"NVIDIA H200": {"bf16": 683e12}}}
    (folder / "run.json").write_text(json.dumps(info))
    found = judge(folder)
    assert found.metrics["mfu_of_attainable"] == pytest.approx(
        found.metrics["mfu"] * 989.5 / 683, rel=1e-3
    )
    assert any("reached 683 TFLOP/s" in note for note in found.notes)
