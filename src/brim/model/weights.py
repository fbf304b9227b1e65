"""Weights in and out: Hugging Face safetensors, a hub id or a folder, one tensor at a time.

A fused parameter of the packed model holds the rows of several tensors of the published one
(queries, keys, values; gate, up), so every published tensor is a range of rows of one parameter.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from brim.errors import BrimError, InputError, in_a_line
from brim.files import fsync_folder, write_atomic
from brim.model.config import ModelConfig, TextConfig
from brim.model.qwen3vl import Kernels, Qwen3VL

SHARD_BYTES = 5 * 10**9
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# what a processor or tokenizer needs, repeated in a saved folder
_COMPANIONS = ("*.json", "*.txt", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True)
class Slot:
    """Rows ``start:stop`` of one of our parameters; ``stop`` None: all of it.

    ``turned``: experts lie in files as (expert, in, out); transformers 5 writes some as it holds
    them, (expert, out, in), and both are read.
    """

    parameter: str
    start: int = 0
    stop: int | None = None
    turned: bool = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.turned:
            return tensor.transpose(1, 2)
        return tensor if self.stop is None else tensor[self.start : self.stop]


def slots(config: ModelConfig) -> dict[str, Slot]:
    """Published tensor name → its place in the packed model, in the published order."""
    found = {"model.language_model.embed_tokens.weight": Slot("embedding.weight")}
    for layer in range(config.text.layers):
        found |= _text_slots(config, layer)
    found["model.language_model.norm.weight"] = Slot("norm.weight")
    found |= _vision_slots(config)
    if not config.tied:
        found["lm_head.weight"] = Slot("head.weight")
    return found


def _text_slots(config: ModelConfig, layer: int) -> dict[str, Slot]:
    text = config.text
    theirs, ours = f"model.language_model.layers.{layer}", f"blocks.{layer}"
    keys, values = text.heads * text.head_dim, (text.heads + text.kv_heads) * text.head_dim
    qkv = f"{ours}.attention.qkv.weight"
    return {
        f"{theirs}.self_attn.q_proj.weight": Slot(qkv, 0, keys),
        f"{theirs}.self_attn.k_proj.weight": Slot(qkv, keys, values),
        f"{theirs}.self_attn.v_proj.weight": Slot(qkv, values, text.qkv_size),
        f"{theirs}.self_attn.o_proj.weight": Slot(f"{ours}.attention.out.weight"),
        f"{theirs}.self_attn.q_norm.weight": Slot(f"{ours}.attention.q_norm.weight"),
        f"{theirs}.self_attn.k_norm.weight": Slot(f"{ours}.attention.k_norm.weight"),
        **_mlp_slots(text, f"{theirs}.mlp", f"{ours}.mlp"),
        f"{theirs}.input_layernorm.weight": Slot(f"{ours}.attention_norm.weight"),
        f"{theirs}.post_attention_layernorm.weight": Slot(f"{ours}.mlp_norm.weight"),
    }


def _mlp_slots(text: TextConfig, theirs: str, ours: str) -> dict[str, Slot]:
    if text.experts:
        return {
            f"{theirs}.gate.weight": Slot(f"{ours}.router"),
            f"{theirs}.experts.gate_up_proj": Slot(f"{ours}.gate_up", turned=True),
            f"{theirs}.experts.down_proj": Slot(f"{ours}.down", turned=True),
        }
    inner, gate_up = text.intermediate_size, f"{ours}.gate_up.weight"
    return {
        f"{theirs}.gate_proj.weight": Slot(gate_up, 0, inner),
        f"{theirs}.up_proj.weight": Slot(gate_up, inner, 2 * inner),
        f"{theirs}.down_proj.weight": Slot(f"{ours}.down.weight"),
    }


_VISION_BLOCK = {
    "norm1": "attention_norm", "norm2": "mlp_norm",
    "attn.qkv": "attention.qkv", "attn.proj": "attention.out",
    "mlp.linear_fc1": "up", "mlp.linear_fc2": "down",
}  # fmt: skip
_MERGER = {"norm": "norm", "linear_fc1": "up", "linear_fc2": "down"}


def _vision_slots(config: ModelConfig) -> dict[str, Slot]:
    modules = {"patch_embed.proj": "patch_embedding"}
    for block in range(config.vision.depth):
        modules |= {f"blocks.{block}.{t}": f"blocks.{block}.{o}" for t, o in _VISION_BLOCK.items()}
    modules |= {f"merger.{t}": f"merger.{o}" for t, o in _MERGER.items()}
    for tap in range(len(config.vision.deepstack)):
        modules |= {
            f"deepstack_merger_list.{tap}.{t}": f"deepstack.{tap}.{o}" for t, o in _MERGER.items()
        }
    found = {"model.visual.pos_embed.weight": Slot("visual.positions.weight")}
    for theirs, ours in modules.items():
        for kind in ("weight", "bias"):
            found[f"model.visual.{theirs}.{kind}"] = Slot(f"visual.{ours}.{kind}")
    return found


def fetch(model: str, revision: str | None = None) -> Path:
    """The local folder of ``model``: itself when it is a folder, else a download of the hub id."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise InputError(
            f"{model} is no folder",
            hint="give a folder with config.json or a hub id such as Qwen/Qwen3-VL-4B-Instruct",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.safetensors", *_COMPANIONS]
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise BrimError(
            f"{model} cannot be fetched from the hub: {in_a_line(error)}",
            hint="check the name, the network and HF_TOKEN, or give a local folder",
        ) from None


