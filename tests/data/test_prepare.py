"""One call from a configuration and a model to a plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.data.sets import write_set
from tests.data.test_samples import QWEN3_VL_4B

from brim.data.config import DataConfig
from brim.data.cost import Cost
from brim.data.prepare import prepare
from brim.data.sources import SourceConfig
from brim.errors import InputError


@pytest.fixture
def model(tmp_path: Path, small_folder: Path) -> Path:
    return Path(shutil.copytree(small_folder, tmp_path / "model"))


def config_of(tmp_path: Path, **settings: int) -> DataConfig:
    source = SourceConfig(path=str(write_set(tmp_path / "set", 10)))
    return DataConfig(sources=(source,), tokens_per_row=2048, rows_per_step=1, **settings)


def test_the_models_files_give_geometry_and_cost(tmp_path: Path, model: Path) -> None:
    config = config_of(tmp_path, max_pixels=1 << 20)
    plain = prepare(config, model)
    assert plain.cost == Cost()
    assert (plain.vision.patch, plain.vision.max_pixels) == (16, 1 << 20)
    (model / "config.json").write_text(json.dumps(QWEN3_VL_4B | {"model_type": "qwen3_vl"}))
    (model / "preprocessor_config.json").write_text(
        json.dumps({"patch_size": 14, "merge_size": 2, "size": {"longest_edge": 5}})
    )
    found = prepare(config, model)
    assert found.cost == Cost.of_model(QWEN3_VL_4B)
    assert (found.vision.patch, found.vision.max_pixels) == (14, 1 << 20)
    assert found.scans[0].cached  # pixel limits and patch sizes are no part of a scan
    assert found.samples.length.sum() > plain.samples.length.sum()


def test_a_broken_file_of_the_model_is_named(tmp_path: Path, model: Path) -> None:
    (model / "preprocessor_config.json").write_text("{")
    with pytest.raises(InputError, match=r"preprocessor_config\.json: cannot be read"):
        prepare(config_of(tmp_path), model)


def test_a_cache_folder_of_ones_own_keeps_the_data_folder_clean(
    tmp_path: Path, model: Path
) -> None:
    prepared = prepare(config_of(tmp_path), model, cache=tmp_path / "cache")
    assert not (tmp_path / "set" / ".brim").exists()
    assert list((tmp_path / "cache").glob("scan-*.npz"))
    assert len(prepared.samples) == 10
