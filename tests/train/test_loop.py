from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from brim.errors import BrimError, ConfigError
from brim.model.batch import PackedBatch
from brim.model.qwen3vl import Recompute
from brim.record.steps import read_process
from brim.train.failures.memory import Halving, more_recomputed
from brim.train.loop import Diverged, Trainer

Make = Callable[..., Trainer]


def losses(trainer: Trainer) -> list[float | None]:
    process = read_process(trainer.records.folder / "steps.rank0.jsonl")
    assert process is not None
    return [step.loss for step in process.steps]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


def rows_of(trainer: Trainer) -> Any:
    return trainer.rows


def test_forty_steps_learn_the_few_words_of_the_data(make_trainer: Make) -> None:
    trainer = make_trainer(40)
    assert trainer.run()
    found = losses(trainer)
    assert len(found) == 40
    assert found[0] == pytest.approx(4.16, abs=0.3)  # ln of the vocabulary, 64
    last = found[-1]
    assert last is not None and last < 3.2  # ln of the words in use, 20: 3.0


@pytest.mark.parametrize("masters", [True, False], ids=["masters", "stochastic rounding"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stopping_and_resuming_gives_the_bits_of_an_uninterrupted_run(
    dtype: torch.dtype, masters: bool, make_trainer: Make
) -> None:
    whole = make_trainer(20, "whole", dtype, masters=masters)
    whole.run()
    first = make_trainer(20, "cut", dtype, masters=masters, max_steps=20)

    class Ten(type(rows_of(first))):  # type: ignore[misc]
        def fetch(self, step: int) -> Sequence[PackedBatch]:
            if step == 9:
                os.kill(os.getpid(), signal.SIGTERM)
            rows: Sequence[PackedBatch] = super().fetch(step)
            return rows

    first.rows = Ten(20)
    assert first.run() is False
    second = make_trainer(20, "cut", dtype, masters=masters)
    assert second.run() is True
    assert rows_of(second).fetched == list(range(10, 20))
    assert losses(first) + losses(second) == losses(whole)
    assert same(weights(second), weights(whole))


def test_the_first_signal_saves_and_stops_and_the_handlers_are_put_back(
    make_trainer: Make,
) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    trainer = make_trainer(50)
    inner = trainer.rows.fetch

    def fetch(step: int) -> Sequence[PackedBatch]:
        if step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return inner(step)

    trainer.rows.fetch = fetch  # type: ignore[method-assign]
    assert trainer.run() is False
    assert trainer.done == 4
    newest = trainer.checkpoints.newest()
    assert newest is not None and newest.name == "step-00000004"
    assert signal.getsignal(signal.SIGUSR1) is before


def test_other_data_cannot_continue_a_checkpoint(make_trainer: Make) -> None:
    make_trainer(2).run()
    other = make_trainer(4)
    other.rows.identity = lambda: "other"  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="data or its settings have changed"):
        other.run()


def test_a_run_that_must_not_resume_does_not_mix_its_checkpoints_with_others(
    make_trainer: Make,
) -> None:
    make_trainer(2).run()
    with pytest.raises(ConfigError, match=r"step-00000002 belongs to another run"):
        make_trainer(2, resume=False).run()


class Poisoned:
    """Rows whose loss is NaN at some steps: an infinite weight of a position blend."""

    def __init__(self, inner: Any, bad: set[int]) -> None:
        self.inner, self.bad = inner, bad

    def steps(self) -> int:
        count: int = self.inner.steps()
        return count

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        rows: Sequence[PackedBatch] = self.inner.fetch(step)
        if step not in self.bad:
            return rows
        weights = rows[0].vision_interp_weights.clone().fill_(float("nan"))
        return [replace(rows[0], vision_interp_weights=weights, sample_ids=(70 + step, 5))]

    def evaluation(self) -> Any:
        return self.inner.evaluation()

    def identity(self) -> str:
        return "tiny"


def test_a_bad_step_is_skipped_and_names_its_samples(make_trainer: Make) -> None:
    trainer = make_trainer(6)
    trainer.rows = Poisoned(trainer.rows, {2})
    assert trainer.run()
    said: list[str] = trainer.said  # type: ignore[attr-defined]
    assert said == ["step 2: the gradient is not finite, its update was skipped (samples 72, 5)"]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_a_series_of_bad_steps_goes_back_to_the_checkpoint_with_half_the_rate(
    make_trainer: Make,
) -> None:
    trainer = make_trainer(10, save_steps=4, max_bad_steps=2)
    poisoned = Poisoned(trainer.rows, {5, 6})
    trainer.rows = poisoned
    inner = poisoned.fetch

    def heals(step: int) -> Sequence[PackedBatch]:
        if trainer.lr_factor < 1:
            poisoned.bad = set()
        return inner(step)

    poisoned.fetch = heals  # type: ignore[method-assign]
    assert trainer.run()
    assert trainer.lr_factor == 0.5
    assert "back to step 4 with 0.5 of the learning rate" in trainer.said  # type: ignore[attr-defined]
    assert poisoned.inner.fetched[-6:] == [4, 5, 6, 7, 8, 9]


def test_a_run_that_stays_bad_stops_with_the_samples_of_its_last_step(make_trainer: Make) -> None:
    trainer = make_trainer(10, max_bad_steps=3)
    trainer.rows = Poisoned(trainer.rows, set(range(4, 10)))
    with pytest.raises(Diverged, match=r"3 steps in a row .* step 6 \(samples 76, 5\)"):
        trainer.run()
    lines = (trainer.records.folder / "bad-steps.rank0.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": step, "loss": "nan", "samples": [70 + step, 5]} for step in (4, 5, 6)
    ]


