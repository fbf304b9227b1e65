"""Typed reading of the tables of a diagnosis."""

from __future__ import annotations

import msgspec
from tests.report import example_tables, examples

from brim.record import findings
from brim.report.tables import Step, read_tables


def test_tables_survive_the_file() -> None:
    diagnosis = examples.comm_bound()
    again = msgspec.json.decode(findings.encode(diagnosis), type=findings.Diagnosis)
    tables = read_tables(again)
    assert tables == read_tables(diagnosis)
    assert tables.kernels == example_tables.kernels()
    assert tables.ranks == example_tables.ranks()
    assert tables.timeline == example_tables.timeline()
    assert tables.unread == []


def test_all_tables_may_be_missing_or_null() -> None:
    diagnosis = examples.healthy()
    diagnosis.details["ranks"] = None
    tables = read_tables(diagnosis)
    assert not any((tables.kernels, tables.ranks, tables.steps, tables.timeline, tables.unread))


def test_a_live_runs_steps_need_their_length_only() -> None:
    diagnosis = examples.healthy()
    diagnosis.details["steps"] = [{"wall_us": 3.0}, {"wall_us": 4.0, "later_field": "x"}]
    assert read_tables(diagnosis).steps == [Step(wall_us=3.0), Step(wall_us=4.0)]


def test_one_bad_table_costs_that_table_only() -> None:
    diagnosis = examples.comm_bound()
    diagnosis.details["modules"] = "none"
    tables = read_tables(diagnosis)
    assert tables.modules == []
    assert len(tables.kernels) == 5
    (said,) = tables.unread
    assert said.startswith("the table modules has another shape than expected")
