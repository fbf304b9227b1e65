"""Reading a folder's own files past the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.errors import InputError
from brim.observe import storage
from brim.observe.storage import measure


def _fill(folder: Path, files: int, size: int) -> None:
    for number in range(files):
        path = folder / f"{number:04d}.bin"
        path.write_bytes(os.urandom(size))
        with path.open("rb") as f:
            os.fsync(f.fileno())


def test_a_data_set_is_read_and_not_written(tmp_path: Path) -> None:
    _fill(tmp_path, 40, 512 << 10)
    before = sorted(p.name for p in tmp_path.iterdir())
    figures = measure(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    # one of the forty only tests the eviction; half of the rest is read by one reader
    assert figures.files == 39 and figures.bytes == 19 * (512 << 10)
    assert figures.read_bytes_s > 1e6 and figures.read_bytes_s_8 is not None
    assert 0 < figures.first_byte_ms < 1000


def test_an_almost_empty_folder_gets_files_that_go_away_again(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    figures = measure(tmp_path)
    assert figures.files == 63
    assert [p.name for p in tmp_path.iterdir()] == ["readme.txt"]


def test_an_empty_folder_that_cannot_be_written_is_an_input_error() -> None:
    with pytest.raises(InputError, match="cannot be written"):
        measure(Path("/proc/self/net"))


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    _fill(outside, 1, 20 << 20)
    (inside / "link.bin").symlink_to(outside / "0000.bin")
    assert list(storage._existing(inside)) == []


def test_files_in_memory_are_said_to_be_cached() -> None:
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        pytest.skip("no tmpfs to write to")
    probe = folder / f"brim-test-{os.getpid()}"
    probe.write_bytes(b"x" * 4096)
    try:
        assert storage._can_evict(probe) is False
    finally:
        probe.unlink()
