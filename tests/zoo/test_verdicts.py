"""Every arm of every real report, run for real: does brim name the right cause?"""

from __future__ import annotations

from pathlib import Path

import pytest
from case import Arm, Case
from cases import CASES
from runner import diagnose, verdict

RUNS = [pytest.param(case, arm, id=f"{case.id}-{arm.name}") for case in CASES for arm in case.arms]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs and arrays are made once for all runs."""
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.zoo
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("case", "arm"), RUNS)
def test_the_first_finding_is_the_cause_of_the_report(case: Case, arm: Arm, data: Path) -> None:
    found = diagnose(case, arm, data)
    evidence = [(f["cause"], round(f["share"], 3), f["evidence"]) for f in found["findings"]]
    assert arm.right(verdict(found)), f"{case.why}\nexpected {arm.cause}, got {evidence}"
