"""Every arm of every real report, run for real: does brim name the right cause?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from case import Arm, Case
from cases import CASES
from runner import diagnose, verdict

# The open cases, the controls and the healthy runs; the others take twenty minutes more.
ALWAYS = ("Z099", "Z039", "Z015", "Z017", "Z007", "Z043-share", "Z131", "H")


def _runs() -> Iterator[object]:
    for case in CASES:
        marks = [] if case.id.startswith(ALWAYS) else [pytest.mark.slow]
        for arm in case.arms:
            yield pytest.param(case, arm, id=f"{case.id}-{arm.name}", marks=marks)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs and arrays are made once for all runs."""
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.zoo
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("case", "arm"), _runs())
def test_the_first_finding_is_the_cause_of_the_report(case: Case, arm: Arm, data: Path) -> None:
    found = diagnose(case, arm, data)
    evidence = [(f["cause"], round(f["share"], 3), f["evidence"]) for f in found["findings"]]
    assert arm.right(verdict(found)), f"{case.why}\nexpected {arm.cause}, got {evidence}"
