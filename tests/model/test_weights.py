from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from brim.errors import BrimError, InputError
from brim.model.weights import fetch, load, published, save, slots
from brim.train.synthetic import Document

Make = Callable[..., Any]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("shard_bytes", [10**9, 40_000], ids=["one file", "shards"])
def test_a_saved_folder_opens_in_transformers_with_the_same_logits(
    tied: bool,
    shard_bytes: int,
    make_pair: Make,
    samples: dict[str, list[Document]],
    tmp_path: Path,
) -> None:
    pair = make_pair(tied)
    save(pair.ours, tmp_path / "out", companions=pair.folder, shard_bytes=shard_bytes)
    again = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "out")
    batch = pair.their_batch(samples["mixed"])
    with torch.no_grad():
        assert torch.equal(again(**batch).logits, pair.theirs(**batch).logits)
    files = list((tmp_path / "out").glob("*.safetensors"))
    assert (len(files) == 1) == (shard_bytes == 10**9)


def test_a_sharded_folder_loads_to_the_same_bits(make_pair: Make, tmp_path: Path) -> None:
    ours = make_pair(False).ours
    save(ours, tmp_path / "out", shard_bytes=40_000)
    again = load(tmp_path / "out", dtype=torch.float32)
    for (name, a), (_, b) in zip(published(ours), published(again), strict=True):
        assert torch.equal(a, b), name


def test_the_published_tensors_fill_every_parameter_exactly_once(make_pair: Make) -> None:
    model = make_pair(False).ours
    cover = {name: torch.zeros(p.shape[0]) for name, p in model.named_parameters()}
    for slot in slots(model.config).values():
        slot.of(cover[slot.parameter]).add_(1)
    assert all(bool((times == 1).all()) for times in cover.values())


def test_loading_converts_the_dtype_and_keeps_rotary_frequencies_in_float32(
    make_pair: Make,
) -> None:
    pair = make_pair(True)
    model = load(pair.folder, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.rotary.inverse, pair.ours.rotary.inverse)
    assert model.rotary.inverse.dtype is torch.float32


def test_a_tied_checkpoint_that_repeats_the_embedding_as_head_is_accepted(
    make_pair: Make, tmp_path: Path
) -> None:
    pair = make_pair(True)
    tensors = load_file(pair.folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((pair.folder / "config.json").read_bytes())
    assert load(tmp_path, dtype=torch.float32).head is None


def _broken(
    make_pair: Make, folder: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    pair = make_pair(True)
    tensors = load_file(pair.folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((pair.folder / "config.json").read_bytes())


def test_a_missing_an_unknown_and_a_misshapen_tensor_are_named(
    make_pair: Make, tmp_path: Path
) -> None:
    norm = "model.language_model.norm.weight"
    for change, message in (
        (lambda t: t.pop(norm), f"lacks tensors: {norm}"),
        (lambda t: t.update(extra=torch.ones(1)), "unknown tensors: extra"),
        (lambda t: t.update({norm: torch.ones(7)}), r"shape \(7,\).* wants \(24,\)"),
    ):
        _broken(make_pair, tmp_path, change)
        with pytest.raises(InputError, match=message):
            load(tmp_path)


def test_a_cut_file_and_pickled_weights_are_refused_with_a_reason(
    make_pair: Make, tmp_path: Path
) -> None:
    _broken(make_pair, tmp_path, lambda t: None)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors only"):
        load(tmp_path)


def test_an_index_that_points_outside_its_folder_is_refused(
    make_pair: Make, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((make_pair(True).folder / "config.json").read_bytes())
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="outside its folder"):
        load(tmp_path)


def test_saving_never_overwrites_and_a_failed_save_leaves_nothing(
    make_pair: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_pair(True).ours
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        save(model, tmp_path / "full")

    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("brim.model.weights.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        save(model, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    for name in (str(tmp_path / "absent"), "./absent", "absent"):
        with pytest.raises(InputError, match="is no folder"):
            fetch(name)
    assert fetch(str(tmp_path)) == tmp_path


def test_what_the_hub_says_at_length_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError("no answer\nA paragraph of advice.\nAnd another one.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(BrimError) as caught:
        fetch("nobody/none-such")
    what, hint = str(caught.value).splitlines()
    assert what == "nobody/none-such cannot be fetched from the hub: no answer"
    assert "HF_TOKEN" in hint
