from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from brim.cli.train import figures
from brim.record.run import read_run
from brim.record.steps import Step
from brim.train.loop import Progress
from brim.train.records import Records, peak_flops
from brim.train.signals import STOPPED, StopRequest

CPU = torch.device("cpu")


def test_what_is_written_is_read_back_by_the_project_itself(tmp_path: Path) -> None:
    records = Records(tmp_path, ["brim", "train", "sft.toml", "--token=hf_abcdefghijk"], CPU)
    records.step(Step(n=0, t=1.0, wall=0.5, clock="opt0", tokens=10, loss=2.5))
    records.step(Step(n=1, t=1.5, wall=0.5, clock="opt0", tokens=12, loss=None))
    records.metrics({"step": 1, "loss": 2.5})
    records.close(0, "finished")
    run = read_run(records.folder)
    (process,) = run.processes
    assert [(s.n, s.tokens, s.loss) for s in process.steps] == [(0, 10, 2.5), (1, 12, None)]
    assert process.header.versions["torch"] == str(torch.__version__)
    assert process.footer is not None and process.footer.why == "finished"
    assert run.info.exit_code == 0
    assert "hf_abcdefghijk" not in (records.folder / "run.json").read_text()


def test_the_account_of_a_gpu_run_finds_its_device_and_peak_in_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brim.cli.measured import _peak
    from brim.diagnose.live.account import look, metrics

    seen = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150109880320
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: seen)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: seen.name)
    records = Records(tmp_path, ["brim", "train"], torch.device("cuda"))
    content = {"tokens": 100, "pad_tokens": 20, "counted_batches": 1, "batches": 1, "documents": 4}
    for n in range(8):
        records.step(Step(n=n, t=1.0 + n / 2, wall=0.5, clock="opt0", loss=2.5, **content))
    records.close(0, "finished")
    (rank,) = found = look(read_run(records.folder), warmup=0)
    assert _peak(rank) == peak_flops(torch.device("cuda"), "bfloat16") == 989.4e12
    figures = metrics(found)
    assert (figures["samples_per_s"], figures["tokens_per_s"]) == (8.0, 160.0)
    assert figures["pad_share"] == 0.2


def test_lines_are_on_disk_as_soon_as_they_are_written(tmp_path: Path) -> None:
    records = Records(tmp_path, ["brim", "train"], CPU)
    records.metrics({"step": 1})
    assert json.loads((records.folder / "metrics.jsonl").read_text()) == {"step": 1}


def test_a_full_disk_costs_lines_and_not_the_run(tmp_path: Path) -> None:
    records = Records(tmp_path, ["brim", "train"], CPU)
    full = io.FileIO("/dev/full", "wb")
    records._steps = full
    records.step(Step(n=0))
    records.step(Step(n=1))
    assert records.lost == 2


def test_a_cpu_has_no_known_peak() -> None:
    assert peak_flops(CPU, "float32") is None


def test_the_figures_of_the_bar_leave_out_what_is_not_known() -> None:
    progress = Progress(
        step=5, steps=10, loss=1.23456, tokens_per_s=12_345.6, images_per_s=9.87,
        samples_per_s=4.2, mfu=0.512, input_wait=0.002,
    )  # fmt: skip
    assert figures(progress) == (
        "loss 1.2346  12,346 tokens/s  9.9 images/s  MFU 51.2 %  input wait 0.2 %"
    )
    from dataclasses import replace

    assert "MFU" not in figures(replace(progress, mfu=None))


def test_one_signal_is_a_request_and_names_itself() -> None:
    with StopRequest() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked and stop.signal == "SIGTERM"
    assert STOPPED == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_second_signal_a_while_later_ends_the_process_at_once(number: signal.Signals) -> None:
    program = (
        "import os, time\n"
        "from brim.train import signals\n"
        "from brim.train.signals import StopRequest\n"
        "with StopRequest() as stop:\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    assert stop.asked\n"
        f"    os.kill(os.getpid(), {int(number)})\n"  # so soon after it is the same request
        "    signals._SAME_S = 0.01\n"
        "    time.sleep(0.05)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert done.returncode == 128 + number
