"""Scanning in processes: one that dies costs the record that killed it, and no other."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from brim.data import scanning
from brim.data.columns import Bad, Columns, Scan, ScannedSample
from brim.data.scanning import scan_in_processes
from brim.errors import BrimError, InputError


@dataclass(frozen=True)
class Work:
    """Takes every record but those that end the process."""

    deadly: frozenset[int] = frozenset()
    refuses: bool = False
    slow: frozenset[int] = frozenset()

    def scan(self, records: Sequence[int]) -> Scan:
        if self.refuses:
            raise InputError("a package is missing", hint="install it")
        for record in records:
            if record in self.deadly:
                os._exit(139)
            if record in self.slow:
                time.sleep(0.5)
        samples = [ScannedSample(n, 10 + n, 1, 5, 2, ()) for n in records if n % 7]
        bad = [Bad(n, "chat.record", "a seventh") for n in records if not n % 7]
        return Scan(Columns.of(samples), bad, records=len(records))


def chunks(count: int, size: int) -> list[range]:
    return [range(at, min(at + size, count)) for at in range(0, count, size)]


def scanned(work: Work, count: int = 64, size: int = 16) -> tuple[list[int], dict[int, str]]:
    """(records taken, those refused with their kind), asked for in order."""
    taken: list[int] = []
    refused: dict[int, str] = {}
    seen = []
    for chunk, found in scan_in_processes(work, chunks(count, size), 2):
        seen.append(chunk)
        assert found.records == len(chunk)
        taken += found.columns.record.tolist()
        np.testing.assert_array_equal(found.columns.text, 10 + found.columns.record)
        refused |= {bad.record: bad.kind for bad in found.bad}
    assert seen == chunks(count, size)
    return taken, refused


def test_results_come_in_order_whoever_is_slow() -> None:
    taken, refused = scanned(Work(slow=frozenset({0})))
    assert taken == [n for n in range(64) if n % 7]
    assert refused == dict.fromkeys(range(0, 64, 7), "chat.record")


def test_a_record_that_kills_its_process_is_the_only_one_lost() -> None:
    taken, refused = scanned(Work(deadly=frozenset({19, 60})))
    assert taken == [n for n in range(64) if n % 7 and n not in (19, 60)]
    assert {n for n, kind in refused.items() if kind == "sample.deadly"} == {19, 60}
    assert {n for n, kind in refused.items() if kind == "chat.record"} == set(range(0, 64, 7))


def test_processes_that_die_of_everything_end_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_MAX_DEATHS", 6)
    with pytest.raises(BrimError, match=r"died 7 times \(its exit code was 139\)"):
        scanned(Work(deadly=frozenset(range(64))))


def test_what_the_user_has_to_change_ends_the_scan_with_its_words() -> None:
    with pytest.raises(InputError, match="a package is missing") as caught:
        scanned(Work(refuses=True))
    assert caught.value.hint == "install it"
