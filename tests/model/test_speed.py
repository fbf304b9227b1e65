from __future__ import annotations

import pytest

from brim.hardware.gpus import Gpu, table
from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.flops import Trained
from brim.model.qwen3vl import Recompute
from brim.model.speed import Way, predict

PARAMETERS = {"4B": 4_437_815_808, "8B": 8_767_123_696}


def gpu(name: str) -> Gpu:
    return next(g for g in table() if g.name.startswith(name))


def photographs(length: int) -> RowCounts:
    """A row of megapixel photographs with 300 tokens of text each, all of them scored."""
    documents = length / 1324
    return RowCounts(
        tokens=length, scored=length, patches=int(4096 * documents), images=int(documents),
        frames=int(documents), documents=int(documents), token_squares=int(documents * 1324**2),
        patch_squares=int(documents * 4096**2), longest_document=1324, longest_frame=4096,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "length", "fp8", "measured_mfu"),
    [("4B", 12_288, False, 0.502), ("8B", 8192, False, 0.480), ("8B", 8192, True, 0.558)],
)
def test_predictions_are_within_ten_percent_of_what_an_h200_measured(
    size: str, length: int, fp8: bool, measured_mfu: float
) -> None:
    config, counts = ModelConfig.named(size), photographs(length)
    found = predict(config, counts, gpu("H200"), Way(fp8=fp8), learnt=PARAMETERS[size])
    assert found is not None
    measured = flops.step(config, counts).total / measured_mfu / 989.4e12
    assert found.total == pytest.approx(measured, rel=0.1)


def test_recomputing_everything_adds_about_a_third_and_freezing_the_tower_takes_time_away() -> None:
    config, counts, h200 = ModelConfig.named("8B"), photographs(8192), gpu("H200")
    plain, again, frozen = (
        predict(config, counts, h200, way, trained=trained, learnt=learnt)
        for way, trained, learnt in (
            (Way(), Trained(), PARAMETERS["8B"]),
            (Way(recompute=Recompute(text_blocks=36, vision_blocks=27)), Trained(), 10**9),
            (Way(), Trained(tower=False), PARAMETERS["8B"]),
        )
    )
    assert plain and again and frozen
    assert plain.again == 0
    once = plain.total - 1.1 * plain.optimizer
    assert 0.25 < 1.1 * again.again / once < 0.36
    assert frozen.total < 0.9 * plain.total


def test_a_slower_device_takes_longer_and_one_without_the_type_has_no_prediction() -> None:
    config, counts = ModelConfig.named("4B"), photographs(4096)
    times = []
    for name, attention in (("H200", "fa4"), ("A100", "varlen"), ("L4", "varlen")):
        found = predict(config, counts, gpu(name), Way(attention=attention), learnt=10**9)
        assert found is not None
        times.append(found.total)
    assert times == sorted(times) and times[2] > 5 * times[0]
    assert predict(config, counts, gpu("Tesla V100"), Way(attention="efficient"), learnt=1) is None
