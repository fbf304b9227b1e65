"""Resized images on disk: exact, bounded, never trusted blindly."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.data.pictures import picture
from tests.data.test_loader import prepared_set

from brim.data.decode import EXACT, DecodePolicy
from brim.data.imagecache import WORTH_S, ImageCache
from brim.data.loader import _image_cache
from brim.errors import ConfigError

PIXELS = picture(64, 96)
TARGET = (64, 96)
DEAR = WORTH_S * 2


def test_an_image_comes_back_bit_by_bit(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 1 << 20)
    assert cache.get("a", TARGET) is None
    cache.offer("a", PIXELS, DEAR)
    found = cache.get("a", TARGET)
    assert found is not None
    np.testing.assert_array_equal(found, PIXELS)
    assert (cache.hits, cache.misses) == (1, 1)


def test_what_decodes_fast_is_not_kept(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 1 << 20)
    cache.offer("a", PIXELS, WORTH_S / 2)
    assert not list(tmp_path.iterdir())


def test_the_key_follows_content_size_and_policy(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 1 << 20)
    keys = {
        cache.key(b"a", TARGET, EXACT),
        cache.key(b"b", TARGET, EXACT),
        cache.key(b"a", (64, 64), EXACT),
        cache.key(b"a", TARGET, DecodePolicy(rotate=False)),
        cache.key(b"a", TARGET, DecodePolicy(dct_scaling=True)),
    }
    assert len(keys) == 5
    assert cache.key(b"a", TARGET, EXACT) in keys


def test_the_budget_holds_over_processes_and_restarts(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 100_000, share=2)
    for n in range(40):
        cache.offer(f"{n}", picture(64, 96, n), DEAR)
    used = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert 10_000 < used <= 50_000
    again = pickle.loads(pickle.dumps(cache))
    assert again.room <= (100_000 - used) // 2


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other size"])
def test_a_damaged_file_is_removed_and_made_anew(tmp_path: Path, damage: str) -> None:
    cache = ImageCache(tmp_path, 1 << 20)
    cache.offer("a", PIXELS, DEAR)
    path = tmp_path / "a"
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-5], "empty": b""}.get(damage, bytes(data)))
    target = (32, 32) if damage == "other size" else TARGET
    assert cache.get("a", target) is None
    assert not path.exists()


def test_a_folder_that_is_gone_costs_nothing_but_the_cache(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path / "c", 1 << 20)
    (tmp_path / "c").rmdir()
    cache.offer("a", PIXELS, DEAR)
    assert cache.room == 0
    assert cache.get("a", TARGET) is None


def test_its_folder_is_beside_the_data_or_where_the_configuration_says(
    tmp_path: Path, small_folder: Path
) -> None:
    prepared = prepared_set(tmp_path / "set", small_folder, 4, image_cache_bytes=1 << 20)
    beside = _image_cache(prepared, 4)
    assert beside.folder == tmp_path / "set" / ".brim" / "images"
    assert beside.room == (1 << 20) // 4  # each rank's part
    config = replace(prepared.config, image_cache_folder=str(tmp_path / "fast"))
    assert _image_cache(replace(prepared, config=config), 1).folder == tmp_path / "fast"
    (tmp_path / "file").write_text("")
    config = replace(prepared.config, image_cache_folder=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"data\.image_cache_folder is .*file, which cannot be"):
        _image_cache(replace(prepared, config=config), 1)
