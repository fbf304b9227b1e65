"""Fields of brim's own trainer as knobs."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from brim.record.findings import Finding
from brim.record.ladder import Figures, Ladder
from brim.train import config as configuration
from brim.train import tables
from brim.train.config import Config, ModelTable
from brim.tune.knobs import Settings
from brim.tune.loop import Tuner
from brim.tune.outcome import Outcome
from brim.tune.trainer import as_options, change, edited, fields
from brim.tune.trials import Trials

CPU = Outcome(ending="measured", device="the training thread (no accelerator)")
H200 = Outcome(ending="measured", device="NVIDIA H200")

TOML = """\
output_dir = "out"   # here

[model]
random = "4B"
compile = "false"    # was slow once
recompute_text_blocks = 12

[data]
tokens_per_row = 4096
rows_per_step = 8
"""


def _now(**changed: Any) -> dict[str, Any]:
    plain = tables.flat(Config(model=ModelTable(random="4B")))
    return {**plain, **{name.replace("__", "."): value for name, value in changed.items()}}


def _settings(outcome: Outcome, now: dict[str, Any]) -> list[dict[str, Any]]:
    return [c.settings for c in fields(outcome, now)]


def test_every_proposed_field_and_value_is_one_that_the_trainer_takes(tmp_path: Path) -> None:
    path = tmp_path / "sft.toml"
    path.write_text(TOML)
    slow = Finding(cause="input.decode", share=0.5, gain=(1.2, 2.0), confidence="high", evidence=[])
    outcome = Outcome(ending="measured", device="NVIDIA H200", findings=[slow])
    now = _now(model__dtype="float32", data__threads=3, parallel__gradient_sync="row",
               model__attention="math", model__recompute_vision_blocks=2,
               parallel__data="fsdp", parallel__reshard_after_forward="true")  # fmt: skip
    proposed = _settings(outcome, now)
    assert len(proposed) > 10
    for settings in proposed:
        words = as_options(settings)
        found = tables.flat(configuration.load(path, words[1::2]))
        for field, value in settings.items():
            assert str(found[field]) == str(value)


def test_a_default_configuration_on_a_cpu_has_only_longer_rows_to_try() -> None:
    assert _settings(CPU, _now()) == [{"data.tokens_per_row": 16384, "data.rows_per_step": 4}]


def test_what_the_file_fixes_is_given_back_to_the_trainer_the_dearest_first() -> None:
    now = _now(model__compile="false", model__recompute_text_blocks=12)
    first, second, *_ = _settings(CPU, now)
    assert first == {"model.recompute_text_blocks": 0}
    assert second == {"model.compile": ""}


def test_longer_rows_keep_the_tokens_of_a_step() -> None:
    by_accumulation = _now(train__gradient_accumulation_steps=4)
    assert _settings(CPU, by_accumulation) == [
        {"data.tokens_per_row": 16384, "train.gradient_accumulation_steps": 2}
    ]
    assert _settings(CPU, _now(data__rows_per_step=1)) == []
    assert _settings(CPU, _now(data__rows_per_step=3)) == []
    assert _settings(CPU, _now(data__tokens_per_row=65_536)) == []


def test_longer_rows_and_threads_are_worth_what_the_diagnosis_says() -> None:
    now = _now(data__threads=1, data__tokens_per_row=256, model__recompute_text_blocks=4)
    rows = {"data.tokens_per_row": 512, "data.rows_per_step": 4}

    def order(cause: str) -> list[dict[str, Any]]:
        finding = Finding(cause=cause, share=0.4, gain=(1.4, 1.7), confidence="high", evidence=[])
        return _settings(Outcome(ending="measured", device=CPU.device, findings=[finding]), now)

    assert order("compute.padding")[0] == rows
    assert order("compute.padding")[-1] == {"data.threads": 0}
    assert order("input.decode").index({"data.threads": 0}) < order("input.decode").index(rows)


POOR = """\
output_dir = "out"

[model]
random = "4B"
recompute_text_blocks = 4      # from a run that was short of memory
recompute_vision_blocks = 4

