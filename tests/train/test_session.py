"""``brim train`` from a configuration file and photographs on disk to a trained model."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data import qwen
from tests.data.sets import write_set
from tests.train.conftest import tiny_config

from brim.cli.main import main
from brim.data.tokens import ChatTokens
from brim.model.weights import load, random_model, save
from brim.record.run import read_run


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-VL with random weights, and a tokenizer of single bytes."""
    small = tiny_config()
    config = replace(
        small,
        text=replace(small.text, vocab_size=320),
        vision=replace(small.vision, positions=2304),
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(random_model(config, dtype=torch.float32), folder)
    qwen.build_small(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_tokenizer() -> Iterator[None]:
    """Reading the tokenizer and checking its template takes seconds, the same in every run."""
    read = ChatTokens.of_model
    known: dict[str, ChatTokens] = {}

    def remembered(model: Any) -> ChatTokens:
        if str(model) not in known:
            known[str(model)] = read(model)
        return known[str(model)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChatTokens, "of_model", remembered)
        yield


def write_config(folder: Path, model_folder: Path) -> Path:
    write_set(folder / "photos", 12)
    path = folder / "sft.toml"
    path.write_text(
        f"""output_dir = "{folder / "out"}"
[model]
path = "{model_folder}"
[optimizer]
learning_rate = 0.01
lr_scheduler_type = "constant"
warmup_ratio = 0
[train]
max_steps = 3
save_steps = 2
[data]
sources = ["photos/train.jsonl"]
tokens_per_row = 640
rows_per_step = 2
[eval]
sources = ["photos/train.jsonl"]
"""
    )
    return path


@pytest.fixture
def config(tmp_path: Path, model_folder: Path) -> Path:
    return write_config(tmp_path, model_folder)


@dataclass
class Done:
    folder: Path
    code: int
    said: str

    @property
    def output(self) -> Path:
        return self.folder / "out"


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, one_tokenizer: None
) -> Done:
    """A run of three steps with an evaluation."""
    folder = tmp_path_factory.mktemp("whole")
    path = write_config(folder, model_folder)
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard):
        code = main(["train", str(path)])
    return Done(folder, code, heard.getvalue())


