"""Video files: the reference's frames at the reference's times, planned from headers alone.

Most tests have a stand-in for torchcodec whose films hold their frames as they are; the last ones
run with the real one where it and FFmpeg are installed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.data.pictures import encode, jpeg, picture
from tests.data.test_loader import maker_of
from tests.data.test_maker import prepared_of, record
from tests.data.test_sources import tar_of
from tests.fakes.codec.torchcodec.decoders import DEADLY, MAGIC, film
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from brim.data import scan as scan_module
from brim.data import video as video_module
from brim.data.chat import Clip, Conversation, Image, Turn, Video
from brim.data.config import DataConfig
from brim.data.geometry import Grid
from brim.data.loader import Loader
from brim.data.maker import Stopwatch
from brim.data.prepare import prepare
from brim.data.quarantine import BadSample
from brim.data.resize import resize
from brim.data.sources import SourceConfig
from brim.data.store import Store
from brim.data.tokens import ChatTokens
from brim.data.video import Sampling, chosen, decoded, read_clip, sample_frames
from brim.errors import ConfigError, InputError, MissingExtra

CODEC = str(Path(__file__).parents[1] / "fakes" / "codec")


@functools.cache
def reference_rule() -> Callable[..., np.ndarray]:
    """``Qwen3VLVideoProcessor.sample_frames``, out of a module that needs torchvision to import."""
    path = Path(inspect.getfile(transformers)).parent
    source = (path / "models/qwen3_vl/video_processing_qwen3_vl.py").read_text()
    [method] = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "sample_frames"
    ]
    for argument in (*method.args.args, method.args.kwarg):
        argument.annotation = None  # type: ignore[union-attr]
    scope: dict[str, Any] = {"np": np}
    exec(ast.unparse(method), scope)
    return scope["sample_frames"]  # type: ignore[no-any-return]


@given(
    st.integers(1, 30_000),
    st.sampled_from([0.5, 8.0, 23.976, 24.0, 25.0, 29.97, 30.0, 59.94, 120.0]),
    st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0, 30.0]),
    st.integers(1, 8),
    st.integers(8, 800),
)
def test_frames_are_those_of_the_reference_processor(
    total: int, fps: float, wanted: float, fewest: int, most: int
) -> None:
    processor = SimpleNamespace(fps=2, min_frames=fewest, max_frames=most)
    metadata = SimpleNamespace(total_num_frames=total, fps=fps)
    expected = reference_rule()(processor, metadata, fps=wanted)
    found = sample_frames(total, fps, wanted, Sampling(min_frames=fewest, max_frames=most))
    np.testing.assert_array_equal(found, expected)


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, here and in helper processes; the kinds of sources that were opened."""
    monkeypatch.syspath_prepend(CODEC)
    forget(monkeypatch)
    from torchcodec.decoders import VideoDecoder

    VideoDecoder.opened.clear()
    return VideoDecoder.opened


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchcodec"]:
        monkeypatch.delitem(sys.modules, name)
    video_module._decoder.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    """No stand-in is left behind for the tests that want the real one."""
    yield
    video_module._decoder.cache_clear()
    if not hasattr(sys.modules.get("torchcodec"), "core_library_path"):
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchcodec"]:
            del sys.modules[name]


def frames(count: int, height: int = 90, width: int = 130) -> np.ndarray:
    """Each of another brightness, so that a wrong one is seen."""
    one = picture(height, width).astype(np.int16)
    return np.stack([np.clip(one + 2 * n - 40, 0, 255) for n in range(count)]).astype(np.uint8)