def load(
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    kernels: Kernels | None = None,
) -> Qwen3VL:
    """A model with the weights of ``folder``, each tensor converted on its way in.

    Host memory beyond the model is one tensor.  Raises :class:`InputError` when a tensor is
    missing, unknown or of another shape.
    """
    with torch.device("meta"):
        model = Qwen3VL(ModelConfig.from_folder(folder), kernels)
    model.to(dtype=dtype).to_empty(device=device)
    load_into(model, folder)
    return model


def load_into(model: Qwen3VL, folder: Path) -> None:
    """Replace the weights of ``model`` by those of ``folder``; raises as :func:`load` does."""
    files = _files(folder)
    places = slots(model.config)
    _check_names(folder, set(files), places)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in _tensors(files, places):
            target = places[name].of(parameters[places[name].parameter])
            if places[name].turned and tensor.shape == target.transpose(1, 2).shape:
                target = target.transpose(1, 2)
            _fill(target, tensor, f"{folder}: {name}")


def random_model(
    config: ModelConfig,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    kernels: Kernels | None = None,
) -> Qwen3VL:
    """A model with the published initialisation: matrices N(0, 0.02), norms 1, biases 0."""
    with torch.device("meta"):
        model = Qwen3VL(config, kernels)
    model.to(dtype=dtype).to_empty(device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def _fill(target: torch.Tensor, tensor: torch.Tensor, where: str) -> None:
    if target.shape != tensor.shape:
        raise InputError(
            f"{where} has the shape {tuple(tensor.shape)}; config.json wants {tuple(target.shape)}"
        )
    target.copy_(tensor)


def _files(folder: Path) -> dict[str, Path]:
    """Tensor name → its file."""
    index = folder / _INDEX
    if index.exists():
        table: Mapping[str, str] = json.loads(index.read_bytes())["weight_map"]
        for name in table.values():
            if Path(name).name != name:
                raise InputError(f"{index} names a file outside its folder: {name}")
        return {name: folder / file for name, file in table.items()}
    single = folder / _SINGLE
    if not single.exists():
        raise InputError(
            f"{folder} has neither {_SINGLE} nor {_INDEX}",
            hint="brim reads safetensors only; pickled weights (.bin, .pt) can run code",
        )
    with _open(single) as f:
        return dict.fromkeys(f.keys(), single)


def _check_names(folder: Path, present: set[str], places: Mapping[str, Slot]) -> None:
    # some tied checkpoints repeat the embedding under the head's name
    unknown = sorted(present - set(places) - {"lm_head.weight"})
    missing = sorted(set(places) - present)
    for kind, names in (("lacks", missing), ("has unknown", unknown)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(
                f"{folder} {kind} tensors: {', '.join(names[:3])}{more}",
                hint="the weights do not belong to the config.json beside them",
            )


def _tensors(
    files: Mapping[str, Path], places: Mapping[str, Slot]
) -> Iterator[tuple[str, torch.Tensor]]:
    by_file: dict[Path, list[str]] = {}
    for name in places:
        by_file.setdefault(files[name], []).append(name)
    for path, names in by_file.items():
        with _open(path) as f:
            for name in names:
                yield name, f.get_tensor(name)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise InputError(f"{path} is missing", hint="the download may be incomplete") from None
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: {error}", hint="fetch it again") from None


def published(model: Qwen3VL) -> Iterator[tuple[str, torch.Tensor]]:
    """(published name, view of our tensor), in the published order."""
    parameters = dict(model.named_parameters())
    for name, slot in slots(model.config).items():
        yield name, slot.of(parameters[slot.parameter]).detach()


def save(
    model: Qwen3VL,
    folder: Path,
    *,
    companions: Path | None = None,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
    writes: bool = True,
) -> None:
    """Write ``folder`` so that ``transformers`` opens it; complete or absent, never half.

    ``companions``: the folder that the model came from; its tokenizer and processor files are
    copied.  ``folder`` must not exist or be empty.  Of a model that is sharded over ranks, one
    parameter at a time is gathered: all ranks call this, and one ``writes``.
    """
    if not writes:
        for names in _groups(model, dtype, shard_bytes):
            for _ in _whole(model, names):
                pass
        return
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty", hint="choose another output folder")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        _write(model, temporary, companions, dtype, shard_bytes)
        if folder.exists():
            folder.rmdir()
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(folder.parent)


def _write(
    model: Qwen3VL,
    folder: Path,
    companions: Path | None,
    dtype: torch.dtype | None,
    shard_bytes: int,
) -> None:
    groups = _groups(model, dtype, shard_bytes)
    table: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        single = len(groups) == 1
        file = _SINGLE if single else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        shard = {
            name: tensor.to("cpu", dtype or tensor.dtype).contiguous()
            for name, tensor in _whole(model, names)
        }
        save_file(shard, folder / file, metadata={"format": "pt"})
        _sync(folder / file)
        table |= dict.fromkeys(names, file)
    if len(groups) > 1:
        total = sum(_sizes(model, dtype).values())
        index = {"metadata": {"total_size": total}, "weight_map": table}
        write_atomic(folder / _INDEX, json.dumps(index, indent=1).encode())
    for pattern in _COMPANIONS if companions else ():
        assert companions is not None
        for path in companions.glob(pattern):
            if path.name != _INDEX:
                shutil.copyfile(path, folder / path.name)
    config = model.config.to_hf() | {"tie_word_embeddings": model.config.tied}
    write_atomic(folder / "config.json", json.dumps(config, indent=2).encode())


def _whole(model: Qwen3VL, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """(published name, its tensor) with a sharded parameter gathered once for all its slots."""
    places, parameters = slots(model.config), dict(model.named_parameters())
    held = ""
    for name in names:
        slot = places[name]
        if slot.parameter != held:
            held = slot.parameter
            whole = parameters[held].detach()
            if isinstance(whole, DTensor):
                whole = whole.full_tensor()
        yield name, slot.of(whole)


def _groups(model: Qwen3VL, dtype: torch.dtype | None, limit: int) -> list[list[str]]:
    """Names per shard, at most ``limit`` bytes each where a tensor allows it."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in _sizes(model, dtype).items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _sizes(model: Qwen3VL, dtype: torch.dtype | None) -> dict[str, int]:
    """Bytes of each published tensor."""
    parameters = dict(model.named_parameters())
    found = {}
    for name, slot in slots(model.config).items():
        whole = parameters[slot.parameter]
        rows = whole.shape[0] if slot.stop is None else slot.stop - slot.start
        width = whole.numel() // whole.shape[0]
        found[name] = rows * width * (dtype or whole.dtype).itemsize
    return found


def _sync(path: Path) -> None:
    with path.open("rb+") as f:
        os.fsync(f.fileno())