def losses(output: Path) -> list[float]:
    """Of the newest run in ``output``."""
    records = max((output / "records").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    lines = (records / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if '"loss"' in line]


def test_photographs_on_disk_become_a_trained_model_that_transformers_opens(
    whole: Done, model_folder: Path
) -> None:
    assert whole.code == 0
    assert "attention     math: no CUDA device" in whole.said
    assert "evaluation loss" in whole.said
    trained, before = load(whole.output / "model"), load(model_folder)
    assert not torch.equal(trained.embedding.weight, before.embedding.weight)
    (records,) = (whole.output / "records").iterdir()
    run = read_run(records)
    assert run.info.exit_code == 0
    steps = run.processes[0].steps
    assert [step.n for step in steps] == [0, 1, 2]
    assert all(step.images > 0 and step.tokens == 1280 > step.pad_tokens > 0 for step in steps)
    assert all(step.documents >= step.images > 0 for step in steps)
    found = losses(whole.output)
    assert found[-1] < found[0]

    from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

    theirs = Qwen3VLForConditionalGeneration.from_pretrained(whole.output / "model")
    assert theirs.config.text_config.num_hidden_layers == 2
    tokenizers = [
        AutoTokenizer.from_pretrained(folder) for folder in (whole.output / "model", model_folder)
    ]
    assert tokenizers[0].encode("a <|im_end|>") == tokenizers[1].encode("a <|im_end|>")


def test_a_run_that_was_cut_continues_with_the_losses_of_the_whole_one(
    whole: Done, config: Path
) -> None:
    words = ["train", str(config), "--set", "eval.sources=[]"]
    assert main([*words, "--set", "train.max_steps=2"]) == 0
    output = config.parent / "out"
    first = losses(output)
    assert main(words) == 0
    assert first + losses(output) == losses(whole.output)


def test_the_largest_row_of_the_plan_bounds_every_row_that_is_loaded(
    config: Path, model_folder: Path
) -> None:
    from brim.data.loader import Loader
    from brim.data.prepare import prepare
    from brim.train.config import load as read
    from brim.train.session import largest_row

    prepared = prepare(read(config).data, model_folder)
    bound = largest_row(prepared)
    with Loader(prepared, stop=2) as loader:
        for row in loader:
            assert len(row.arrays["vision_positions"]) <= bound.vision_rows
            assert row.counts.scored <= bound.scored
            assert len(row.arrays["input_ids"]) == bound.tokens
            row.release()


def test_adapters_are_trained_saved_for_peft_and_merged_into_a_plain_model(
    config: Path, model_folder: Path
) -> None:
    settings = ["--set", "lora.r=4", "--set", "eval.sources=[]", "--set", "train.max_steps=2"]
    assert main(["train", str(config), *settings]) == 0
    out = config.parent / "out"
    (checkpoint,) = (out / "checkpoints").iterdir()
    kept = (checkpoint / "index.json").read_text()
    assert "model.blocks.0.mlp.down.lora_a" in kept
    assert "model.embedding" not in kept and "model.visual" not in kept
    merged, before = (
        load(out / "model", dtype=torch.float32),
        load(model_folder, dtype=torch.float32),
    )
    assert torch.equal(merged.embedding.weight, before.embedding.weight)
    changed = merged.blocks[0].mlp.down.weight - before.blocks[0].mlp.down.weight
    assert torch.linalg.matrix_rank(changed, rtol=1e-3) <= 4 and changed.any()
    told = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert told["r"] == 4 and told["lora_alpha"] == 8


@pytest.mark.parametrize("states", ["bfloat16", "8bit"])
def test_a_run_with_small_states_continues_to_the_losses_of_the_whole_one(
    states: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        str(config),
        "--set",
        "eval.sources=[]",
        "--set",
        f"optimizer.states={states}",
    ]
    words += ["--set", "model.dtype=bfloat16"]
    whole = ["--set", f"output_dir={config.parent / 'whole'}"]
    assert main([*words, *whole]) == 0
    assert f"states        {states}: as configured" in capsys.readouterr().err
    assert main([*words, "--set", "train.max_steps=2"]) == 0
    output = config.parent / "out"
    first = losses(output)
    assert main(words) == 0
    assert first + losses(output) == losses(config.parent / "whole")


def test_a_checkpoint_with_other_states_is_refused_with_what_to_set(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(config), "--set", "eval.sources=[]"]
    assert main([*words, "--set", "train.max_steps=2"]) == 0
    assert main([*words, "--set", "optimizer.states=8bit"]) == 2
    assert "optimizer.states" in capsys.readouterr().err


def test_a_mixture_of_experts_is_trained_from_photographs_to_a_folder_that_transformers_opens(
    config: Path, tmp_path: Path
) -> None:
    from transformers import Qwen3VLMoeForConditionalGeneration

    small = tiny_config(tied=False)
    experts = replace(
        small,
        text=replace(
            small.text, vocab_size=320, hidden_size=32, experts=6, experts_per_token=2,
            expert_size=24,
        ),
        vision=replace(small.vision, positions=2304, out_hidden_size=32),
    )  # fmt: skip
    folder = tmp_path / "experts"
    save(random_model(experts, dtype=torch.float32), folder)
    qwen.build_small(folder)
    settings = ["--set", f"model.path={folder}", "--set", "eval.sources=[]"]
    assert main(["train", str(config), *settings]) == 0
    found = losses(config.parent / "out")
    assert found[-1] < found[0]
    theirs = Qwen3VLMoeForConditionalGeneration.from_pretrained(config.parent / "out" / "model")
    ours = load(config.parent / "out" / "model", dtype=torch.float32)
    gate_up = theirs.model.language_model.layers[0].mlp.experts.gate_up_proj
    assert torch.equal(gate_up, ours.blocks[0].mlp.gate_up)


def test_print_config_shows_every_field_and_reads_nothing_else(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "--print-config", "--set", "train.seed=5"]) == 0
    shown = capsys.readouterr().out
    assert "seed = 5" in shown and "[optimizer]" in shown and "tokens_per_row = 640" in shown
    assert not (config.parent / "out").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.sources=[]", "there is nothing to train on"),
        ("model.fp8=tensorwise", "FP8 tensor cores start with sm_89"),
        ("model.attention=fa4", "cannot run here"),
        ("train.max_stepz=1", "did you mean train.max_steps?"),
    ],
)
def test_wrong_settings_end_with_exit_code_2_and_one_sentence(
    setting: str, message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "--set", setting]) == 2
    assert message in capsys.readouterr().err


def test_random_weights_of_a_named_size_need_a_tokenizer_from_somewhere(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "model.path=", "--set", "model.random=2B"]
    assert main(["train", str(config), *settings]) == 2
    assert "model.processor" in capsys.readouterr().err
