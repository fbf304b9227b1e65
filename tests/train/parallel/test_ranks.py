"""What the hosts of a run tell each other, and rows that need a tower they have no use for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.train.parallel import tiny
from tests.train.parallel.processes import on_ranks

from brim.errors import UsageError
from brim.model.batch import TENSORS, check
from brim.train.parallel.blank import agreed, with_tower
from brim.train.parallel.ranks import Ranks, join


def words(ranks: Ranks, folder: Path) -> dict[str, object]:
    def look() -> list[str]:
        seen = sorted(p.name for p in folder.iterdir())
        (folder / str(ranks.rank)).touch()
        return seen

    return {
        "any": ranks.any(ranks.rank == 1),
        "none": ranks.any(False),
        "gather": ranks.gather(ranks.rank * 10),
        "told": ranks.told(f"from {ranks.rank}"),
        "turn": ranks.in_turn(look),
        "place": (ranks.rank, ranks.world, ranks.local_rank, ranks.local_world, ranks.first),
    }


def test_three_ranks_agree_gather_and_take_turns(tmp_path: Path) -> None:
    found = on_ranks(3, words, tmp_path)
    assert [f["any"] for f in found] == [True] * 3
    assert [f["none"] for f in found] == [False] * 3
    assert [f["gather"] for f in found] == [[0, 10, 20]] * 3
    assert [f["told"] for f in found] == ["from 0"] * 3
    assert [f["place"] for f in found] == [(r, 3, r, 3, r == 0) for r in range(3)]
    assert found[0]["turn"] == []  # rank 0 was alone; the others came when it had finished
    assert all("0" in f["turn"] for f in found[1:])


def test_one_process_agrees_with_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    alone = join()
    assert not alone.together and alone.first
    assert words(alone, tmp_path)["gather"] == [0]
    assert not torch.distributed.is_initialized()


def test_a_local_rank_without_a_gpu_is_told_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(UsageError, match="local rank 4 has no GPU: this host shows 4"):
        join()


def test_a_blank_runs_the_tower_and_changes_neither_loss_nor_gradients() -> None:
    plain = tiny.row(3, pictures=False)
    blank = with_tower(plain, tiny.BLANK)
    check(blank)
    results = []
    for row in (plain, blank):
        model = tiny.model()
        loss = model(row)
        loss.backward()
        results.append((loss.item(), {n: p.grad for n, p in model.named_parameters()}))
    (loss, grads), (blank_loss, blank_grads) = results
    assert blank_loss == loss
    for name, grad in blank_grads.items():
        assert grad is not None, f"{name} would not be reduced"
        if name.startswith("visual."):
            assert grads[name] is None
            assert not grad.any()
        else:
            assert torch.equal(grad, grads[name])


def test_rows_with_pictures_are_left_as_they_are() -> None:
    rows = [tiny.row(1), tiny.row(2, pictures=False), tiny.row(3, pictures=False)]
    found = agreed(rows, [True, True, False], 8)
    assert found[0] is rows[0] and found[2] is rows[2]
    assert [row.vision_length for row in found] == [rows[0].vision_length, 8, 0]
    assert found[1].counts.patches == 0
    for name in TENSORS:
        if not name.startswith("vision_"):
            assert getattr(found[1], name) is getattr(rows[1], name)
