"""Real and padding tokens of a batch, told by what it holds and not by what it is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from _brim_hooks import batches  # isort: skip

LENGTHS = [16, 9, 12, 3]
ROWS = len(LENGTHS) * 16
PADDED = ROWS - sum(LENGTHS)


def _ids(lengths: list[int], *, pad: int = 0, width: int = 16, left: bool = False) -> torch.Tensor:
    """Random tokens in rows of these lengths, padded with ``pad``."""
    rows = torch.randint(5, 30_000, (len(lengths), width), generator=torch.manual_seed(0))
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = pad
    return rows.flip(1) if left else rows


def _mask(lengths: list[int], width: int = 16) -> torch.Tensor:
    return (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()


class Encoding:
    """A batch that is an object with attributes."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": _ids(LENGTHS), "attention_mask": _mask(LENGTHS)},
        {"input_ids": _ids(LENGTHS), "attention_mask": _mask(LENGTHS).bool()},
        {"x": _ids(LENGTHS), "key_padding_mask": _mask(LENGTHS) == 0},
        {"labels": _ids(LENGTHS), "pad_mask": 1 - _mask(LENGTHS)},
        {"inputs": {"text": {"attention_mask": _mask(LENGTHS)}}},
        [{"attention_mask": _mask(LENGTHS)}, torch.zeros(4)],
        Encoding(input_ids=_ids(LENGTHS), attention_mask=_mask(LENGTHS)),
        (_ids(LENGTHS), torch.tensor(LENGTHS)),  # lengths beside the rows
        (_ids(LENGTHS), torch.zeros(4)),  # runs at the rows' ends
        (_ids(LENGTHS, pad=151_643), None),
        (_ids(LENGTHS, left=True), None),  # at their beginnings
    ],
    ids=["mask", "bool", "inverted", "inverted-int", "nested", "list", "object", "lengths", "runs",
         "other-pad", "left"],
)  # fmt: skip
def test_padding_is_found_by_masks_by_lengths_and_by_runs_at_the_ends(batch: Any) -> None:
    assert batches.count(batch) == (ROWS, PADDED, 16)


def test_a_mask_of_sequence_numbers_says_what_is_real() -> None:
    """Packed rows number their samples; 0 is padding."""
    mask = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 3, 3, 0]])
    assert batches.count({"attention_mask": mask}) == (10, 1, 10)


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": _ids([16] * 4), "attention_mask": _mask([16] * 4)},  # full rows
        _ids([16] * 4),
        torch.full((4, 16), 7),  # every row the same: not to be told from padding, so none
    ],
)
def test_full_rows_have_tokens_and_no_padding(batch: Any) -> None:
    found = batches.count(batch)
    assert found is not None
    assert (found[0], found[1]) == (64, 0)


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(8, 64), st.integers(1000, 200_000), st.integers(0, 1 << 30))
def test_random_tokens_without_padding_have_next_to_none(
    rows: int, width: int, vocabulary: int, seed: int
) -> None:
    tokens = torch.randint(vocabulary, (rows, width), generator=torch.manual_seed(seed))
    found = batches.count(tokens)
    assert found is not None
    assert found[1] <= 4  # two equal tokens at the end of a row happen


@pytest.mark.parametrize("density", [0.02, 0.1, 0.5])
def test_zeros_at_the_ends_of_counts_are_no_padding(density: float) -> None:
    """A bag of words, one-hot fields, flattened pixels: integers, mostly zero, also inside."""
    chance = torch.rand(32, 200, generator=torch.manual_seed(0))
    counts = (chance < density).long()
    counts[0, -1] = 1  # at least one row ends without a run
    found = batches.count({"counts": counts})
    assert found is not None
    assert found[1] == 0


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), min_size=2, max_size=8), st.integers(0, 3))
def test_whatever_the_lengths_masks_and_runs_agree(lengths: list[int], pad: int) -> None:
    lengths[0] = 64
    by_mask = batches.count({"attention_mask": _mask(lengths, 64)})
    by_runs = batches.count(_ids(lengths, pad=pad, width=64))
    assert by_mask is not None
    assert by_runs is not None
    assert by_mask[1] == 64 * len(lengths) - sum(lengths)
    # a run of one token is not told from a token
    short = sum(length == 63 for length in lengths)
    if sum(length < 63 for length in lengths):
        assert by_mask[1] - short <= by_runs[1] <= by_mask[1]


@pytest.mark.parametrize(
    "batch",
    [
        None,
        3,
        "text",
        torch.rand(4, 16),  # features, no tokens
        torch.rand(4, 3, 8, 8),
        torch.zeros(0, 16, dtype=torch.long),
        torch.arange(16),  # labels
        torch.zeros(4, 3, dtype=torch.long),  # boxes, too short for a sequence
        torch.randint(9, (4, 16)).to_sparse(),
        {"deep": [[[[_ids(LENGTHS)]]]]},  # nested too deep to be looked for
    ],
)
def test_batches_without_rows_of_tokens_are_not_counted(batch: Any) -> None:
    assert batches.count(batch) is None


def test_a_batch_that_holds_itself_ends() -> None:
    batch: dict[str, Any] = {}
    batch["again"] = batch
    assert batches.count(batch) is None


class _Recorder:
    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.batches_seen = 0

    def add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0) + value


def test_a_bounded_number_of_batches_is_looked_at() -> None:
    rec = _Recorder()
    for _ in range(batches.MOST + 50):
        batches.received(rec, _mask(LENGTHS))
    assert rec.sums["counted_batches"] == batches.MOST
    assert rec.sums["tokens"] == ROWS * batches.MOST
    assert rec.sums["longest"] == 16


def test_looking_stops_in_a_step_in_which_it_has_become_dear() -> None:
    rec = _Recorder()
    rec.sums["own"] = 0.06
    batches.received(rec, _mask(LENGTHS))
    assert "tokens" not in rec.sums
