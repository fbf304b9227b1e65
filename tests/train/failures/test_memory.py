from __future__ import annotations

from pathlib import Path

from tests.train.parallel import tiny

from brim.model.qwen3vl import Recompute
from brim.train.failures import memory


def test_what_one_start_learnt_the_next_one_knows_for_the_same_data_only(tmp_path: Path) -> None:
    memory.remember(tmp_path / "new", Recompute(text_blocks=3, vision_blocks=1), "rows a")
    assert memory.remembered(tmp_path / "new", "rows a") == Recompute(
        text_blocks=3, vision_blocks=1
    )
    assert memory.remembered(tmp_path / "new", "rows b") == Recompute(
        text_blocks=0, vision_blocks=0
    )
    assert memory.remembered(tmp_path, "rows a") == Recompute(text_blocks=0, vision_blocks=0)
    (tmp_path / "new" / "recompute.json").write_text("[1")
    assert memory.remembered(tmp_path / "new", "rows a") == Recompute(
        text_blocks=0, vision_blocks=0
    )


def test_a_model_recomputes_what_any_rank_does_and_never_less() -> None:
    model = tiny.model()
    model.recompute = Recompute(text_blocks=1, vision_blocks=2)
    memory.at_least(model, 2, 0)
    assert model.recompute == Recompute(text_blocks=2, vision_blocks=2)


def test_a_disk_that_takes_no_note_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    memory.remember(tmp_path / "file", Recompute(text_blocks=1, vision_blocks=1), "rows")