[data]
sources = ["chats.jsonl"]
tokens_per_row = 256           # one sample a row, the rest is padding
rows_per_step = 16
threads = 1
"""


def _seconds(now: Mapping[str, Any]) -> float:
    """Of a step on a CPU: tokens, what is computed twice, each row's own operations, and a loader
    whose one thread is too few."""
    rows, tokens = now["data.rows_per_step"], now["data.tokens_per_row"]
    again = 0.2 * now["model.recompute_text_blocks"] / 4
    again += 0.1 * now["model.recompute_vision_blocks"] / 4
    computing = 1e-4 * rows * tokens * (1 + again) + 0.01 * rows
    return computing + (0.08 if now["data.threads"] == 1 else 0.0)


def _samples(now: Mapping[str, Any]) -> int:
    """Of 100 to 200 tokens, as many as fit."""
    tokens = now["data.tokens_per_row"]
    return int(now["data.rows_per_step"] * (tokens // 150))


def test_a_poor_configuration_is_cured_to_within_3_percent_of_the_best_known_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sft.toml"
    path.write_text(POOR)
    table = tables.flat(configuration.load(path))
    dice = random.Random(0)

    def run(settings: Settings, alternate: Settings | None = None) -> Outcome:
        now = {**table, **settings}
        mean = _seconds(now) * math.exp(dice.gauss(0, 0.01))
        return Outcome(
            ending="measured", wall_s=20.0, device=CPU.device,
            work=float(_samples(now)), packed=True,
            steps={n: mean * math.exp(dice.gauss(0, 0.02)) for n in range(15)},
            losses={n: 3.0 - 0.01 * n for n in range(15)},
        )  # fmt: skip

    tuner = Tuner(
        Trials(run, budget_s=1e6), lambda outcome, base: fields(outcome, {**table, **base})
    )
    ladder = tuner.ladder(["brim", "train", str(path)], tuner.tune())
    best = {
        **table, "model.recompute_text_blocks": 0, "model.recompute_vision_blocks": 0,
        "data.threads": 0, "data.tokens_per_row": 4096, "data.rows_per_step": 1,
    }  # fmt: skip
    found = {**table, **ladder.settings}
    assert found["data.tokens_per_row"] * found["data.rows_per_step"] == 4096
    rates = [_samples(now) / _seconds(now) for now in (table, found, best)]
    assert rates[1] >= 0.97 * rates[2] > 2 * rates[0]
    patched = tmp_path / "patched.toml"
    patched.write_text(edited(POOR, ladder.settings))
    as_found = tables.flat(configuration.load(patched))
    assert all(as_found[field] == value for field, value in ladder.settings.items())


def test_what_narrows_the_numbers_is_marked_as_lossy() -> None:
    lossy = [next(iter(c.settings)) for c in fields(H200, _now()) if not c.lossless]
    assert lossy == ["model.fp8", "optimizer.states"]


def test_the_patch_changes_the_lines_of_the_fields_and_nothing_else() -> None:
    settings = {"model.compile": "", "data.tokens_per_row": 8192, "optimizer.states": "bfloat16"}
    changed = edited(TOML, {**settings, "model.activation_budget": "1.0"})
    assert 'compile = ""    # was slow once\n' in changed
    assert "tokens_per_row = 8192\n" in changed
    assert tomllib.loads(changed) == {
        "output_dir": "out",
        "model": {
            "random": "4B", "compile": "", "recompute_text_blocks": 12, "activation_budget": 1.0,
        },
        "data": {"tokens_per_row": 8192, "rows_per_step": 8},
        "optimizer": {"states": "bfloat16"},
    }  # fmt: skip
    kept = [s for s in TOML.splitlines() if s and "compile" not in s and "tokens" not in s]
    assert [line for line in changed.splitlines() if line in kept] == kept


@pytest.mark.parametrize("text", ["", "[model]", "[model]\n", "# nothing"])
def test_a_field_is_added_where_there_is_no_line_or_no_table(text: str) -> None:
    changed = edited(text, {"model.compile": "true", "data.dct_scaling": True})
    assert tomllib.loads(changed) == {
        "model": {"compile": "true"}, "data": {"dct_scaling": True},
    }  # fmt: skip


def test_the_change_is_a_command_and_a_patch_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sft.toml"
    path.write_text(TOML)
    ladder = Ladder(command=[], before=Figures(), ended="ceiling", runs=1, wall_s=1.0,
                    settings={"model.recompute_text_blocks": 0})  # fmt: skip
    made = change(path, ladder)
    assert made.command == ["brim", "train", str(path), "--set", "model.recompute_text_blocks=0"]
    assert "-recompute_text_blocks = 12\n+recompute_text_blocks = 0\n" in made.patch
    assert change(path, Ladder(command=[], before=Figures(), ended="ceiling", runs=1,
                               wall_s=1.0)).patch == ""  # fmt: skip
