from __future__ import annotations

import pytest

from brim.hardware.gpus import Gpu, table
from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.flops import Trained
from brim.model.qwen3vl import Recompute
from brim.model.speed import REST, Way, predict

PARAMETERS = {"4B": 4_437_815_808, "8B": 8_767_123_696}


def gpu(name: str) -> Gpu:
    return next(g for g in table() if g.name.startswith(name))


def photographs(length: int) -> RowCounts:
    """A row of megapixel photographs with 300 tokens of text each, half of them scored."""
    documents = length / 1287
    return RowCounts(
        tokens=length, scored=int(150 * documents), patches=int(3938 * documents),
        images=int(documents), frames=int(documents), documents=int(documents),
        token_squares=int(documents * 1300**2), patch_squares=int(documents * 4110**2),
        longest_document=1838, longest_frame=6144,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("size", "tokens", "fp8", "mfu"),
    [("4B", 12_288, False, 0.532), ("8B", 16_384, False, 0.525), ("8B", 16_384, True, 0.628)],
)
def test_predictions_are_within_five_percent_of_what_an_h200_measured(
    size: str, tokens: int, fp8: bool, mfu: float
) -> None:
    config, counts = ModelConfig.named(size), photographs(tokens)
    found = predict(config, counts, gpu("H200"), Way(fp8=fp8), learnt=PARAMETERS[size])
    assert found is not None
    measured = flops.step(config, counts).total / mfu / 989.4e12
    assert found.total == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("part", "seconds", "near"),
    [("products", 0.485, 0.05), ("attention", 0.162, 0.05), ("elementwise", 0.088, 0.1),
     ("optimizer", 0.023, 0.1)],
)  # fmt: skip
def test_each_part_of_a_4b_step_is_near_what_a_profile_of_it_showed(
    part: str, seconds: float, near: float
) -> None:
    """63, 21, 9 + 2.5 and 3 % of a step of 0.770 s."""
    config, counts = ModelConfig.named("4B"), photographs(12_288)
    found = predict(config, counts, gpu("H200"), Way(), learnt=PARAMETERS["4B"])
    assert found is not None
    assert getattr(found, part) == pytest.approx(seconds, rel=near)


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
    once = plain.total - (1 + REST) * plain.optimizer
    assert 0.25 < (1 + REST) * again.again / once < 0.36
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
