"""The [data] table: every mistake names its field and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brim.data.config import DataConfig
from brim.errors import ConfigError

HERE = Path("/set")


def test_sources_are_paths_or_tables_relative_to_the_configuration() -> None:
    table = {
        "sources": [
            "a.jsonl",
            {"path": "/b.parquet", "image_root": "pics", "weight": 0.5},
            {"path": "hf:user/set", "split": "val"},
            {"path": "s3://bucket/c.tar", "allow_hosts": ["example.org"]},
        ],
        "tokens_per_row": 4096,
    }
    config = DataConfig.of_table(table, HERE)
    assert [s.path for s in config.sources] == [
        "/set/a.jsonl",
        "/b.parquet",
        "hf:user/set",
        "s3://bucket/c.tar",
    ]
    assert config.sources[1].image_root == "/set/pics"
    assert config.sources[3].allow_hosts == ("example.org",)
    assert config.tokens_per_row == 4096
    assert DataConfig.of_table({"sources": "a.jsonl"}, HERE).sources[0].path == "/set/a.jsonl"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"token_per_row": 1}, r"data\.token_per_row is no field\n  did you mean data\.tokens_per"),
        ({"xyz": 1}, "known: sources"),
        ({"tokens_per_row": "8k"}, "'8k'; it must be int"),
        ({"tokens_per_row": True}, "True; it must be int"),
        ({"tokens_per_row": 0}, "it must be 1 or more"),
        ({"threads": -1}, "it must be 0 or more"),
        ({"threads": 65}, "more than 64"),
        ({"overlong": "cut"}, "one of shrink, truncate, drop"),
        ({"patch_bucket": 6}, "divisible by 4"),
        ({"max_bad_share": 2}, "a share of one"),
        ({"sources": 3}, "must be a list"),
        ({"sources": [3]}, "a path or a table"),
        ({"sources": [{"path": "a", "wait": 1}]}, r"data\.sources\.wait is no field"),
        ({"sources": [{"image_root": "a"}]}, "without a path"),
    ],
)
def test_mistakes(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DataConfig.of_table(table, HERE)


def test_the_processor_of_the_model_gives_the_patch_size_and_the_table_the_limits() -> None:
    vision = DataConfig(max_pixels=1 << 20).vision({"patch_size": 14, "max_pixels": 5})
    assert (vision.patch, vision.max_pixels) == (14, 1 << 20)


def test_decode_choices_reach_the_decoder() -> None:
    policy = DataConfig(rotate=False, dct_scaling=True, max_file_pixels=7).decode
    assert (policy.rotate, policy.dct_scaling, policy.max_file_pixels) == (False, True, 7)


def test_the_cache_of_images_may_lie_anywhere_from_the_files_folder_on(tmp_path: Path) -> None:
    for given, expected in (("images", str(tmp_path / "images")), ("/dev/shm/i", "/dev/shm/i")):
        table = {"sources": "a.jsonl", "image_cache_folder": given}
        assert DataConfig.of_table(table, tmp_path).image_cache_folder == expected
    assert DataConfig.of_table({"sources": "a.jsonl"}, tmp_path).image_cache_folder == ""
