"""What several ranks do together when something goes wrong on one of them, on gloo."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train import ranked
from tests.train.parallel.processes import on_ranks

from brim.model.qwen3vl import Recompute
from brim.train.checkpoint import Saved
from brim.train.failures.memory import RestartNeeded, remembered
from brim.train.failures.votes import Vote, Votes
from brim.train.loop import Diverged
from brim.train.parallel.ranks import Ranks


def votes(ranks: Ranks) -> list[Vote | None]:
    box = Votes(ranks)
    heard = []
    for step in range(3):
        own = Vote(
            stop=15 if (ranks.rank, step) == (1, 1) else 0,
            saved=Saved(written=step + ranks.rank, failed=ranks.rank, committed=2 - ranks.rank),
            recomputed=(ranks.rank, 5 - ranks.rank),
            busy=(0.5 + ranks.rank,),
            waited=(0.25 * ranks.rank,),
        )
        heard.append(box.cast(own))
    return [*heard, box.heard()]


def test_all_ranks_hear_the_same_one_step_later() -> None:
    results = on_ranks(3, votes)
    assert results[0] == results[1] == results[2]
    first, *heard = results[0]
    assert first is None
    assert [vote.stop for vote in heard] == [0, 15, 0]
    assert heard[2].saved == Saved(written=2, failed=2, committed=2)
    assert heard[0].recomputed == (2, 5)
    assert heard[0].busy == (0.5, 1.5, 2.5) and heard[0].waited == (0.0, 0.25, 0.5)


def test_one_rank_hears_itself_at_once() -> None:
    assert Votes(Ranks()).cast(Vote(stop=10)) == Vote(stop=10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(
    number: int, tmp_path: Path
) -> None:
    options = {"steps": 20, "rows": 2, "hook": ranked.AsksToStop(5, 1, number)}
    (first, said), (second, nothing) = on_ranks(2, ranked.run, str(tmp_path), options)
    assert (first, second, nothing) == (False, False, [])
    steps = [len(ranked.losses(tmp_path, rank)[0]) for rank in (0, 1)]
    assert steps[0] == steps[1] and 6 <= steps[0] <= 8
    assert said == [f"{signal.Signals(number).name}: saving step {steps[0]} and stopping"]
    assert (tmp_path / f"checkpoints/step-{steps[0]:08d}").is_dir()


def test_a_rank_whose_rows_come_late_is_named_by_the_first(tmp_path: Path) -> None:
    options = {"steps": 25, "rows": 2, "save_at_end": False, "hook": ranked.IsSlow(1, 0.05)}
    (_, said), _ = on_ranks(2, ranked.run, str(tmp_path), options)
    (line,) = said
    assert line.startswith("rank 1 (host ") and "its rows come late" in line


def poisoned(ranks: Ranks, output: str, bad: set[int], heal: bool) -> Any:
    """One rank's rows have no finite loss at some steps."""
    said: list[str] = []
    trainer = ranked.trainer(
        ranks, Path(output), steps=10, rows=2, said=said, save_steps=4, max_bad_steps=2
    )
    inner = trainer.rows.fetch

    def fetch(step: int) -> Any:
        rows = inner(step)
        if ranks.rank != 1 or step not in bad or (heal and trainer.lr_factor < 1):
            return rows
        weights = torch.full_like(rows[0].vision_interp_weights, float("nan"))
        return [replace(rows[0], vision_interp_weights=weights, sample_ids=(70 + step,))]

    trainer.rows.fetch = fetch  # type: ignore[method-assign]
    try:
        finished: Any = trainer.run()
    except Diverged as error:
        finished = str(error)
    whole = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    return finished, said, trainer.lr_factor, whole, trainer.records.folder


def test_a_bad_step_of_one_rank_is_skipped_by_all_and_they_stay_equal(tmp_path: Path) -> None:
    (first, said, _, ours, folder), (second, _, _, theirs, _) = on_ranks(
        2, poisoned, str(tmp_path), {2}, False
    )
    assert first is True and second is True
    assert said[0].startswith("step 2: the gradient is not finite, its update was skipped")
    assert all(torch.equal(ours[n], theirs[n]) and ours[n].isfinite().all() for n in ours)
    assert '"samples": [72]' in (folder / "bad-steps.rank1.jsonl").read_text()


def test_bad_steps_of_one_rank_send_all_back_to_the_checkpoint_with_half_the_rate(
    tmp_path: Path,
) -> None:
    results = on_ranks(2, poisoned, str(tmp_path), {5, 6}, True)
    for finished, said, factor, weights, _ in results:
        assert finished is True and factor == 0.5
        assert all(torch.equal(weights[n], results[0][3][n]) for n in weights)
        assert ("back to step 4 with 0.5 of the learning rate" in said) == (said != [])


