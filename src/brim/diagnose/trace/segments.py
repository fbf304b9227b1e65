"""A few steps of each rank as coloured stretches for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from brim.diagnose.trace.findings import shorten
from brim.diagnose.trace.host import State
from brim.diagnose.trace.rank import Rank
from brim.diagnose.trace.tables import MAX_SEGMENTS, Segment
from brim.diagnose.trace.timeline import Int64, Spans

SHOWN_STEPS = 3
_PIXELS = 2000
"""Stretches shorter than this part of the picture are merged into their neighbours."""
_MOST_RANKS = 16

Lane = Literal["device", "idle", "host"]


@dataclass(slots=True)
class _Stretch:
    start: int
    end: int
    label: str


def timeline_rows(ranks: Sequence[Rank]) -> list[Segment]:
    """Three lanes for each of the first ranks, over the same first steps."""
    shown = ranks[:_MOST_RANKS]
    most = MAX_SEGMENTS // (3 * len(shown))
    out: list[Segment] = []
    for rank in shown:
        low, high = _range(rank)
        pixel = max(1, (high - low) // _PIXELS)
        idle, shortest = _kept(_idle(rank, low, high), most)
        device = _reduced(_device(rank, low, high), shortest, most)
        host = _reduced(_host(rank, low, high), pixel, most)
        out += _segments(rank, "device", device)
        out += _segments(rank, "idle", idle)
        out += _segments(rank, "host", host)
    return out


def _kept(gaps: list[_Stretch], most: int) -> tuple[list[_Stretch], int]:
    """The longest gaps as they are, never merged across the work between them, and the shortest
    of those: the device lane is closed over gaps that are not shown."""
    if len(gaps) <= most:
        return gaps, 1
    longest = sorted(gaps, key=lambda gap: gap.start - gap.end)[:most]
    shortest = longest[-1].end - longest[-1].start
    return sorted(longest, key=lambda gap: gap.start), max(1, shortest)


def _range(rank: Rank) -> tuple[int, int]:
    """The window's first steps: long enough to see a rhythm, short enough to see kernels."""
    low, high = rank.device.window
    if len(rank.steps) > SHOWN_STEPS:
        return low, rank.steps[SHOWN_STEPS - 1].end
    return low, high


def _device(rank: Rank, low: int, high: int) -> list[_Stretch]:
    lanes = rank.device.lanes
    compute, comm = lanes.compute.within(low, high), lanes.comm.within(low, high)
    exposed = comm - compute
    copy = lanes.copy.within(low, high) - (compute | comm)
    return _merged([("compute", compute), ("comm", exposed), ("copy", copy)])


def _idle(rank: Rank, low: int, high: int) -> list[_Stretch]:
    """Gaps, each with the cause that takes most of it."""
    gaps, labels = rank.blame.gaps, list(rank.blame.by)
    if not labels or not len(gaps):
        return []
    most = np.argmax(np.stack([rank.blame.by[label] for label in labels]), axis=0)
    first, last = np.searchsorted(gaps.start, [low, high])
    return [
        _Stretch(int(gaps.start[k]), min(int(gaps.end[k]), high), rank.cause_of(labels[most[k]]))
        for k in range(first, last)
    ]


def _host(rank: Rank, low: int, high: int) -> list[_Stretch]:
    threads = rank.host.launching_threads
    if not threads:
        return []
    loop = rank.host.loop_thread
    layers = rank.host.seen_from[loop if loop in rank.host.seen_from else threads[0]]
    named = [(State(k).label, layer.within(low, high)) for k, layer in enumerate(layers)]
    return _merged(named)


def _merged(layers: list[tuple[str, Spans]]) -> list[_Stretch]:
    out = [
        _Stretch(int(start), int(end), label)
        for label, spans in layers
        for start, end in zip(spans.start, spans.end, strict=True)
    ]
    return sorted(out, key=lambda stretch: stretch.start)


def _reduced(stretches: list[_Stretch], pixel: int, most: int) -> list[_Stretch]:
    """Merge neighbours and drop what no pixel (ns) shows, ever coarser, until few are left."""
    while True:
        kept = _pass(stretches, pixel)
        if len(kept) <= most:
            return kept
        pixel *= 2


def _pass(stretches: list[_Stretch], pixel: int) -> list[_Stretch]:
    out: list[_Stretch] = []
    for stretch in stretches:
        last = out[-1] if out else None
        if last is not None and stretch.start - last.end < pixel:
            if last.label == stretch.label:
                last.end = max(last.end, stretch.end)
                continue
            if stretch.end - stretch.start < pixel // 4:
                continue
        out.append(_Stretch(stretch.start, stretch.end, stretch.label))
    return [s for s in out if s.end - s.start >= pixel // 4 or len(out) < 100]


def _segments(rank: Rank, lane: Lane, stretches: list[_Stretch]) -> list[Segment]:
    base = rank.device.window[0]
    return [
        Segment(
            rank=rank.trace.rank,
            lane=lane,
            start_us=(s.start - base) / 1e3,
            end_us=(s.end - base) / 1e3,
            label=s.label,
            name=_longest(rank, s) if lane == "device" else "",
        )
        for s in stretches
    ]


def _longest(rank: Rank, stretch: _Stretch) -> str:
    events = rank.trace.device
    first, last = np.searchsorted(events.start, [stretch.start, stretch.end])
    if first == last:
        return ""
    length: Int64 = (events.end - events.start)[first:last]
    return shorten(rank.trace.names[events.name[first + int(np.argmax(length))]], 80)
