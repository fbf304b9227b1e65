"""Attention that writes scores to memory, or computes scores that its mask throws away.

A dense mask of queries × keys keeps SDPA from knowing that the mask is causal: every score is
computed, and half of them in vain.  A kernel that is told (``is_causal``, lengths of sequences)
skips the tiles above the diagonal.  The mask's values are not in a trace, so only a mask counts
that is surely causal: the trace shows how it is made (positions compared with positions, or a
triangle), or keys are shared by groups of query heads, which decoders do.  What such a mask hides
of padding is not counted here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.diagnose.trace.flops import Shape, input_shapes
from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.loss import Claim, claim
from brim.diagnose.trace.table import Float64, Kernels
from brim.diagnose.trace.timeline import Bool, Int64
from brim.record.kineto import Trace
from brim.units import percent

TILE: Final = 128
"""Queries and keys of one tile: what attention kernels skip, they skip by the tile."""

_CALL: Final = "aten::scaled_dot_product_attention"
_MASK: Final = {
    _CALL: 3,
    "aten::_scaled_dot_product_cudnn_attention": 3,
    "aten::_cudnn_attention_forward": 3,
    "aten::_scaled_dot_product_efficient_attention": 3,
    "aten::_efficient_attention_forward": 3,
    "aten::_scaled_dot_product_fused_attention_overrideable": 3,
    "aten::_scaled_dot_product_cudnn_attention_backward": 8,
    "aten::_cudnn_attention_backward": 8,
    "aten::_scaled_dot_product_efficient_attention_backward": 4,
    "aten::_efficient_attention_backward": 4,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": 4,
}
"""Operation → which of its inputs is the mask (native_functions.yaml of torch 2.5 to 2.13)."""


def attention(table: Kernels, free: Bool) -> Claim:
    """Scores in memory, and scores computed in vain."""
    scores, blocks = _scores(table, free)
    masked, share = _masked(table, free & ~scores)
    back = np.where(scores, table.ns, table.ns * share)
    evidence = []
    if blocks:
        evidence.append(
            f"{blocks:,} softmax calls over attention scores that were written to memory"
        )
    if masked.any():
        evidence.append(_mask_evidence(table, masked, share))
    return claim(table, "compute.attention", scores | masked, back, evidence)


def _scores(table: Kernels, free: Bool) -> tuple[Bool, int]:
    """Softmax over scores in memory, with all that runs between its two matrix products."""
    kind, taken = table.kind, np.zeros(len(table.rows), np.bool_)
    products = np.flatnonzero(kind == Kind.MATMUL)
    if not len(products):
        return taken, 0
    stream = table.device.events.stream[table.rows]
    blocks = 0
    for at in np.flatnonzero((kind == Kind.SOFTMAX) & table.eager & free):
        after = int(np.searchsorted(products, at))
        if after == 0 or after == len(products) or not _over_scores(table, int(at)):
            continue
        first, last = int(products[after - 1]), int(products[after])
        if last - first <= _LONGEST_BLOCK and stream[first] == stream[last]:
            taken[first + 1 : last] = True
            blocks += 1
    return taken & free, blocks


_LONGEST_BLOCK: Final = 16


def _over_scores(table: Kernels, at: int) -> bool:
    """Whether the softmax is over (…, queries, keys) and not over classes."""
    name = table.device.trace.names[table.device.events.name[table.rows[at]]]
    if "LogSoftMax" in name or "log_softmax" in name:
        return False
    row = int(table.shaped[at])
    dims = int(table.host.events.dims[row]) if row >= 0 else -1
    if dims < 0:
        return True
    sizes = next((s for s in input_shapes(table.device.trace.dims[dims]) if len(s) >= 2), [])
    return len(sizes) >= 3 and sizes[-1] >= 16


def skipped(length: int) -> float:
    """Share of the tiles of ``length`` × ``length`` scores that lie above the diagonal."""
    tiles = -(-length // TILE)
    return (tiles - 1) / (2 * tiles)


def _masked(table: Kernels, free: Bool) -> tuple[Bool, Float64]:
    """Kernels of SDPA under a causal mask of queries × keys, and the share that would come back:
    of attention the tiles above the diagonal, of what prepares the mask all."""
    share = np.zeros(len(table.rows))
    lengths = causal_lengths(table.device.trace)
    if not lengths:
        return np.zeros(len(table.rows), np.bool_), share
    own = _mask_lengths(table, table.shaped)
    share = np.where(
        (table.kind == Kind.ATTENTION) & np.isin(own, list(lengths)),
        np.array([skipped(int(length)) for length in np.maximum(own, 1)]),
        0.0,
    )
    around = table.operations.climb(table.operation, _named(table, _CALL))
    prepares = np.isin(table.kind, (Kind.ELEMENTWISE, Kind.LAYOUT)) & table.eager
    share[prepares & np.isin(_mask_lengths(table, around), list(lengths))] = 1.0
    return (share > 0) & free, share


def _named(table: Kernels, *wanted: str) -> Bool:
    """Which of the host's events have one of the names; shape (host events,)."""
    ids = [index for index, name in enumerate(table.device.trace.names) if name in wanted]
    return np.isin(table.host.events.name, ids)


