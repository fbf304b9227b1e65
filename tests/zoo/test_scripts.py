"""The scripts run to their end without brim, and the table fits them."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import CASES
from runner import SCRIPTS, options
from tests.forks import TRANSFORMERS, Forks

from brim.diagnose.causes import CAUSES

# One arm of each script: the arms differ in numbers, and the verdict runs exercise them all.
FIRST = {case.script: (case, case.arms[0]) for case in reversed(CASES)}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs and arrays are made once for all scripts."""
    return tmp_path_factory.mktemp("scripts")


def _run(forks: Callable[..., Forks], argv: list[str], cwd: Path, ranks: int = 1) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for done in forks(*TRANSFORMERS).run(argv, cwd=cwd, env=env, ranks=ranks):
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("script", sorted(FIRST))
def test_a_script_ends_with_code_0_after_three_steps_or_an_epoch(
    script: str, forks: Callable[..., Forks], data: Path
) -> None:
    case, arm = FIRST[script]
    epochs = any(pair.steps[0] < 3 for pair in case.pairs)
    steps = options(arm, data, steps=1 if epochs else 3)
    _run(forks, [str(SCRIPTS / script), *steps], data, case.ranks)


@pytest.mark.parametrize("script", ["mixture.py", "patch_tower.py", "vlm_padded.py"])
def test_scripts_for_a_gpu_train_a_few_tiny_steps_on_the_cpu(
    script: str, forks: Callable[..., Forks], tmp_path: Path
) -> None:
    _run(forks, [str(SCRIPTS.parent / "gpu_scripts" / script), "--tiny"], tmp_path)


def test_every_script_stands_in_the_table_and_the_other_way_round() -> None:
    written = {path.name for path in SCRIPTS.glob("*.py") if not path.name.startswith("_")}
    assert written == {case.script for case in CASES}


def test_expected_causes_are_known_ids_and_alternatives_give_their_reason() -> None:
    for case in CASES:
        for arm in case.arms:
            assert {arm.cause, *arm.also} <= {None, *CAUSES}, case.id
            assert bool(arm.also) == bool(arm.because), f"{case.id} {arm.name}"


def test_ids_are_unique_and_pairs_name_arms_that_exist() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    for case in CASES:
        names = [arm.name for arm in case.arms]
        assert len(set(names)) == len(names), case.id
        assert all({pair.faulty, pair.fixed} <= set(names) for pair in case.pairs), case.id
        assert all(pair.slowdown > 1.04 and pair.steps[0] < pair.steps[1] for pair in case.pairs)


def test_a_faulty_arm_of_a_pair_expects_a_cause() -> None:
    for case in CASES:
        for pair in case.pairs:
            assert case.arm(pair.faulty).cause is not None, case.id


def test_the_arms_that_a_script_accepts_are_the_arms_of_the_table() -> None:
    for case in CASES:
        calls = [
            node
            for node in ast.walk(ast.parse((SCRIPTS / case.script).read_text()))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("arguments", "parse")
        ]
        accepted = {
            arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant)
        }
        used = {arm.name for other in CASES if other.script == case.script for arm in other.arms}
        assert used == accepted, case.script


def test_scripts_never_name_their_cause() -> None:
    for path in SCRIPTS.glob("*.py"):
        for cause in CAUSES:
            assert not re.search(rf"\b{re.escape(cause)}\b", path.read_text()), path.name


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