def test_a_run_that_stays_bad_stops_on_all_ranks(tmp_path: Path) -> None:
    results = on_ranks(2, poisoned, str(tmp_path), set(range(5, 10)), False)
    for finished, *_ in results:
        assert "2 steps in a row had no finite gradient, the last was step 6" in finished
    factors = [line for line in results[0][1] if line.startswith("back to")]
    assert factors == [
        f"back to step 4 with {factor:g} of the learning rate" for factor in (0.5, 0.25)
    ]


def without_memory(ranks: Ranks, output: str, data: str, where: str) -> Any:
    """On one rank memory runs out once, in step 2."""
    said: list[str] = []
    trainer = ranked.trainer(ranks, Path(output), steps=6, rows=2, data=data, said=said)
    failures = iter([True])
    model = trainer.model

    def fails(*_: Any) -> None:
        if ranks.rank == 1 and trainer.done == 2 and next(failures, False):
            raise torch.OutOfMemoryError("no room")

    if where == "forward":
        model.blocks[1].register_forward_pre_hook(fails)
    else:
        model.embedding.weight.register_hook(fails)
    try:
        finished: Any = trainer.run()
    except RestartNeeded as error:
        finished = str(error)
    except RuntimeError as error:  # the other rank is gone
        finished = type(error).__name__
    if "restart" in str(finished) or "half sent" in str(finished):
        ranks.leave()
    return finished, said, model.recompute


def test_memory_that_runs_out_before_anything_is_sent_costs_only_time(tmp_path: Path) -> None:
    on_ranks(2, ranked.run, str(tmp_path / "plain"), {"steps": 6, "rows": 2})
    results = on_ranks(2, without_memory, str(tmp_path / "tight"), "ddp", "forward")
    for finished, _, recompute in results:
        assert finished is True
        assert recompute == Recompute(text_blocks=1, vision_blocks=1)  # of all ranks
    assert "and the step is repeated" in results[1][1][0]
    assert ranked.losses(tmp_path / "tight") == ranked.losses(tmp_path / "plain")


def test_memory_that_runs_out_with_the_step_half_sent_asks_for_a_restart_that_recomputes_more(
    tmp_path: Path,
) -> None:
    results = on_ranks(2, without_memory, str(tmp_path), "fsdp", "forward")
    assert "half sent; from its next start on the run recomputes 1 text and 1" in results[1][0]
    assert results[0][0] is not True
    assert remembered(tmp_path / "checkpoints", "eight rows") == Recompute(
        text_blocks=1, vision_blocks=1
    )
    for finished, _, recompute in on_ranks(2, restarted, str(tmp_path)):
        assert finished is True and recompute == Recompute(text_blocks=1, vision_blocks=1)


def narrow(ranks: Ranks, output: str, data: str) -> Any:
    """Rank 1 never has room for more than 44 tokens at once; rows have 48."""
    said: list[str] = []
    trainer = ranked.trainer(ranks, Path(output), steps=4, rows=4, data=data, said=said)

    def fails(_module: Any, inputs: tuple[Any, ...]) -> None:
        if ranks.rank == 1 and inputs[0].shape[0] > 44:
            raise torch.OutOfMemoryError("no room")

    trainer.model.blocks[1].register_forward_pre_hook(fails)
    return trainer.run(), said, {n: p.detach() for n, p in trainer.model.named_parameters()}


def test_one_rank_cuts_its_rows_in_two_and_the_others_get_the_same_gradients(
    tmp_path: Path,
) -> None:
    on_ranks(2, ranked.run, str(tmp_path / "plain"), {"steps": 4, "rows": 4})
    (first, silent, ours), (second, said, theirs) = on_ranks(
        2, narrow, str(tmp_path / "narrow"), "ddp"
    )
    assert first is True and second is True and silent == []
    cut = [line for line in said if "cut in two" in line]
    assert len(cut) == 3 and cut[-1].endswith(
        "all rows are cut from now on (lower data.tokens_per_row)"
    )
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)
    found, expected = (ranked.losses(tmp_path / name)[0] for name in ("narrow", "plain"))
    assert found == pytest.approx(expected, rel=1e-5)


def restarted(ranks: Ranks, output: str) -> Any:
    trainer = ranked.trainer(ranks, Path(output), steps=6, rows=2, data="fsdp")
    return trainer.run(), [], trainer.model.recompute
