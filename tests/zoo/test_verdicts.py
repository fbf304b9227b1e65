"""Every arm of every real report, run for real: does brim name the right cause?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from case import Arm, Case
from cases import CASES
from runner import diagnose, verdict

# The open cases with a control and healthy runs: four minutes.  The others take half an hour more:
# pytest -m zoo, or benchmarks/zoo.py --verdicts, which repeats each and prints a table.
ALWAYS = {
    "Z099": ("faulty", "crowded"),
    "Z039": ("faulty",),
    "Z015": ("faulty",),
    "Z017": ("ahead",),
    "Z007": ("faulty",),
    "Z043-share": ("faulty",),
    "Z131": ("faulty",),
    "H01": ("single",),
    "H02": ("item",),
    "H03": ("plain",),
}
TRIES = 2
"""Another program that takes the cores for some seconds changes what a run truly loses."""


def _always(case: Case, arm: Arm) -> bool:
    return any(case.id.startswith(i) and arm.name in arms for i, arms in ALWAYS.items())


def _runs() -> Iterator[object]:
    for case in CASES:
        for arm in case.arms:
            marks = [] if _always(case, arm) else [pytest.mark.slow]
            yield pytest.param(case, arm, id=f"{case.id}-{arm.name}", marks=marks)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs and arrays are made once for all runs."""
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.zoo
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("case", "arm"), list(_runs()))
def test_the_first_finding_is_the_cause_of_the_report(case: Case, arm: Arm, data: Path) -> None:
    seen = []
    for _ in range(TRIES):
        found = diagnose(case, arm, data)
        if arm.right(verdict(found)):
            return
        seen.append([(f["cause"], round(f["share"], 3), f["evidence"]) for f in found["findings"]])
    pytest.fail(f"{case.why}\nexpected {arm.cause}, got {seen}")
