"""JPEGs on a CUDA device: which go there, what comes back, and who decides about the rest."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from tests.data.pictures import encode, jpeg, picture
from tests.data.sets import write_set
from tests.data.test_loader import maker_of, prepared_set

from brim.data.config import DataConfig
from brim.data.decode import EXACT, DecodePolicy, decode
from brim.data.imagecache import ImageCache
from brim.data.loader import Loader
from brim.data.maker import Stopwatch
from brim.data.nvjpeg import GpuJpegs, require
from brim.data.prepare import prepare
from brim.data.quarantine import BadSample
from brim.data.resize import resize
from brim.data.sources import SourceConfig
from brim.errors import ConfigError, MissingExtra

CPU = torch.device("cpu")
CUDA = torch.cuda.is_available() and importlib.util.find_spec("torchvision") is not None
needs_cuda = pytest.mark.skipif(not CUDA, reason="no CUDA device with torchvision")


class Decoder:
    """libjpeg in nvJPEG's place; notes what it is given."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.seen: list[bytes] = []

    def __call__(self, data: bytes) -> torch.Tensor:
        self.seen.append(data)
        if self.refuses:
            raise RuntimeError("nvjpegDecode failed: 5")
        return torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)


def gpu(decoder: Decoder | None = None) -> GpuJpegs:
    return GpuJpegs(CPU, decoder or Decoder())


def test_resizing_in_float_is_off_by_a_fifth_of_a_grey_level_and_it_is_measured() -> None:
    jpegs = gpu()
    assert jpegs.error is None
    for seed in range(6):
        data = jpeg(300, 420, seed)
        pixels = jpegs.load(data, (224, 320), EXACT)
        assert pixels is not None and pixels.shape == (224, 320, 3) and pixels.dtype == np.uint8
        exact = resize(decode(data), 224, 320)
        assert np.abs(pixels.astype(int) - exact).mean() < 0.25
    assert jpegs.error is not None and 0 < jpegs.error < 0.25


def test_a_picture_of_the_right_size_is_not_touched() -> None:
    data = jpeg(96, 64)
    pixels = gpu().load(data, (96, 64), EXACT)
    assert pixels is not None
    np.testing.assert_array_equal(pixels, decode(data))


@pytest.mark.parametrize(
    "data",
    [
        encode(picture(64, 64), "PNG"),
        encode(picture(64, 64)[..., 0], "JPEG"),
        jpeg(64, 64)[:-40],
        jpeg(
            64, 64, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
        ),
    ],
    ids=["png", "grey", "cut", "rotated"],
)
def test_what_nvjpeg_would_not_do_or_not_notice_is_the_cpus(data: bytes) -> None:
    decoder = Decoder()
    assert gpu(decoder).load(data, (64, 64), EXACT) is None
    assert not decoder.seen


def test_an_ignored_rotation_is_no_reason_against_it() -> None:
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    data = jpeg(64, 96, exif=exif)
    pixels = gpu().load(data, (64, 96), DecodePolicy(rotate=False))
    assert pixels is not None and pixels.shape == (64, 96, 3)


def test_what_the_device_refuses_the_cpu_decides() -> None:
    decoder = Decoder(refuses=True)
    assert gpu(decoder).load(jpeg(64, 64), (64, 64), EXACT) is None
    assert decoder.seen


def test_a_picture_that_is_too_large_is_refused_before_it_reaches_the_device() -> None:
    decoder = Decoder()
    with pytest.raises(BadSample, match="limit is"):
        gpu(decoder).load(jpeg(64, 64), (64, 64), DecodePolicy(max_file_pixels=1000))
    assert not decoder.seen


def test_the_maker_takes_its_pixels_and_falls_back(tmp_path: Path, small_folder: Path) -> None:
    plain = maker_of(prepared_set(tmp_path, small_folder, 5))
    expected = plain.document(2, Stopwatch()).pictures[0].frames[0]
    for decoder in (Decoder(), Decoder(refuses=True)):
        maker = type(plain)(**{**plain.__dict__, "gpu": gpu(decoder)})
        found = maker.document(2, Stopwatch()).pictures[0].frames[0]
        assert len(decoder.seen) == 1
        assert np.abs(found.astype(int) - expected).mean() < 0.25
        assert decoder.refuses == bool((found == expected).all())


def test_the_cache_keeps_its_pixels_apart(tmp_path: Path) -> None:
    cache = ImageCache(tmp_path, 1 << 20)
    keys = {cache.key(b"a", (32, 32), EXACT, nvjpeg=chosen) for chosen in (False, True)}
    assert len(keys) == 2


def test_it_crosses_to_the_loaders_process() -> None:
    assert pickle.loads(pickle.dumps(GpuJpegs(torch.device("cuda", 1)))).device.index == 1


def test_without_a_device_or_torchvision_the_choice_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_folder: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    prepared = prepared_set(tmp_path, small_folder, 4, nvjpeg=True)
    with pytest.raises(ConfigError, match=r"data\.nvjpeg is true, but there is no CUDA device"):
        Loader(prepared)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="torchvision"):
        require()


def test_it_is_never_the_default() -> None:
    assert not DataConfig().nvjpeg


@pytest.mark.gpu
@needs_cuda
def test_on_a_gpu_its_pixels_are_within_3_grey_levels_on_average() -> None:
    jpegs = GpuJpegs(torch.device("cuda", 0))
    for seed in range(4):
        pixels = jpegs.load(jpeg(480, 640, seed), (448, 608), EXACT)
        assert pixels is not None and pixels.shape == (448, 608, 3)
    assert jpegs.error is not None and jpegs.error < 3


@pytest.mark.gpu
@needs_cuda
def test_on_a_gpu_the_loaders_process_decodes_there(tmp_path: Path, small_folder: Path) -> None:
    path = write_set(tmp_path, 40)
    config = DataConfig(
        sources=(SourceConfig(path=str(path)),), tokens_per_row=512, rows_per_step=1, nvjpeg=True
    )
    with Loader(prepare(config, small_folder), run_dir=tmp_path) as loader:
        for _ in range(20):
            row = next(loader)
            assert row.arrays["patches"].std() > 10
            row.release()
    assert loader.deaths == 0
