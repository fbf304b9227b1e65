"""The change to make, in the words of each framework.

``{name}`` in a text is a fact that the evidence measured (a number of workers, say).  Names of
settings are those of transformers 5, Lightning 2, ms-swift 3 and LLaMA-Factory 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from brim.record.findings import Diagnosis, Remedy

Facts = Mapping[str, float | int | str]

# module or program → the framework whose words the user speaks; the most specific first
_FRAMEWORKS = (
    ("brim", ()),
    ("ms-swift", ("swift",)),
    ("llama-factory", ("llamafactory",)),
    ("lightning", ("lightning", "pytorch_lightning")),
)
_PROGRAMS = {"brim": "brim", "swift": "ms-swift", "llamafactory-cli": "llama-factory"}


def frameworks(versions: Mapping[str, str], command: Sequence[str] = ()) -> list[str]:
    """Frameworks seen in a job, most specific first; plain PyTorch is always one."""
    found = [_PROGRAMS[w] for w in (c.rsplit("/", 1)[-1] for c in command[:2]) if w in _PROGRAMS]
    found += [name for name, modules in _FRAMEWORKS if any(m in versions for m in modules)]
    if "transformers.trainer" in versions:
        found.append("hf-trainer")
    return list(dict.fromkeys([*found, "torch"]))


class _Entry(msgspec.Struct, kw_only=True):
    id: str
    cause: str
    summary: str
    lossless: bool
    settings: dict[str, str]
    memory: str = ""
    needs: list[str] = []
    """Facts without which the remedy cannot be worded."""
    unless: list[str] = []
    """Facts with which another remedy of the cause says it better."""


@cache
def _table() -> list[_Entry]:
    data = resources.files("brim.diagnose").joinpath("remedies.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, list[_Entry]])["remedy"]


def for_cause(cause: str, facts: Facts) -> list[Remedy]:
    """The remedies of a cause, worded with the measured facts, best first."""
    return [_worded(e, facts) for e in _table() if e.cause == cause and _known(e, facts)]


def attach(diagnosis: Diagnosis) -> Diagnosis:
    """Give each finding that has no remedy yet those of its cause (a trace measures no facts)."""
    findings = [
        f if f.remedies else msgspec.structs.replace(f, remedies=for_cause(f.cause, {}))
        for f in diagnosis.findings
    ]
    return msgspec.structs.replace(diagnosis, findings=findings)


def _known(entry: _Entry, facts: Facts) -> bool:
    better = any(name in facts for name in entry.unless)
    return all(name in facts for name in entry.needs) and not better


class _Facts(dict[str, Any]):
    """Braces that are no fact stay as they are."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def _worded(entry: _Entry, facts: Facts) -> Remedy:
    values = _Facts(facts)
    return Remedy(
        id=entry.id,
        summary=entry.summary.format_map(values),
        lossless=entry.lossless,
        settings={name: text.format_map(values) for name, text in entry.settings.items()},
        memory=entry.memory,
    )
