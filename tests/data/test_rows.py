"""A packed row against transformers, index by index and pixel by pixel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.pictures import picture
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from brim.data.chat import Conversation, Image, Part, Turn, Video
from brim.data.geometry import Grid, Vision
from brim.data.indices import (
    boundaries,
    document_positions,
    interpolation,
    patch_positions,
    write_patches,
    write_video_patches,
)
from brim.data.rows import Counts, Document, Picture, assemble, slot_bytes
from brim.data.tokens import ChatTokens
from brim.model.batch import TENSORS, PackedBatch, check

VISION = Vision(min_pixels=1024)
grids = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(lambda s: Grid(1, 2 * s[0], 2 * s[1]))


def rope_index(parts: list[int | Grid]) -> np.ndarray:
    """transformers' own positions of a document of text runs and images."""
    kinds, shapes = [], []
    for part in parts:
        if isinstance(part, int):
            kinds += [0] * part
        else:
            kinds += [1] * part.tokens(2)
            shapes.append([1, part.h, part.w])
    stub = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)),
        get_vision_position_ids=lambda *a, **k: Qwen3VLModel.get_vision_position_ids(stub, *a, **k),
    )
    positions, _ = Qwen3VLModel.get_rope_index(
        stub,  # type: ignore[arg-type]
        torch.zeros(1, len(kinds), dtype=torch.long),
        torch.tensor([kinds]),
        image_grid_thw=torch.tensor(shapes) if shapes else None,
    )
    return positions[:, 0].numpy()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9), grids), max_size=4), st.integers(1, 9))
def test_positions_are_those_of_get_rope_index(pairs: list[tuple[int, Grid]], tail: int) -> None:
    parts: list[int | Grid] = [part for pair in pairs for part in pair]
    parts.append(tail)
    np.testing.assert_array_equal(document_positions(parts, 2), rope_index(parts))


@given(st.lists(grids, min_size=1, max_size=4))
def test_patch_positions_and_frame_boundaries_are_those_of_transformers(frames: list[Grid]) -> None:
    thw = torch.tensor([[1, g.h, g.w] for g in frames])
    ours = np.concatenate([patch_positions(g.h, g.w, 2) for g in frames])
    np.testing.assert_array_equal(ours, get_vision_position_ids(thw, 2).numpy())
    np.testing.assert_array_equal(
        boundaries([g.patches for g in frames]), get_vision_cu_seqlens(thw).numpy()
    )


@given(grids)
def test_learned_positions_are_blended_as_in_transformers(grid: Grid) -> None:
    indices, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, grid.h, grid.w]]), 48, align_corners=True, spatial_merge_size=2
    )
    ours = interpolation(grid.h, grid.w, 2)
    table = np.random.default_rng(0).normal(size=48 * 48)
    blends = [(table[i] * w).sum(axis=1) for i, w in (ours, (indices.numpy(), weights.numpy()))]
    np.testing.assert_allclose(*blends, atol=1e-5)


@settings(max_examples=20)
@given(grids, st.integers(0, 99))
def test_patches_are_in_the_processors_order(grid: Grid, seed: int) -> None:
    pixels = picture(16 * grid.h, 16 * grid.w, seed)
    out = np.empty((grid.patches, 768), np.uint8)
    write_patches(pixels, out, 16, 2)
    processor = Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": 1, "longest_edge": 1 << 30}, do_resize=False,
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    reference = processor(pixels, return_tensors="np")["pixel_values"]
    twice = out.reshape(-1, 3, 1, 256).repeat(2, axis=2).reshape(-1, 1536)
    np.testing.assert_allclose(twice / np.float32(127.5) - 1, reference, atol=2e-7)


def test_frames_of_a_video_share_patches_by_two_as_the_video_processor_lays_them() -> None:
    frames = [picture(64, 96, seed) for seed in range(3)]
    out = np.empty((2 * 4 * 6, 1536), np.uint8)
    write_video_patches(frames, out, 16, 2)
    video = torch.from_numpy(np.stack([*frames, frames[-1]])).permute(0, 3, 1, 2)
    # Qwen3VLVideoProcessor.patchify
    expected = video.reshape(2, 2, 3, 2, 2, 16, 3, 2, 16).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    np.testing.assert_array_equal(out, expected.reshape(48, 1536).numpy())


def document(
    tokens: ChatTokens,
    parts: list[Part],
    pictures: list[Picture],
    sample: int = 0,
    answer: str = "Yes, a cat.",
    length: int | None = None,
) -> Document:
    conversation = Conversation((Turn("user", tuple(parts)), Turn("assistant", (answer,))))
    return Document(sample, tokens.encode(conversation), pictures, tokens, 2, length)


def still(h: int, w: int, seed: int = 0) -> Picture:
    return Picture((picture(16 * h, 16 * w, seed),), False, Grid(1, h, w))