def test_a_header_tells_the_frames_and_the_tokenizer_their_times(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    (tmp_path / "a.mp4").write_bytes(film(frames(50), 10.0))
    turns = (Turn("user", (Video((), "a.mp4"), "what?")), Turn("assistant", ("A film.",)))
    found = chosen(Conversation(turns), Store(root=str(tmp_path)), Sampling())
    [video] = found.pictures()
    assert isinstance(video, Video) and video.clip is not None
    numbers = [0, 5, 11, 16, 22, 27, 33, 38, 44, 49]  # 5 s, 2 a second
    assert video.clip == Clip(tuple(numbers), 10.0, 90, 130)
    expected = Qwen3VLProcessor._calculate_timestamps(None, numbers, 10.0, 2)
    encoded = ChatTokens(small_folder).encode(found)
    text = bytes(encoded.ids[encoded.ids < 256].tolist()).decode()
    assert "".join(f"<{seconds:.1f} seconds>" for seconds in expected) + "what?" in text
    assert len(encoded.blocks) == 5
    assert codec == ["str"]


def test_a_conversation_without_files_is_left_as_it_is(tmp_path: Path) -> None:
    parts = (Video(("1", "2")), Image("a.jpg"), "text")
    conversation = Conversation((Turn("user", parts),))
    assert chosen(conversation, Store(root=str(tmp_path)), Sampling()) is conversation


def test_a_rate_of_the_record_goes_before_the_runs(codec: Any) -> None:
    data = film(frames(60), 30.0)
    assert len(read_clip(data, None, Sampling(fps=10.0)).frames) == 20
    assert len(read_clip(data, 3.0, Sampling(fps=10.0)).frames) == 6
    assert len(read_clip(data, None, Sampling(fps=10.0, max_frames=7)).frames) == 7
    assert len(read_clip(data, None, Sampling(fps=0.1, min_frames=5)).frames) == 5


def test_a_file_without_a_rate_has_24_frames_a_second_as_in_the_reference(codec: Any) -> None:
    for rate in (None, 0.0, float("nan")):
        assert read_clip(film(frames(48), rate), None, Sampling()).fps == 24.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (film(frames(1), 2.0), "video.too-short", "1 frame"),
        (film(frames(4), 2.0, num_frames=None), "video.unreadable", "no number of frames"),
        (MAGIC + b"cut", "video.unreadable", "Could not open input file: Invalid data found"),
        (b"#EXTM3U\n#EXT-X-VERSION:3\nfile:///etc/passwd\n", "video.container", "MP4"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "video.container", "MP4"),
        (jpeg(64, 64), "video.container", "MP4"),
        (b"", "video.container", "MP4"),
    ],
)
def test_what_is_no_usable_film_says_why(codec: Any, data: bytes, kind: str, words: str) -> None:
    with pytest.raises(BadSample, match=words) as caught:
        read_clip(data, None, Sampling())
    assert caught.value.kind == kind
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize(
    "head",
    [
        b"\0\0\0\x20ftypisom",
        b"\x1a\x45\xdf\xa3" + b"\0" * 20,
        b"RIFF\0\0\0\0AVI LIST",
        b"G" + b"\0" * 187 + b"G" + b"\n" * 30,
        b"\0\0\x01\xba" + b"\0" * 20,
        b"\0\0\0\x08wide\0\0\0\0mdat",
    ],
)
def test_common_containers_reach_the_decoder(codec: Any, head: bytes) -> None:
    with pytest.raises(BadSample) as caught:
        read_clip(head, None, Sampling())
    assert caught.value.kind == "video.unreadable"


def test_frames_come_a_few_at_a_time_and_are_the_chosen_ones(codec: Any) -> None:
    made = frames(80)
    clip = read_clip(film(made, 2.0), None, Sampling())
    batches = list(decoded(film(made, 2.0), clip))
    assert [len(batch) for batch in batches] == [16] * 5
    np.testing.assert_array_equal(np.concatenate(batches), made[list(clip.frames)])


def test_a_film_that_ends_early_or_has_frames_of_another_size_is_damaged(codec: Any) -> None:
    for about, words in (({"num_frames": 30}, "no more frames"), ({"height": 40}, "its header")):
        data = film(frames(12), 4.0, **about)
        clip = read_clip(data, None, Sampling())
        with pytest.raises(BadSample, match=words) as caught:
            list(decoded(data, clip))
        assert caught.value.kind == "video.damaged"


