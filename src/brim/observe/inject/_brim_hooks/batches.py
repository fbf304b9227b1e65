"""Real and padding tokens of the batches that the loop receives.

Configuration is not believed: packing may be on and pad all the same.  Only tensors in host
memory are read, so the device is never waited for; a bounded number of batches is looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from _brim_hooks.recorder import Recorder

MOST = 256  # batches per process that are looked at
NONE = 32  # batches without a row of tokens, after which there will be none
MASKS = ("attention_mask", "text_attention_mask", "input_mask", "mask")
INVERTED = ("padding_mask", "pad_mask", "key_padding_mask", "src_key_padding_mask")
RARE = 0.05  # of the tokens that are no padding: how many may have the padding's value
SHORTEST = 8  # a row shorter than this is no sequence


def received(rec: Recorder, batch: Any) -> None:
    """Add the tokens of a batch to the running step."""
    if rec.sums.get("own", 0) > 0.05 or rec.batches_seen >= MOST:
        return
    rec.batches_seen += 1
    found = count(batch)
    if found is None:
        if not rec.counts_tokens and rec.batches_seen >= NONE:
            rec.batches_seen = MOST
        return
    rec.counts_tokens = True
    rec.add("tokens", found[0])
    rec.add("pad_tokens", found[1])
    rec.add("counted_batches", 1)
    rec.sums["longest"] = max(rec.sums.get("longest", 0), found[2])


def count(batch: Any) -> tuple[int, int, int] | None:
    """(tokens, padding tokens, row length) of a batch, or None when it holds no token rows."""
    torch = sys.modules.get("torch")
    named = list(_tensors(torch, batch))
    masks = [(k, t) for k, t in named if _is_rows(torch, t) and k in MASKS + INVERTED]
    for name, mask in masks:
        real = int((mask != 0).sum())
        if name in INVERTED:
            real = mask.numel() - real
        return mask.numel(), mask.numel() - real, mask.shape[1]
    ids = [t for _, t in named if _is_rows(torch, t) and not t.is_floating_point()]
    if ids:
        rows = max(ids, key=lambda t: t.numel())
        return rows.numel(), _padding(torch, rows, [t for _, t in named]), rows.shape[1]
    return None


def _tensors(torch: Any, data: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(data, torch.Tensor):
        if data.device.type == "cpu" and data.layout == torch.strided:
            yield name, data
    elif depth < 3:
        if isinstance(data, dict) or hasattr(data, "items"):
            for key, value in list(data.items())[:200]:
                yield from _tensors(torch, value, str(key), depth + 1)
        elif isinstance(data, (list, tuple)):
            for value in data[:200]:
                yield from _tensors(torch, value, name, depth + 1)
        elif hasattr(data, "__dict__"):
            for key, value in list(vars(data).items())[:200]:
                yield from _tensors(torch, value, key, depth + 1)


def _is_rows(torch: Any, t: Any) -> bool:
    kinds = (torch.int64, torch.int32, torch.bool, torch.uint8)
    return t.dim() == 2 and t.shape[1] >= SHORTEST and t.shape[0] > 0 and t.dtype in kinds


def _padding(torch: Any, rows: Any, others: list[Any]) -> int:
    """Padding by a tensor of lengths beside the rows, else by equal values at the rows' ends."""
    for t in others:
        if t.dim() == 1 and t.shape[0] == rows.shape[0] and t.dtype in (torch.int64, torch.int32):
            longest = int(t.max())
            if longest == rows.shape[1] and int(t.min()) >= 1:
                return int(rows.numel()) - int(t.sum())
    return max(_run_at_end(torch, rows), _run_at_end(torch, rows.flip(1)))


def _run_at_end(torch: Any, rows: Any) -> int:
    """Tokens in runs of one value at the rows' ends, if the runs look like padding: the same
    value in every row that has a run, at least one row without one, and the value is rare
    elsewhere (zeros at the end of counts or pixels are no padding)."""
    same = (rows == rows[:, -1:]).flip(1).to(torch.int64).cumprod(1).sum(1)
    padded = same > 1
    if not bool(padded.any()) or bool(padded.all()):
        return 0
    values = rows[:, -1][padded]
    if not bool((values == values[0]).all()):
        return 0
    run = int(same[padded].sum())
    elsewhere = int((rows == values[0]).sum()) - run
    return run if elsewhere <= RARE * (rows.numel() - run) else 0