def row(
    documents: list[Document], length: int = 256, bucket: int = 64, whole: bool = False
) -> dict[str, Any]:
    arrays: dict[str, Any] = {}

    def allocate(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        # whatever is not written stands out
        arrays[name] = np.full(shape, 77, dtype)
        return arrays[name]

    counts = assemble(
        documents,
        length=length,
        vision=VISION,
        bucket=bucket,
        pad=151643,
        allocate=allocate,
        whole=whole,
    )
    arrays["counts"] = {name: getattr(counts, name) for name in Counts.__struct_fields__}
    return arrays


@pytest.fixture
def mixed(chat_tokens: ChatTokens) -> list[Document]:
    clip = Picture(tuple(picture(64, 96, s) for s in range(3)), True, Grid(2, 4, 6))
    return [
        document(chat_tokens, [Image(""), "what?"], [still(4, 6)], 10),
        document(chat_tokens, ["no picture"], [], 11),
        document(
            chat_tokens,
            ["see ", Video(("1", "2", "3")), " and ", Image(""), "?"],
            [clip, still(2, 8, 5)],
            12,
        ),
    ]


def test_a_row_keeps_the_promises_of_the_models_batch(mixed: list[Document]) -> None:
    arrays = row(mixed)
    batch = PackedBatch.from_arrays(arrays)
    check(batch)
    assert set(TENSORS) == set(arrays) - {"counts"}
    assert batch.counts.documents == 3
    assert batch.counts.images == 3
    assert batch.counts.frames == 4
    assert batch.counts.patches == 24 + 16 + 48
    assert batch.counts.patch_squares == 24**2 * 3 + 16**2
    assert batch.vision_length == 128
    assert batch.counts.longest_frame == 40  # the padding


def test_each_label_is_the_token_after_its_row(mixed: list[Document]) -> None:
    batch = PackedBatch.from_arrays(row(mixed))
    assert (batch.input_ids[batch.scored_rows + 1] == batch.labels).all()
    start = 0
    expected = []
    for part in mixed:
        expected += (np.flatnonzero(part.scored) + start - 1).tolist()
        start += len(part)
    assert batch.scored_rows.tolist() == expected
    assert batch.counts.scored == len(expected) > 10


def test_documents_start_their_positions_anew_and_the_padding_is_a_document(
    mixed: list[Document],
) -> None:
    batch = PackedBatch.from_arrays(row(mixed))
    lengths = [len(part) for part in mixed]
    assert batch.cu_seqlens.tolist() == [0, *np.cumsum(lengths).tolist(), 256]
    assert (batch.position_ids[:, batch.cu_seqlens[:-1].long()] == 0).all()
    assert (batch.input_ids[sum(lengths) :] == 151643).all()
    full = row([mixed[1]], length=len(mixed[1]))
    assert full["cu_seqlens"].tolist() == [0, len(mixed[1])]


def test_visual_tokens_stand_where_the_pads_are_stills_first(
    mixed: list[Document], chat_tokens: ChatTokens
) -> None:
    batch = PackedBatch.from_arrays(row(mixed))
    ids = batch.input_ids[batch.splice_rows]
    assert ids.tolist() == [chat_tokens.image_pad] * 10 + [chat_tokens.video_pad] * 12
    assert len(set(batch.splice_rows.tolist())) == 22
    # each frame's rows are consecutive and in order
    assert (batch.splice_rows[:6].diff() == 1).all()


def test_padding_of_the_vision_rows_is_zero(mixed: list[Document]) -> None:
    arrays = row(mixed)
    for name in ("vision_positions", "vision_interp_indices", "vision_interp_weights"):
        assert not arrays[name][88:].any()
        assert arrays[name][:88].any()
    assert arrays["vision_cu_seqlens"].tolist() == [0, 24, 40, 64, 88, 128]


def test_a_text_only_row_has_no_vision_rows(chat_tokens: ChatTokens) -> None:
    batch = PackedBatch.from_arrays(row([document(chat_tokens, ["hi"], [])]))
    check(batch)
    assert batch.vision_length == batch.counts.longest_frame == 0


def test_a_cut_text_ends_where_it_must(chat_tokens: ChatTokens) -> None:
    whole = document(chat_tokens, [Image(""), "what?"], [still(4, 6)], answer="a b c d e f g h")
    cut = document(
        chat_tokens,
        [Image(""), "what?"],
        [still(4, 6)],
        answer="a b c d e f g h",
        length=len(whole) - 4,
    )
    assert cut.ids.tolist() == whole.ids[:-4].tolist()
    check(PackedBatch.from_arrays(row([cut])))
    with pytest.raises(AssertionError, match="a cut through a picture"):
        document(chat_tokens, [Image(""), "what?"], [still(4, 6)], length=8)


def test_a_row_of_nothing_but_one_video_is_the_largest(chat_tokens: ChatTokens) -> None:
    for videos in (False, True):
        frames = (picture(16 * 8, 16 * 8),) * (2 if videos else 1)
        part: Part = Video(("1", "2")) if videos else Image("")
        one = document(chat_tokens, [part], [Picture(frames, videos, Grid(1, 8, 8))])
        for whole in (False, True):
            arrays = row([one], length=len(one), bucket=64, whole=whole)
            used = sum(a.nbytes for name, a in arrays.items() if name != "counts")
            assert used <= slot_bytes(len(one), VISION, 64, videos=videos)


def test_a_row_of_the_smallest_pictures_fits_its_slot_whole(chat_tokens: ChatTokens) -> None:
    for videos in (False, True):
        frames = (picture(32, 32),) * (2 if videos else 1)
        part: Part = Video(("1", "2")) if videos else Image("")
        small = [Picture(frames, videos, Grid(1, 2, 2))] * 40
        one = document(chat_tokens, [part] * 40, small)
        arrays = row([one], length=len(one), bucket=4, whole=True)
        used = sum(a.nbytes + 64 for name, a in arrays.items() if name != "counts")
        assert used <= slot_bytes(len(one), VISION, 4, videos=videos)