def _mask_lengths(table: Kernels, rows: Int64) -> Int64:
    """Of each host row the queries of its square mask, or 0."""
    out = np.zeros(len(rows), np.int64)
    masked = np.flatnonzero((rows >= 0) & _named(table, *_MASK)[np.maximum(rows, 0)])
    used, inverse = np.unique(rows[masked], return_inverse=True)
    lengths = [mask_length(table.device.trace, int(row)) for row in used]
    out[masked] = np.array(lengths, np.int64)[inverse] if lengths else 0
    return out


def mask_length(trace: Trace, row: int) -> int:
    """Queries of the mask that SDPA at the host's ``row`` was given, where the mask holds a value
    for each query and key of one sequence; else 0 (no mask, one of keys alone, one query)."""
    dims = int(trace.host.dims[row])
    at = _MASK[trace.names[trace.host.name[row]]]
    shapes = input_shapes(trace.dims[dims]) if dims >= 0 else []
    mask = shapes[at] if len(shapes) > at else []
    return mask[-1] if len(mask) >= 2 and mask[-1] == mask[-2] else 0


def causal_lengths(trace: Trace) -> set[int]:
    """Lengths whose square mask the program gave to SDPA and that is causal.

    The caller's own mask decides: some kernels get a mask of keys alone spread over the queries.
    """
    given = {mask_length(trace, row) for row in _rows(trace, _CALL)}
    return (given - {0}) & (_ordered(trace) | _grouped(trace))


def _rows(trace: Trace, *names: str) -> list[int]:
    """Host rows of operations with recorded sizes, by name."""
    wanted = [index for index, name in enumerate(trace.names) if name in names]
    found: list[int] = np.flatnonzero(
        np.isin(trace.host.name, wanted) & (trace.host.dims >= 0)
    ).tolist()
    return found


def _ordered(trace: Trace) -> set[int]:
    """Lengths whose positions are compared with one another, and sides of triangles."""
    found = set()
    for shapes in _sizes(trace, "le", "lt", "ge", "gt"):
        if len(shapes) >= 2:
            found |= {_compared(shapes[0], shapes[1]), _compared(shapes[1], shapes[0])}
    for shapes in _sizes(trace, "tril", "triu", "tril_", "triu_"):
        shape = shapes[0]
        found.add(shape[-1] if len(shape) >= 2 and shape[-1] == shape[-2] else 0)
    return found


def _compared(column: Shape, line: Shape) -> int:
    """Length of the positions in (…, length, 1) against (…, length), or 0."""
    if len(column) < 2 or not line or column[-1] != 1 or column[-2] != line[-1]:
        return 0
    return line[-1] if len(line) < 2 or line[-2] == 1 else 0


def _grouped(trace: Trace) -> set[int]:
    """Lengths of keys that are repeated for groups of query heads: (batch, heads, 1, length, size)
    made wider, or fewer heads of keys than of queries."""
    found = set()
    for shapes in _sizes(trace, "expand"):
        shape = shapes[0]
        if len(shape) == 5 and shape[1] > 1 and shape[2] == 1:
            found.add(shape[3])
    for shapes in _sizes(trace, "scaled_dot_product_attention"):
        query, key = [*shapes, [], []][:2]
        if len(query) == len(key) == 4 and key[1] < query[1]:
            found.add(key[2])
    return found


def _sizes(trace: Trace, *names: str) -> list[list[Shape]]:
    """Sizes of the inputs of every different call of ATen's operations ``names``."""
    rows = _rows(trace, *(f"aten::{name}" for name in names))
    different = {int(trace.host.dims[row]) for row in rows}
    return [shapes for dims in different if (shapes := input_shapes(trace.dims[dims]))]


def _mask_evidence(table: Kernels, masked: Bool, share: Float64) -> str:
    at = np.flatnonzero(masked & (table.kind == Kind.ATTENTION))
    lengths = _mask_lengths(table, table.shaped[at])
    calls = len(np.unique(table.shaped[at]))
    longest = int(lengths.max()) if len(lengths) else 0
    time = float(table.ns[at].sum()) or 1.0
    vain = float((table.ns[at] * share[at]).sum()) / time
    return (
        f"{calls:,} calls of SDPA, forward or backward, get a causal mask of up to "
        f"{longest:,} × {longest:,} values: {percent(vain)} of their scores are computed in vain"
    )