def test_out_of_memory_recomputes_more_blocks_and_repeats_the_step(make_trainer: Make) -> None:
    plain, tight = make_trainer(5, "plain"), make_trainer(5, "tight")
    plain.run()
    inner = tight.step
    failures = iter([True, True])

    class Tight:
        def __call__(self, rows: Any, lr: float) -> Any:
            if tight.done == 2 and next(failures, False):
                inner.model(rows[0]).backward()  # half a step has left its gradients
                raise torch.OutOfMemoryError("no room")
            return inner(rows, lr)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    tight.step = Tight()  # type: ignore[assignment]
    assert tight.run()
    assert tight.model.recompute == Recompute(text_blocks=2, vision_blocks=2)
    said: list[str] = tight.said  # type: ignore[attr-defined]
    assert [line.split(":")[0] for line in said] == ["out of memory"] * 2
    assert losses(tight) == losses(plain)


class Narrow:
    """A step with room for no more than so many tokens at once, whatever is recomputed."""

    def __init__(self, inner: Any, tokens: int) -> None:
        self.inner, self.tokens = inner, tokens
        self.rows: list[int] = []

    def __call__(self, rows: Any, lr: float) -> Any:
        if max(row.length for row in rows) > self.tokens:
            raise torch.OutOfMemoryError("no room")
        self.rows.append(len(rows))
        return self.inner(rows, lr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_with_everything_recomputed_rows_are_cut_in_two_and_from_the_third_time_on_always(
    make_trainer: Make,
) -> None:
    plain, narrow = make_trainer(6, "plain"), make_trainer(6, "narrow")
    plain.run()
    narrow.step = step = Narrow(narrow.step, 40)  # type: ignore[assignment]
    assert narrow.run()
    assert step.rows == [2] * 6
    said: list[str] = narrow.said  # type: ignore[attr-defined]
    cut = [line for line in said if "cut in two" in line]
    assert [line.split(" is repeated")[0] for line in cut] == [
        f"out of memory: step {n}" for n in range(3)
    ]
    assert ["all rows are cut from now on" in line for line in cut] == [False, False, True]
    assert narrow.model.recompute == Recompute(text_blocks=2, vision_blocks=2, offload=True)
    both = zip(losses(narrow), losses(plain), strict=True)
    assert all(a == pytest.approx(b, rel=1e-4) for a, b in both)


def test_three_cuts_far_apart_change_no_plan() -> None:
    halving = Halving()
    for step in (0, 0, 60, 110, 170, 230):
        halving.happened(step)
        assert not halving.always
    halving.happened(231)
    halving.happened(232)
    assert halving.always


def test_a_single_document_that_finds_no_room_is_an_error_that_says_what_to_do(
    make_trainer: Make,
) -> None:
    trainer = make_trainer(2)
    trainer.step = Narrow(trainer.step, 3)  # type: ignore[assignment]
    with pytest.raises(BrimError, match=r"tokens_per_row"):
        trainer.run()


def test_recomputation_grows_by_quarters_until_all_blocks_then_goes_to_the_host(
    make_trainer: Make,
) -> None:
    model = make_trainer().model
    seen = []
    while (more := more_recomputed(model)) is not None:
        model.recompute = more
        seen.append((more.text_blocks, more.vision_blocks, more.offload))
    assert seen == [(1, 1, False), (2, 2, False), (2, 2, True)]


def test_evaluation_is_the_mean_over_all_scored_tokens_and_is_recorded(make_trainer: Make) -> None:
    trainer = make_trainer(4, eval_steps=2)
    trainer.run()
    rows = list(trainer.rows.evaluation())
    with torch.no_grad():
        total = sum(trainer.model(row).item() for row in rows)
    expected = total / sum(row.counts.scored for row in rows)
    assert trainer.evaluate() == pytest.approx(expected)
    lines = (trainer.records.folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if "eval_loss" in line]
    assert [line["step"] for line in found] == [2, 4]
    assert found[-1]["eval_loss"] == pytest.approx(expected)


def test_time_for_evaluating_and_saving_belongs_to_the_step_that_it_delays(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(8, eval_steps=3, save_steps=4)
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    trainer.run()
    process = read_process(trainer.records.folder / "steps.rank0.jsonl")
    assert process is not None
    steps = process.steps
    assert [s.evaluation_n for s in steps] == [0, 0, 0, 1, 0, 0, 1, 0]
    assert [s.save_n for s in steps] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert all(bool(s.evaluation) == bool(s.evaluation_n) for s in steps)
    assert all(s.wall >= s.input_wait + s.backward + s.evaluation + s.save for s in steps)
    # nothing between two steps is lost
    assert steps[-1].t - steps[0].t == sum(s.wall for s in steps[1:])


def test_a_trace_shows_the_wait_for_rows_as_one(make_trainer: Make) -> None:
    from brim.diagnose.trace.host import State, annotation_state

    trainer = make_trainer(3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        trainer.run()
    spans = {event.key: event.count for event in seen.key_averages() if "brim" in event.key}
    assert spans == {"brim: next_batch": 3}
    assert annotation_state("brim: next_batch") is State.INPUT_WAIT


def test_metrics_come_at_their_interval_and_average_it(make_trainer: Make) -> None:
    trainer = make_trainer(7, logging_steps=3)
    trainer.run()
    lines = (trainer.records.folder / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["step"] for line in found] == [3, 6, 7]
    all_losses = [value for value in losses(trainer) if value is not None]
    assert found[1]["loss"] == pytest.approx(sum(all_losses[3:6]) / 3)
    assert found[0]["mfu"] is None and found[0]["tokens_per_s"] > 0


def test_without_saving_at_the_end_a_finished_run_leaves_no_checkpoint(
    make_trainer: Make,
) -> None:
    trainer = make_trainer(3, save_at_end=False)
    assert trainer.run()
    assert trainer.checkpoints.newest() is None


def test_the_exported_model_opens_in_transformers(make_trainer: Make, tmp_path: Path) -> None:
    from transformers import Qwen3VLForConditionalGeneration

    trainer = make_trainer(2)
    trainer.run()
    trainer.export(tmp_path / "model", None)
    theirs = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "model")
    embedding = theirs.get_input_embeddings().weight
    assert torch.equal(embedding, trainer.model.embedding.weight)
