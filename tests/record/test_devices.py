"""The device recording on disk: it survives a crash at any byte, and null keeps its reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.record.devices import (
    FILE,
    About,
    Device,
    DeviceProcess,
    DeviceSample,
    HostProcess,
    HostSample,
    Line,
    Note,
    encode,
    lines,
    read,
    why_absent,
)

ABOUT = About(
    t=1.0,
    host="node1",
    backend="nvml",
    period_s=0.5,
    devices=[
        Device(index=0, name="Tesla V100", absent={"tensor_active": "needs Hopper or newer"}),
        Device(index=1, name="NVIDIA H200"),
    ],
)
SAMPLES: list[Line] = [
    ABOUT,
    DeviceSample(
        t=2.0,
        mono=9.0,
        interval_s=0.5,
        device=1,
        gpu_util=0.0,
        tensor_active=0.5,
        reasons=[],
        processes=[DeviceProcess(pid=7, whose="other", memory_bytes=5)],
    ),
    DeviceSample(t=2.0, mono=9.0, interval_s=0.5, device=0, absent={"gpu_util": "lost"}),
    HostSample(
        t=2.0,
        mono=9.0,
        interval_s=0.5,
        cpu=1.5,
        processes=[HostProcess(pid=1, ppid=0, name="python", cpu=0.9)],
    ),
    Note(t=3.0, text="the disk is full"),
]


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"".join(encode(line) for line in SAMPLES))
    recording = read(tmp_path)
    assert recording.about == ABOUT
    assert [*recording.of(1), *recording.of(0)] == SAMPLES[1:3]
    assert recording.host == [SAMPLES[3]]
    assert recording.notes == ["the disk is full"]


def test_zero_and_absent_stay_different_and_absent_has_its_reason() -> None:
    on_h200, on_v100 = list(lines(b"".join(encode(line) for line in SAMPLES[1:3])))
    assert isinstance(on_h200, DeviceSample) and isinstance(on_v100, DeviceSample)
    assert on_h200.gpu_util == 0.0 and on_v100.gpu_util is None
    assert why_absent(ABOUT, on_v100, "gpu_util") == "lost"
    assert why_absent(ABOUT, on_v100, "tensor_active") == "needs Hopper or newer"
    assert why_absent(ABOUT, on_h200, "sm_active") == ""
    assert on_h200.reasons == [] and on_v100.reasons is None


@given(st.integers(0, sum(len(encode(line)) for line in SAMPLES)))
def test_a_file_cut_at_any_byte_yields_every_whole_line(cut: int) -> None:
    whole = [encode(line) for line in SAMPLES]
    data = b"".join(whole)[:cut]
    found = list(lines(data))
    complete = data.count(b"\n")
    # a cut exactly before a newline leaves a readable line
    assert found[:complete] == SAMPLES[:complete] and len(found) in (complete, complete + 1)


@given(st.binary(max_size=200))
def test_garbage_between_lines_is_skipped(garbage: bytes) -> None:
    data = encode(SAMPLES[0]) + garbage.replace(b"\n", b"") + b"\n" + encode(SAMPLES[-1])
    found = list(lines(data))
    assert found[0] == SAMPLES[0] and found[-1] == SAMPLES[-1]


def test_a_line_of_a_later_version_is_skipped_and_a_new_field_ignored() -> None:
    later = b'{"type":"fabric","t":1}\n'
    wider = encode(SAMPLES[-1]).replace(b'"t"', b'"new":[1],"t"')
    assert list(lines(later + wider)) == [SAMPLES[-1]]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x00\x01", encode(SAMPLES[-1])])
def test_a_file_without_an_about_line_is_named_as_such(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(InputError, match="not a recording of devices"):
        read(tmp_path)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read(tmp_path)


def test_a_sample_of_a_device_takes_less_than_a_kilobyte() -> None:
    full = msgspec.structs.replace(
        SAMPLES[1],
        **{
            f.name: 123456.789
            for f in msgspec.structs.fields(DeviceSample)
            if f.type == float | None
        },
    )
    assert 400 < len(encode(full)) < 1000
