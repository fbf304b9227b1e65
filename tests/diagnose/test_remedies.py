"""The table of remedies: whole, well-formed, worded with what was measured."""

from __future__ import annotations

import ast
import inspect
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim.diagnose.live
from brim.diagnose.causes import CAUSES
from brim.diagnose.remedies import _table, attach, for_cause, frameworks
from brim.record.findings import Diagnosis, Finding, Window

TABLE = _table()
NAMES = {"torch", "hf-trainer", "lightning", "ms-swift", "llama-factory", "brim"}


def _placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def _provided() -> dict[str, set[str]]:
    """Fact names that the rules give, by the source of ``facts={...}`` beside ``cause=...``."""
    found: dict[str, set[str]] = {}
    for path in Path(inspect.getfile(brim.diagnose.live)).parent.glob("*.py"):
        for call in [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]:
            words = {k.arg: k.value for k in call.keywords}
            cause, facts = words.get("cause"), words.get("facts")
            if isinstance(cause, ast.Constant) and isinstance(facts, ast.Dict):
                keys = {k.value for k in facts.keys if isinstance(k, ast.Constant)}
                found.setdefault(str(cause.value), set()).update(map(str, keys))
    return found


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_every_cause_has_a_remedy_in_the_words_of_plain_torch(cause: str) -> None:
    found = [e for e in TABLE if e.cause == cause and not e.needs]
    assert found, f"{cause} has no remedy that can always be worded"
    assert all(e.settings.get("torch") for e in TABLE if e.cause == cause)


def test_no_remedy_is_for_a_cause_that_is_not_in_the_list() -> None:
    assert {e.cause for e in TABLE} <= set(CAUSES)


def test_ids_are_unique_because_tune_and_scripts_name_them() -> None:
    ids = [e.id for e in TABLE]
    assert len(ids) == len(set(ids))


def test_only_known_frameworks_are_spoken() -> None:
    for entry in TABLE:
        assert set(entry.settings) <= NAMES, entry.id
        assert entry.summary[0].islower() or entry.summary[0].isdigit(), entry.id


@pytest.mark.parametrize("entry", TABLE, ids=lambda e: e.id)
def test_every_placeholder_is_a_fact_that_the_rule_provides_and_the_entry_asks_for(
    entry: Any,
) -> None:
    used = set().union(*map(_placeholders, [entry.summary, *entry.settings.values()]))
    assert used <= set(entry.needs), f"{entry.id} uses {used - set(entry.needs)} without needing it"
    assert used <= _provided().get(entry.cause, set()), entry.id


FACTS = st.dictionaries(
    st.sampled_from(["workers", "now", "needed", "pad_share", "kind", "{x}", ""]),
    st.integers() | st.floats() | st.text(max_size=5),
)


@given(st.sampled_from(sorted(CAUSES)), FACTS)
def test_wording_never_raises_and_leaves_no_placeholder_open(
    cause: str, facts: dict[str, Any]
) -> None:
    for remedy in for_cause(cause, facts):
        for text in [remedy.summary, *remedy.settings.values()]:
            for fact in ("workers", "now", "needed"):
                assert "{" + fact + "}" not in text


def test_the_number_of_workers_is_worded_where_it_is_known_and_absent_where_not() -> None:
    known = for_cause("input.workers", {"workers": 6, "now": 2, "needed": 6})
    assert known[0].summary.startswith("use 6 loader workers instead of 2")
    assert (
        known[0].settings["hf-trainer"].startswith("TrainingArguments(dataloader_num_workers=6, ")
    )
    assert [r.id for r in known] == ["loader-workers"]
    assert [r.id for r in for_cause("input.workers", {})] == ["more-workers"]
    assert [r.id for r in for_cause("input.workers", {"custom": 1})] == ["look-at-the-producer"]


@pytest.mark.parametrize(
    ("versions", "command", "expected"),
    [
        (["torch"], ["python", "train.py"], ["torch"]),
        (["torch", "transformers"], ["python", "train.py"], ["torch"]),  # its models alone
        (["torch", "transformers", "transformers.trainer"], [], ["hf-trainer", "torch"]),
        (["torch", "lightning"], [], ["lightning", "torch"]),
        (["torch", "swift", "transformers.trainer"], [], ["ms-swift", "hf-trainer", "torch"]),
        ([], ["/venv/bin/llamafactory-cli", "train", "x.yaml"], ["llama-factory", "torch"]),
        ([], ["swift", "sft"], ["ms-swift", "torch"]),
        ([], ["python", "train.py", "swift"], ["torch"]),
    ],
)
def test_the_users_framework_is_seen_in_the_modules_and_in_the_command(
    versions: list[str], command: list[str], expected: list[str]
) -> None:
    assert frameworks(dict.fromkeys(versions, "1"), command) == expected


def test_a_traces_finding_gets_the_remedies_of_its_cause_and_a_worded_one_keeps_its_own() -> None:
    worded = for_cause("input.workers", {"workers": 4, "now": 1, "needed": 4})
    findings = [
        Finding(cause="host.sync", share=0.3, gain=(1.1, 1.4), confidence="high", evidence=[]),
        Finding(cause="input.workers", share=0.2, gain=(1.1, 1.2), confidence="high", evidence=[],
                remedies=worded),
    ]  # fmt: skip
    attached = attach(
        Diagnosis(window=Window(steps=1, wall_s=1.0, ranks=1), account=[], findings=findings)
    )
    assert attached.findings[0].remedies == for_cause("host.sync", {})
    assert attached.findings[1].remedies == worded


def test_every_field_that_brims_own_remedies_name_exists_in_its_configuration() -> None:
    import dataclasses
    import re

    from brim.train.config import Config

    tables = {f.name: f for f in dataclasses.fields(Config)}
    config = Config()
    named = [
        (entry.id, table, field)
        for entry in TABLE
        for table, field in re.findall(r"\b([a-z]+)\.(\w+)", entry.settings.get("brim", ""))
    ]
    assert len(named) >= 10
    for remedy, table, field in named:
        assert table in tables, f"{remedy}: [{table}] is no table of brim train"
        assert hasattr(getattr(config, table), field), f"{remedy}: {table}.{field} does not exist"
