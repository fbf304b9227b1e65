"""From a sample's number to its document: every kind of sample, and the choice of replacements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.pictures import encode, jpeg, picture
from tests.data.sets import samples_of
from tests.data.test_loader import maker_of

from brim.data.config import DataConfig
from brim.data.geometry import Grid
from brim.data.imagecache import ImageCache
from brim.data.maker import Guard, Maker, Stopwatch
from brim.data.plan import RowTask
from brim.data.prepare import Prepared, prepare
from brim.data.quarantine import BadSample, Quarantine
from brim.data.sources import SourceConfig


def record(user: str, answer: str = "Yes.", **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


def prepared_of(
    folder: Path, model: Path, records: list[dict[str, Any]], **settings: Any
) -> Prepared:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    values = {"tokens_per_row": 600, "rows_per_step": 1, "max_bad_share": 0.5, **settings}
    return prepare(DataConfig(sources=(SourceConfig(path=str(path)),), **values), model)


def test_a_video_of_frames_becomes_temporal_patches_with_time_stamps(
    tmp_path: Path, small_folder: Path
) -> None:
    for n in range(5):
        (tmp_path / f"{n}.png").write_bytes(encode(picture(120, 200, n), "PNG"))
    (tmp_path / "still.jpg").write_bytes(jpeg(256, 256))
    frames = [f"{n}.png" for n in range(5)]
    prepared = prepared_of(
        tmp_path,
        small_folder,
        [record("<video>then <image>?", videos=[frames], images=["still.jpg"], fps=1.0)],
    )
    document = maker_of(prepared).document(0, Stopwatch())
    assert len(document) == prepared.samples.length[0]
    assert [video for video, _ in document.frames] == [True, True, True, False]
    assert document.frames[0][1] == Grid(1, 8, 12)
    clip = document.pictures[0]
    assert clip.grid == Grid(3, 8, 12)
    assert [frame.shape for frame in clip.frames] == [(128, 192, 3)] * 5
    tokens = prepared.tokens
    assert (document.ids == tokens.video_pad).sum() == 3 * 4 * 6
    assert (document.ids == tokens.image_pad).sum() == 64
    assert prepared.samples.patches[0] == 3 * 96 + 256
    text = bytes(document.ids[document.ids < 256].tolist()).decode()
    assert "<0.5 seconds><2.5 seconds><4.0 seconds>then ?" in text


def test_images_of_a_long_sample_are_shrunk_as_planned(tmp_path: Path, small_folder: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(900, 1200))
    prepared = prepared_of(tmp_path, small_folder, [record("<image><image>", images=["a.jpg"] * 2)])
    assert prepared.samples.overlong == {"pictures shrunk": 1}
    document = maker_of(prepared).document(0, Stopwatch())
    assert 500 < len(document) == prepared.samples.length[0] <= 600


def test_a_long_text_is_cut_as_planned(tmp_path: Path, small_folder: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(256, 256))
    prepared = prepared_of(
        tmp_path,
        small_folder,
        [record("<image>tell", "word " * 300, images=["a.jpg"])],
        overlong="truncate",
    )
    document = maker_of(prepared).document(0, Stopwatch())
    assert len(document) == 600
    assert document.scored[-1] and document.scored.sum() > 400


def test_an_image_is_cached_and_comes_back_the_same(
    tmp_path: Path, small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brim.data import imagecache

    monkeypatch.setattr(imagecache, "WORTH_S", 0.0)
    (tmp_path / "a.jpg").write_bytes(jpeg(300, 400))
    prepared = prepared_of(tmp_path, small_folder, [record("<image>", images=["a.jpg"])])
    cache = ImageCache(tmp_path / "cache", 1 << 20)
    cached, plain = maker_of(prepared, cache), maker_of(prepared)
    for _ in range(2):
        clock = Stopwatch()
        ours = cached.document(0, clock).pictures[0].frames[0]
        np.testing.assert_array_equal(ours, plain.document(0, Stopwatch()).pictures[0].frames[0])
    assert (cache.hits, cache.misses) == (1, 1)
    assert clock.wall["decode"] == 0 < clock.wall["cache"]


def test_a_bad_picture_is_named(tmp_path: Path, small_folder: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(jpeg(256, 256))
    prepared = prepared_of(
        tmp_path, small_folder, [record("<image><image>", images=["a.jpg", "b.jpg"])]
    )
    (tmp_path / "b.jpg").write_bytes(jpeg(256, 256)[:-400])
    with pytest.raises(BadSample) as caught:
        maker_of(prepared).document(0, Stopwatch())
    assert caught.value.image == "b.jpg"


def test_a_set_of_nothing_but_bad_samples_gives_up_after_16_tries(
    tmp_path: Path, small_folder: Path
) -> None:
    for n in range(30):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(256, 256, n))
    records = [record("<image>", images=[f"{n}.jpg"]) for n in range(30)]
    prepared = prepared_of(tmp_path, small_folder, records)
    for n in range(30):
        (tmp_path / f"{n}.jpg").write_bytes(b"\xff\xd8 no picture")
    quarantine = Quarantine()
    made = maker_of(prepared).make(prepared.plan.step(0)[0], 0, quarantine, Stopwatch(), Guard())
    assert made is None
    assert 5 < quarantine.total <= 17


def bare_maker(lengths: list[int]) -> Maker:
    """A maker that only chooses."""
    nothing: Any = None
    return Maker(
        sources=[], samples=samples_of(np.array(lengths)), tokens=nothing, vision=nothing,
        policy=nothing, tokens_per_row=100,
    )  # fmt: skip


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=200),
    st.integers(0, 2**32 - 1),
    st.integers(1, 16),
)
def test_a_replacement_fits_and_is_the_same_in_every_run(
    lengths: list[int], salt: int, attempt: int
) -> None:
    task = RowTask(0, 0, tuple(range(len(lengths))), salt)
    for place in (0, len(lengths) - 1):
        chosen = bare_maker(lengths).stand_in(task, place, attempt)
        assert chosen is not None
        assert lengths[chosen] <= lengths[place]
        assert chosen == bare_maker(lengths).stand_in(task, place, attempt)
    assert bare_maker(lengths).stand_in(task, 0, 17) is None


def test_replacements_of_many_rows_are_spread_over_samples_of_like_length() -> None:
    lengths = np.random.default_rng(0).integers(10, 1000, 5000).tolist()
    maker, bad = bare_maker(lengths), int(np.argmax(lengths))
    chosen = {maker.stand_in(RowTask(0, 0, (bad,), salt), 0, 1) for salt in range(300)}
    assert len(chosen) > 100
    assert all(0.9 * lengths[bad] <= lengths[c] <= lengths[bad] for c in chosen if c is not None)
