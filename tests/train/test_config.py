from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import ConfigError
from brim.train import tables
from brim.train.config import Config, ModelTable, OptimizerTable, TrainTable, load, of_table
from brim.train.schedule import learning_rate

MODEL = {"model": {"random": "4B"}}


def written(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_a_file_and_settings_on_the_command_line_make_one_configuration(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    path = written(
        tmp_path,
        'output_dir = "out"\n[model]\npath = "weights"\nfreeze = ["tower"]\n'
        '[optimizer]\nlearning_rate = 1\n[data]\nsources = ["a.jsonl"]\ntokens_per_row = 4096\n',
    )
    config = load(
        path, ["optimizer.weight_decay=0.1", "train.max_steps = 7", "model.attention=varlen"]
    )
    assert config.model.path == str(tmp_path / "weights")
    assert config.optimizer.learning_rate == 1.0
    assert config.optimizer.weight_decay == 0.1
    assert config.train.max_steps == 7
    assert config.model.attention == "varlen"
    assert config.data.sources[0].path == str(tmp_path / "a.jsonl")
    assert config.eval.tokens_per_row == 4096
    assert not config.trained.tower and config.trained.text


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"optimizer": {"learnig_rate": 1e-5}}, "did you mean optimizer.learning_rate?"),
        ({"learning_rate": 1e-5}, "did you mean optimizer.learning_rate?"),
        ({"optimiser": {}}, "did you mean optimizer"),
        ({"train": {"gradient_accumulation_step": 2}}, "gradient_accumulation_steps?"),
        ({"train": {"zzz": 2}}, "known: num_train_epochs"),
        ({"optimizer": {"learning_rate": "fast"}}, "learning_rate is 'fast'; it must be a number"),
        ({"optimizer": {"learning_rate": float("nan")}}, "must be finite"),
        ({"optimizer": {"adam_beta2": 1.0}}, "adam_beta2 must be at least 0 and below 1"),
        ({"optimizer": {"lr_scheduler_type": "step"}}, "one of cosine, linear, constant"),
        ({"train": {"max_steps": True}}, "must be an integer"),
        ({"train": {"save_total_limit": 1}}, "must be 2 or more"),
        ({"train": 3}, "it is a table"),
        ({"model": {"random": "4B", "freeze": "tower"}}, "it is a list"),
        ({"model": {"random": "4B", "freeze": ["vit"]}}, "text, embedding, head, merger, tower"),
        ({"model": {"random": "4B", "path": "x"}}, "either model.path or model.random"),
        ({"model": {"random": "4B", "fp8": "fast"}}, "tensorwise, rowwise"),
        ({"data": {"tokens_per_rows": 1}}, "did you mean data.tokens_per_row?"),
        ({"model": {"random": "4B", "fp8": "rowwise"}, "lora": {"r": 8}}, "do not go together"),
        ({"model": {"random": "4B", "freeze": ["tower"]}, "lora": {"r": 8}}, "freezes every part"),
        (
            {"data": {"rows_per_step": 4}, "train": {"gradient_accumulation_steps": 2}},
            "give one of them",
        ),
    ],
)
def test_every_mistake_names_the_field_and_what_is_valid(
    table: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        of_table({**MODEL, **table}, tmp_path)
    assert message in str(caught.value)


def test_a_missing_model_and_freezing_everything_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[model\] is missing"):
        of_table({}, tmp_path)
    everything = ["text", "embedding", "head", "merger", "tower"]
    with pytest.raises(ConfigError, match="nothing is left"):
        of_table({"model": {"random": "4B", "freeze": everything}}, tmp_path)


def test_adapters_freeze_everything_else_and_default_to_twice_the_rank(tmp_path: Path) -> None:
    config = of_table({**MODEL, "lora": {"r": 16}}, tmp_path)
    assert config.lora.alpha == 32
    trained = config.trained
    assert (trained.lora_rank, trained.text, trained.embedding, trained.vision) == (
        16, False, False, False,
    )  # fmt: skip


def test_a_missing_file_broken_toml_and_a_bad_setting_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(written(tmp_path, "a = ["))
    path = written(tmp_path, 'output_dir = "x"\n[model]\nrandom = "4B"\n')
    with pytest.raises(ConfigError, match=r"table\.field=value"):
        load(path, ["no-equals"])
    with pytest.raises(ConfigError, match="output_dir is a field"):
        load(path, ["output_dir.x=1"])


def test_the_printed_configuration_reads_back_to_the_same(tmp_path: Path) -> None:
    config = Config(
        output_dir='a "quoted" \\ path',
        model=ModelTable(random="8B", freeze=("tower", "merger")),
        optimizer=OptimizerTable(learning_rate=3e-6, states="bfloat16"),
        train=TrainTable(max_steps=3, resume=False),
    )
    path = written(tmp_path, tables.dump(config))
    assert load(path) == replace(config, data=load(path).data, eval=load(path).eval)


@dataclass(frozen=True)
class Inner:
    number: float = 0.0
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    text: str = ""
    flag: bool = False
    inner: Inner = Inner()
    count: int = 0


@given(
    outer=st.builds(
        Outer,
        text=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
        flag=st.booleans(),
        count=st.integers(-(2**60), 2**60),
        inner=st.builds(
            Inner,
            number=st.floats(allow_nan=False, allow_infinity=False),
            words=st.lists(st.text("ab\"\\'#=[]")).map(tuple),
        ),
    )
)
def test_any_configuration_survives_printing_and_reading(outer: Outer) -> None:
    import tomllib

    assert tables.build(Outer, tomllib.loads(tables.dump(outer))) == outer


STEPS = 100


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_the_rate_warms_up_linearly_to_its_peak(kind: str) -> None:
    table = OptimizerTable(learning_rate=1.0, warmup_steps=4, lr_scheduler_type=kind)
    assert [learning_rate(table, s, STEPS) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "middle", "last"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1), ("constant", 1, 1)]
)
def test_the_rate_falls_to_its_minimum(kind: str, middle: float, last: float) -> None:
    table = OptimizerTable(
        learning_rate=1.0, warmup_ratio=0.0, lr_scheduler_type=kind, min_lr_ratio=0.1
    )
    assert learning_rate(table, 0, STEPS) == 1.0
    assert learning_rate(table, STEPS // 2, STEPS) == pytest.approx(middle)
    assert learning_rate(table, STEPS, STEPS) == pytest.approx(last)


def test_the_cosine_equals_torchs() -> None:
    import torch

    table = OptimizerTable(learning_rate=1.0, warmup_ratio=0.0, min_lr_ratio=0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=0.1)
    for step in range(STEPS):
        assert learning_rate(table, step, STEPS) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
