"""The tables of ``Diagnosis.details``, typed; each may be missing, none is trusted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from brim.diagnose.trace.tables import (
    CollRow,
    KernelRow,
    KindRow,
    ModuleRow,
    RankRow,
    Segment,
)
from brim.record.findings import Diagnosis

Row = TypeVar("Row", bound=msgspec.Struct)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``steps``: of a trace (all fields) or of a live run (those that were measured)."""

    rank: int = 0
    name: str = ""
    start_us: float | None = None
    wall_us: float
    compute_us: float | None = None
    exposed_comm_us: float | None = None
    exposed_copy_us: float | None = None
    idle_us: float | None = None
    idle_by_cause: dict[str, float] = {}
    input_us: float | None = None
    """Of a live run: the training thread waited for its loader."""


@dataclass(kw_only=True, slots=True)
class Tables:
    """What the long report shows beyond the findings."""

    kernels: list[KernelRow] = field(default_factory=list)
    kernel_kinds: list[KindRow] = field(default_factory=list)
    ranks: list[RankRow] = field(default_factory=list)
    collectives: list[CollRow] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    timeline: list[Segment] = field(default_factory=list)
    modules: list[ModuleRow] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """One sentence for each table that is there and has another shape than expected."""


def read_tables(diagnosis: Diagnosis) -> Tables:
    """A table of another shape (written by hand, or by a later version) is left out and named."""
    tables = Tables()
    tables.kernels = _table(diagnosis.details, "kernels", KernelRow, tables.unread)
    tables.kernel_kinds = _table(diagnosis.details, "kernel_kinds", KindRow, tables.unread)
    tables.ranks = _table(diagnosis.details, "ranks", RankRow, tables.unread)
    tables.collectives = _table(diagnosis.details, "collectives", CollRow, tables.unread)
    tables.steps = _table(diagnosis.details, "steps", Step, tables.unread)
    tables.timeline = _table(diagnosis.details, "timeline", Segment, tables.unread)
    tables.modules = _table(diagnosis.details, "modules", ModuleRow, tables.unread)
    return tables


def _table(details: dict[str, Any], name: str, row: type[Row], unread: list[str]) -> list[Row]:
    if details.get(name) is None:
        return []
    try:
        return msgspec.convert(details[name], list[row])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        unread.append(f"the table {name} has another shape than expected and is left out ({error})")
        return []
