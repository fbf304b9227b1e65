"""The store of measured figures: replaced per device and driver, lost without harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.hardware.attainable import (
    DecodeFigures,
    DeviceFigures,
    StorageFigures,
    Store,
    load,
    path,
    save,
)


def _figures(flops: float, *, driver: str = "580", at: float = 1.0) -> DeviceFigures:
    return DeviceFigures(
        name="NVIDIA H200",
        sm_count=132,
        driver=driver,
        measured_at=at,
        matmul_flops={"bf16": flops},
        copy_bytes_s={"h2d-pinned": 5.5e10},
    )


def test_figures_survive_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "attainable.json"
    store = Store(decode=DecodeFigures(images_s={"pillow": 47.0}, cores=2)).with_device(
        _figures(7.7e14)
    )
    assert save(store, file) == file
    assert load(file) == store
    assert load(file).matmul_flops("NVIDIA H200", "torch.bfloat16") == 7.7e14


def test_a_new_measurement_replaces_that_of_the_same_driver_only() -> None:
    store = Store().with_device(_figures(7.0e14)).with_device(_figures(7.9e14, at=2.0))
    assert len(store.devices) == 1
    store = store.with_device(_figures(7.5e14, driver="570", at=0.5))
    assert len(store.devices) == 2
    newest = store.device("NVIDIA H200")
    assert newest is not None and newest.matmul_flops["bf16"] == 7.9e14


def test_a_partition_of_other_size_has_no_figures() -> None:
    store = Store().with_device(_figures(7.0e14))
    assert store.device("NVIDIA H200", 132) is not None
    assert store.device("NVIDIA H200", 16) is None
    assert store.matmul_flops("NVIDIA H200", "fp8") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"devices": 3}', b"\xff\xfe"])
def test_a_damaged_cache_is_an_empty_one(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    assert load(file) == Store()
    assert load(tmp_path / "absent.json") == Store()


def test_the_cache_folder_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert path() == tmp_path / "brim" / "attainable.json"
    # the specification: a relative path is to be ignored
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/u")
    assert path() == Path("/home/u/.cache/brim/attainable.json")


def test_one_folder_has_one_storage_figure() -> None:
    def figure(rate: float) -> StorageFigures:
        return StorageFigures(
            folder="/data", files=3, bytes=9, read_bytes_s=rate, first_byte_ms=1.0, cached=False
        )

    store = Store().with_storage(figure(1.0)).with_storage(figure(2.0))
    assert [s.read_bytes_s for s in store.storage] == [2.0]