def test_a_file_is_planned_from_its_header_and_decoded_as_planned(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    made = frames(33)
    (tmp_path / "a.mp4").write_bytes(film(made, 8.0))
    prepared = prepared_of(
        tmp_path, small_folder, [record("<video>what?", videos=["a.mp4"])], tokens_per_row=2000
    )
    assert codec == ["str"]  # opened once, and no frame was decoded
    document = maker_of(prepared).document(0, Stopwatch())
    assert len(document) == prepared.samples.length[0]
    [clip] = document.pictures
    assert clip.grid == Grid(4, 6, 8) and clip.video
    numbers = np.linspace(0, 32, 8).round().astype(int)
    for found, number in zip(clip.frames, numbers, strict=True):
        np.testing.assert_array_equal(found, resize(made[number], 96, 128))
    assert prepared.samples.patches[0] == 4 * 48
    columns = prepared.scans[0].columns
    assert (columns.frames[0], columns.height[0], columns.width[0]) == (8, 90, 130)
    assert columns.size[0] == (tmp_path / "a.mp4").stat().st_size


def test_frames_that_fit_do_not_keep_the_decoders_memory(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    made = frames(4, 96, 128)
    (tmp_path / "a.mp4").write_bytes(film(made, 2.0))
    prepared = prepared_of(tmp_path, small_folder, [record("<video>", videos=["a.mp4"])])
    [clip] = maker_of(prepared).document(0, Stopwatch()).pictures
    np.testing.assert_array_equal(np.stack(clip.frames), made)
    assert all(frame.base is None for frame in clip.frames)


def test_other_sampling_is_another_scan_and_a_changed_file_is_read_anew(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(film(frames(40), 10.0))
    samples = [record("<video>what?", videos=["a.mp4"])]

    def counted(**settings: Any) -> int:
        settings["tokens_per_row"] = 4000
        prepared = prepared_of(tmp_path, small_folder, samples, **settings)
        return int(prepared.scans[0].columns.frames[0])

    assert counted() == 8
    assert counted(video_fps=1.0) == 4
    assert counted(video_max_frames=6) == 6
    path.write_bytes(film(frames(20), 10.0))
    assert counted() == 4


def test_a_video_longer_than_a_row_is_shrunk_until_it_fits(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    (tmp_path / "a.mp4").write_bytes(film(frames(24, 320, 480), 4.0))
    (tmp_path / "b.jpg").write_bytes(jpeg(400, 400))
    samples = [record("<video><image>?", videos=["a.mp4"], images=["b.jpg"])]
    prepared = prepared_of(tmp_path, small_folder, samples, tokens_per_row=700)
    assert prepared.samples.overlong == {"pictures shrunk": 1}
    document = maker_of(prepared).document(0, Stopwatch())
    assert 500 < len(document) == prepared.samples.length[0] <= 700
    clip, still = document.pictures
    assert clip.grid.t == 6 and clip.grid.tokens(2) < 6 * 150 and still.grid.tokens(2) <= 169


def test_a_bad_file_is_refused_when_it_is_planned(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    (tmp_path / "good.mp4").write_bytes(film(frames(8), 4.0))
    (tmp_path / "list.mp4").write_bytes(b"#EXTM3U\nhttp://inside/\n")
    (tmp_path / "wide.mp4").write_bytes(film(frames(4), 2.0, width=9000, height=9000))
    names = ("good", "list", "wide", "none", "../out")
    samples = [record("<video>", videos=[f"{name}.mp4"]) for name in names]
    prepared = prepared_of(tmp_path, small_folder, samples)
    assert [(b.record, b.kind) for b in sorted(prepared.scans[0].bad, key=lambda b: b.record)] == [
        (1, "video.container"),
        (2, "image.too-large"),
        (3, "image.missing"),
        (4, "image.path"),
    ]
    assert {b.image for b in prepared.scans[0].bad} == {f"{n}.mp4" for n in names[1:]}


def test_embedded_films_and_members_of_a_tar_are_read_from_memory(
    codec: Any, tmp_path: Path, small_folder: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = film(frames(8), 4.0)
    messages = [{"role": "user", "content": "<video>?"}, {"role": "assistant", "content": "Yes."}]
    rows = [{"messages": messages, "videos": [{"bytes": data, "path": None}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    tar_of(tmp_path / "b.tar", {"0.mp4": data, "0.txt": b"A film."})
    for name in ("a.parquet", "b.tar"):
        config = DataConfig(sources=(SourceConfig(path=str(tmp_path / name)),))
        prepared = prepare(config, small_folder)
        document = maker_of(prepared).document(0, Stopwatch())
        assert document.pictures[0].grid == Grid(2, 6, 8)
    assert set(codec) == {"bytes"}


def test_a_remote_film_is_a_stream_that_is_read_where_it_is_asked_for(codec: Any) -> None:
    with fsspec.open("memory://films/a.mp4", "wb") as f:
        f.write(film(frames(8), 4.0))
    store = Store(root="memory://films")
    clip = read_clip(store.video("a.mp4"), None, Sampling())
    assert len(clip.frames) == 4
    assert codec[0] not in ("bytes", "str")
    for ref in ("../a.mp4", "file:///etc/passwd", "s3://other/a.mp4", "http://a.b/c.mp4"):
        with pytest.raises(BadSample):
            store.video(ref)


def test_films_cross_the_loaders_process(codec: Any, tmp_path: Path, small_folder: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(film(frames(8), 4.0))
    samples = [record(f"<video>{n}?", videos=["a.mp4"]) for n in range(4)]
    prepared = prepared_of(tmp_path, small_folder, samples, tokens_per_row=200)
    with Loader(prepared, stop=2) as loader:
        for row in loader:
            assert row.arrays["video_patches"].shape == (2 * 48 * row.counts.documents, 1536)
            row.release()
    assert prepared.samples.images.tolist() == [1] * 4


def test_a_film_that_crashes_the_decoder_is_found_and_refused(
    codec: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_folder: Path
) -> None:
    monkeypatch.setattr(scan_module, "_CHUNK", 2)
    monkeypatch.setattr("brim.data.prepare.usable_cores", lambda: SimpleNamespace(whole=2))
    for n in range(8):
        data = film(frames(8), 4.0, **({"width": DEADLY} if n == 5 else {}))
        (tmp_path / f"{n}.mp4").write_bytes(data)
    samples = [record("<video>", videos=[f"{n}.mp4"]) for n in range(8)]
    [found] = prepared_of(tmp_path, small_folder, samples).scans
    assert [(bad.record, bad.kind) for bad in found.bad] == [(5, "sample.deadly")]
    assert found.columns.record.tolist() == [0, 1, 2, 3, 4, 6, 7]


def without_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)


def test_without_torchcodec_the_extra_to_install_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_folder: Path
) -> None:
    without_codec(monkeypatch)
    (tmp_path / "a.mp4").write_bytes(film(frames(8), 4.0))
    with pytest.raises(MissingExtra, match=r"a video file needs the package torchcodec") as caught:
        prepared_of(tmp_path, small_folder, [record("<video>", videos=["a.mp4"])])
    assert caught.value.hint == "pip install 'brim[video]'"


def test_what_stops_one_scanning_process_reaches_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_folder: Path
) -> None:
    # the helpers find a torchcodec that is none
    (tmp_path / "torchcodec").mkdir()
    (tmp_path / "torchcodec" / "decoders.py").write_text("raise ImportError('no')\n")
    (tmp_path / "torchcodec" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(scan_module, "_CHUNK", 1)
    monkeypatch.setattr("brim.data.prepare.usable_cores", lambda: SimpleNamespace(whole=2))
    (tmp_path / "a.mp4").write_bytes(film(frames(8), 4.0))
    with pytest.raises(InputError, match="needs the package torchcodec"):
        prepared_of(tmp_path, small_folder, [record("<video>", videos=["a.mp4"])] * 4)


@pytest.mark.parametrize("late", [False, True])
def test_without_ffmpeg_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    forget(monkeypatch)

    def missing(*args: Any, **options: Any) -> Any:
        raise RuntimeError("Could not load libtorchcodec. Likely causes:\n  1. …")

    if late:  # since 0.16 it is looked for when a file is opened
        monkeypatch.setattr(video_module, "_decoder", lambda: missing)
    else:
        monkeypatch.setattr("builtins.__import__", _failing(missing))
    with pytest.raises(InputError, match="needs FFmpeg's shared libraries") as caught:
        read_clip(film(frames(4), 2.0), None, Sampling())
    assert "apt install ffmpeg" in caught.value.hint
    monkeypatch.undo()


def _failing(missing: Callable[..., Any]) -> Callable[..., Any]:
    real = __import__

    def load(name: str, *args: Any, **options: Any) -> Any:
        return missing() if name.startswith("torchcodec") else real(name, *args, **options)

    return load


def test_limits_of_videos_are_checked() -> None:
    for settings in (
        {"video_fps": 0.0},
        {"video_max_frames": 0},
        {"video_min_frames": -1},
        {"video_fps": float("nan")},
    ):
        with pytest.raises(ConfigError, match=r"data\.video_"):
            DataConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"above data\.video_max_pixels"):
        DataConfig(video_max_pixels=4000).vision()


def real_film(folder: Path, made: np.ndarray, fps: int, name: str = "a.mp4") -> Path:
    """A film by FFmpeg, through torchcodec's own encoder; skips where there is none."""
    encoders = pytest.importorskip("torchcodec.encoders")
    path = folder / name
    try:
        encoder = encoders.VideoEncoder(
            torch.from_numpy(made).permute(0, 3, 1, 2).contiguous(), frame_rate=fps
        )
        encoder.to_file(path, codec="mpeg4", pixel_format="yuv420p", extra_options={"q:v": "2"})
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"no FFmpeg that encodes: {str(error)[:80]}")
    return path


def test_a_real_film_gives_its_frames_at_their_times(tmp_path: Path, small_folder: Path) -> None:
    made = frames(40, 96, 128)
    real_film(tmp_path, made, 10)
    prepared = prepared_of(
        tmp_path, small_folder, [record("<video>?", videos=["a.mp4"])], tokens_per_row=2000
    )
    document = maker_of(prepared).document(0, Stopwatch())
    [clip] = document.pictures
    numbers = np.linspace(0, 39, 8).round().astype(int)
    assert clip.grid == Grid(4, 6, 8)
    for found, number in zip(clip.frames, numbers, strict=True):
        # neighbours differ by 2 grey levels: a wrong frame would be nearer to them
        errors = [np.abs(found.astype(int) - made[n]).mean() for n in range(40)]
        assert abs(int(np.argmin(errors)) - number) <= 1
        assert errors[number] < 6


def test_a_real_film_from_memory_and_from_a_stream_is_the_same(tmp_path: Path) -> None:
    path = real_film(tmp_path, frames(12, 64, 96), 4)
    sources = (str(path), path.read_bytes(), io.BytesIO(path.read_bytes()))
    clips = [read_clip(source, None, Sampling()) for source in sources]
    assert clips[0] == clips[1] == clips[2]
    pixels = [np.concatenate(list(decoded(s, clips[0]))) for s in (str(path), path.read_bytes())]
    np.testing.assert_array_equal(*pixels)


def test_a_real_film_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = real_film(tmp_path, frames(40, 96, 128), 10)
    whole = path.read_bytes()
    for keep in (len(whole) // 8, len(whole) // 2):
        with pytest.raises(BadSample):
            clip = read_clip(whole[:keep], None, Sampling())
            list(decoded(whole[:keep], clip))


def test_a_picture_is_no_film_for_the_real_decoder_either(tmp_path: Path) -> None:
    pytest.importorskip("torchcodec")
    with pytest.raises(BadSample, match="no video of the formats"):
        read_clip(encode(picture(32, 32), "GIF"), None, Sampling())
