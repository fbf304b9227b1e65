"""What ``brim hw`` collects, renders and measures."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from rich.console import Console

from brim.errors import InputError
from brim.hardware.attainable import DeviceFigures, Store
from brim.hardware.links import links
from brim.hardware.machine import Machine
from brim.observe import machine as collecting
from brim.observe.machine import collect
from brim.report.machine import render

Fake = Callable[[dict[str, Any]], Any]


def _shown(machine: Machine, width: int = 80) -> str:
    stream = io.StringIO()
    render(machine, Console(file=stream, width=width))
    return stream.getvalue()


def test_an_h200_with_its_peak_its_measured_figure_and_its_settings(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    figures = DeviceFigures(
        name="NVIDIA H200", matmul_flops={"bf16": 7.7e14}, copy_bytes_s={"h2d-pinned": 5.5e10}
    )
    machine = collect(nvml=fake_nvml(recordings.h200()), store=Store().with_device(figures))
    (device,) = machine.devices
    assert device.known_as == "H200 SXM 141GB" and device.capability == "9.0"
    assert device.peak_flops["bf16"] == pytest.approx(989.4e12)
    assert {s.name: s.value for s in device.settings}["dtype"] == "bfloat16"
    text = _shown(machine)
    assert "bf16 989" in text and "bf16 770 (77.8 %)" in text
    assert "PCIe Gen5 x16, 63 GB/s each way" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_an_unknown_device_gets_settings_by_capability_and_no_peak(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.h200()
    calls = recording["devices"][0]["calls"]
    calls["nvmlDeviceGetName"] = "NVIDIA X999"
    calls["nvmlDeviceGetPciInfo"] = {"busId": "0:1:0.0", "pciDeviceId": 0x999910DE}
    machine = collect(nvml=fake_nvml(recording), store=Store())
    (device,) = machine.devices
    assert device.known_as is None and device.peak_flops == {}
    assert device.bandwidth_bytes_s is None
    text = _shown(machine)
    assert "is not in brim's table" in text and "bfloat16" in text and "peak  " not in text


def test_eight_equal_devices_are_told_once(fake_nvml: Fake, recordings: ModuleType) -> None:
    text = _shown(collect(nvml=fake_nvml(recordings.eight()), store=Store()))
    assert text.count("sm_90 has bf16 tensor cores") == 1
    assert text.count("as device 0") == 7


def test_a_mig_slice_shows_its_share_of_the_peak_and_no_bandwidth(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    whole, large, small = collect(nvml=fake_nvml(recordings.mig()), store=Store()).devices
    assert small.peak_flops["bf16"] == pytest.approx(989.4e12 * 16 / 132)
    assert large.known_as == whole.known_as == "H200 SXM 141GB"
    assert small.bandwidth_bytes_s is None and whole.bandwidth_bytes_s == 4.8e12


def test_a_v100_is_told_which_wheel_it_needs(fake_nvml: Fake, recordings: ModuleType) -> None:
    machine = collect(
        nvml=fake_nvml(recordings.v100()), store=Store(), arch_list=["sm_75", "sm_90"]
    )
    wheel = {s.name: s for s in machine.devices[0].settings}["wheel"]
    assert wheel.value == "does not fit" and "cu126" in wheel.why


def test_without_a_driver_the_machine_is_still_described(tmp_path: Path, fake_nvml: Fake) -> None:
    machine = collect(nvml=fake_nvml({"error": 9}), store=Store(), folder=tmp_path)
    assert machine.devices == [] and "Driver Not Loaded" in machine.why_no_device
    assert machine.usable_cores == len(os.sched_getaffinity(0))
    assert machine.storage is not None and str(tmp_path) in machine.storage.folder
    assert "none: no NVIDIA driver answers here" in _shown(machine)


def test_nccl_variables_show_class_and_origin(
    fake_nvml: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree\x1b[31m")
    text = _shown(collect(nvml=fake_nvml({"error": 9}), store=Store()), width=120)
    assert "NCCL_ALGO=Tree" in text and "debugging" in text and "environment" in text
    assert "\x1b" not in text


def test_the_facts_survive_json(fake_nvml: Fake, recordings: ModuleType) -> None:
    machine = collect(nvml=fake_nvml(recordings.mig()), store=Store())
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine


def test_a_card_in_a_narrow_slot_is_noticed(fake_nvml: Fake, recordings: ModuleType) -> None:
    recording = recordings.h200()
    recording["devices"][0]["calls"]["nvmlDeviceGetCurrPcieLinkWidth"] = 4
    text = _shown(collect(nvml=fake_nvml(recording), store=Store()))
    assert "only 4 of the card's 16 lanes are in use" in text
    assert "Gen5 x4, 16 GB/s" in text


def test_pairs_joined_by_nvlink_and_by_the_host(fake_nvml: Fake, recordings: ModuleType) -> None:
    recording = recordings.eight()
    first, second = recording["devices"][:2]
    recording["devices"] = [first, second]
    first["calls"] |= {"nvmlDeviceGetP2PStatus": 0, "nvmlDeviceGetNvLinkState": 1}
    second["calls"]["nvmlDeviceGetTopologyCommonAncestor"] = 50
    one, two = links(fake_nvml(recording))
    assert one.peers == {1: "NVLink"} and one.nvlinks == 18
    assert two.peers == {0: "SYS (across NUMA nodes)"} and two.nvlinks is None


def test_without_a_driver_there_are_no_links(fake_nvml: Fake) -> None:
    assert links(fake_nvml({"error": 9})) == []


def test_measuring_keeps_what_worked_and_says_what_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "devices": {
            "torch": "2.13.0+cu130",
            "arch_list": ["sm_90"],
            "devices": [{"index": i, "name": "NVIDIA H200", "sm_count": 132} for i in range(8)],
        },
        "matmul": {"name": "NVIDIA H200", "matmul_flops": {"bf16": 7.7e14}, "torch": "2.13"},
        "copies": None,
        "decode": {"images_s": {"pillow": 50.0}},
    }
    asked: list[tuple[str, ...]] = []

    def child(what: str, say: Any, doing: str, notes: list[str], *arguments: str) -> Any:
        asked.append((what, *arguments))
        if answers[what] is None:
            notes.append(f"{doing}: out of memory")
        return answers[what]

    monkeypatch.setattr(collecting, "_child", child)
    store, arch_list, notes = collecting.measure(Store(), driver="580", say=lambda _: None)
    # eight equal cards are measured once, on the first
    assert asked == [("devices",), ("matmul", "0"), ("copies", "0"), ("decode",)]
    assert arch_list == ["sm_90"] and notes == ["copies to and from NVIDIA H200: out of memory"]
    assert store.matmul_flops("NVIDIA H200", "bf16") == 7.7e14
    assert store.decode is not None and store.decode.images_s == {"pillow": 50.0}


def test_a_child_that_fails_is_one_sentence() -> None:
    notes: list[str] = []
    assert collecting._child("nonsense", lambda _: None, "nonsense", notes) is None
    assert notes == ["nonsense: KeyError: 'nonsense'"]


def test_decoding_is_measured_in_a_real_child() -> None:
    pytest.importorskip("PIL")
    notes: list[str] = []
    answer = collecting._child("decode", lambda _: None, "decoding", notes)
    assert notes == [] and answer is not None
    assert 1 < answer["images_s"]["pillow"] < 2000


def test_the_verb_writes_json_without_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from brim.cli.main import main

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["hw", str(tmp_path), "--json", str(tmp_path / "hw.json")]) == 0
    facts = json.loads((tmp_path / "hw.json").read_text())
    assert facts["version"] == 1 and facts["usable_cores"] > 0
    assert "usable" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from brim.cli.main import main

    assert main(["hw", str(tmp_path / "absent")]) == InputError.exit_code
    assert "No such file" in capsys.readouterr().err


def test_measuring_without_a_device_measures_the_cpu_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from brim.cli.main import main
    from brim.hardware.attainable import load

    answers = {
        "devices": {"torch": "2.13.0+cpu", "arch_list": [], "devices": []},
        "matmul": {"name": "cpu", "matmul_flops": {"fp32": 5.6e10}, "torch": "2.13"},
        "copies": {"copy_bytes_s": {}},
        "decode": {"images_s": {"pillow": 50.0, "simplejpeg": 90.0}},
    }
    monkeypatch.setattr(
        collecting, "_child", lambda what, say, doing, notes, *arguments: answers[what]
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    assert main(["hw", str(tmp_path / "data"), "--measure"]) == 0
    out = capsys.readouterr().out
    assert "fp32 56 GFLOP/s" in out and "simplejpeg 90 images of 1 Mpx" in out
    assert "figures kept in" in out and "with eight readers" in out
    # a later look shows what was kept
    kept = load(tmp_path / "cache" / "brim" / "attainable.json")
    assert kept.decode is not None and len(kept.storage) == 1
    assert main(["hw"]) == 0
    assert "fp32 56 GFLOP/s" in capsys.readouterr().out


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from brim.cli.main import main

    monkeypatch.setattr(collecting, "_child", lambda *_: None)
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["hw", "--measure"]) == 1
    assert "point XDG_CACHE_HOME" in capsys.readouterr().err
