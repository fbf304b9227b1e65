"""Rows on their way from shared memory to the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.pictures import picture

from brim.data.chat import Conversation, Image, Part, Turn, Video
from brim.data.geometry import Grid, Vision
from brim.data.ring import Ring, SlotWriter
from brim.data.rows import Counts, Document, Picture, assemble
from brim.data.tokens import ChatTokens
from brim.data.transfer import Arriving, DeviceRows, Transfer

VISION = Vision(min_pixels=1024)


@dataclass
class StandIn:
    """A row in a slot, as the loader gives it."""

    layout: Any
    counts: Any
    arrays: dict[str, Any]
    memory: Any
    samples: tuple[int, ...] = (4, 2)
    step: int = 0
    number: int = 0
    released: int = field(default=0)

    def release(self) -> None:
        self.released += 1


def documents(tokens: ChatTokens, seed: int) -> list[Document]:
    """Stills by pixels and by planes, and a video of an odd number of frames."""
    planes = np.ascontiguousarray(picture(64, 32, seed).transpose(2, 0, 1)).transpose(1, 2, 0)
    stills = [
        Picture((picture(32, 64, seed + 1),), False, Grid(1, 2, 4)),
        Picture((planes,), False, Grid(1, 4, 2)),
    ]
    clip = Picture(tuple(picture(32, 32, seed + n) for n in range(3)), True, Grid(2, 2, 2))

    def document(parts: tuple[Part, ...], pictures: list[Picture]) -> Document:
        turns = (Turn("user", parts), Turn("assistant", ("Yes.",)))
        return Document(0, tokens.encode(Conversation(turns)), pictures, tokens, 2)

    return [
        document((Image(""), "what?", Image("")), stills),
        document((Video(("1", "2", "3")), Image("")), [clip, stills[1]]),
        document(("no picture",), []),
    ]


def row_of(made: list[Document], *, whole: bool, vision: Vision = VISION) -> StandIn:
    ring = Ring.create(1, 1 << 20)
    writer = SlotWriter(ring.slot(0))
    counts: Counts = assemble(
        made, length=400, vision=vision, bucket=16, pad=0, allocate=writer, whole=whole
    )
    return StandIn(writer.layout, counts, ring.arrays(0, writer.layout), ring.slot(0))


@pytest.fixture
def placed(small_folder: Any) -> Callable[..., StandIn]:
    tokens = ChatTokens(small_folder)
    return lambda seed, whole=False: row_of(documents(tokens, seed), whole=whole)


def moved(transfer: Transfer, row: Any) -> dict[str, torch.Tensor]:
    return transfer(row)


def copies(row: StandIn) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.copy()) for name, array in row.arrays.items()}


CPU = torch.device("cpu")


def test_a_row_arrives_whole_and_its_slot_can_be_reused_at_once(
    placed: Callable[..., StandIn],
) -> None:
    row = placed(3)
    expected = copies(row)
    found = moved(Transfer(CPU), row)
    assert row.released == 1
    row.memory[:] = 255  # the next row is written over it
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def test_pictures_that_travel_whole_become_the_same_patches(placed: Callable[..., StandIn]) -> None:
    cut, whole = placed(5), placed(5, whole=True)
    assert {"pixels", "stills", "clip_pixels", "clips"} <= whole.arrays.keys()
    assert len(whole.arrays["clip_pixels"]) == 3 * 32 * 32 * 3  # the odd frame travels once
    found, expected = moved(Transfer(CPU), whole), copies(cut)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def test_values_are_normalised_where_the_pictures_are_cut(placed: Callable[..., StandIn]) -> None:
    raw = copies(placed(5))
    for dtype in (torch.float32, torch.bfloat16):
        found = moved(Transfer(CPU, dtype=dtype), placed(5, whole=True))
        for name in ("patches", "video_patches"):
            assert torch.equal(found[name], (raw[name].float() / 127.5 - 1).to(dtype))


def test_a_row_without_pictures_arrives_too(small_folder: Any) -> None:
    text = documents(ChatTokens(small_folder), 0)[2:]
    for whole in (False, True):
        found = moved(Transfer(CPU), row_of(text, whole=whole))
        assert found["patches"].shape == (0, 768)
        assert found["video_patches"].shape == (0, 1536)


class FakeCuda:
    """What pinning calls, without a device."""

    def __init__(self, refuses: bool = False) -> None:
        self.pinned: set[int] = set()
        self.refuses = refuses
        self.asked = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.asked += 1
        assert address not in self.pinned and size % 4096 == 0
        if not self.refuses:
            self.pinned.add(address)
        return int(self.refuses)

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


def test_a_slot_is_pinned_once_and_unpinned_before_its_memory_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda()
    monkeypatch.setattr("torch.cuda.cudart", lambda: fake)
    transfer = Transfer(CPU)
    ring = Ring.create(2, 1 << 20)
    for number in (0, 1, 0, 1):
        transfer._pin(ring.slot(number))
    assert fake.asked == 2 and len(fake.pinned) == 2
    transfer.close()
    assert not fake.pinned


def test_memory_that_cannot_be_pinned_is_asked_for_once_and_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeCuda(refuses=True)
    monkeypatch.setattr("torch.cuda.cudart", lambda: fake)
    transfer = Transfer(CPU)
    ring = Ring.create(1, 1 << 20)
    transfer._pin(ring.slot(0))
    transfer._pin(ring.slot(0))
    transfer.close()
    assert fake.asked == 1


class Event:
    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


def test_at_most_one_copy_is_under_way_and_closing_waits_for_it(
    placed: Callable[..., StandIn],
) -> None:
    transfer = Transfer(CPU)
    rows = [placed(n) for n in range(3)]
    events = [Event() for _ in rows]
    for row, event in zip(rows, events, strict=True):
        transfer._copying.append((event, row))  # type: ignore[arg-type]
        transfer._release()
    assert [row.released for row in rows] == [1, 1, 0]
    transfer.close()
    assert [row.released for row in rows] == [1, 1, 1]
    assert all(event.done for event in events)


def test_the_next_row_is_under_way_when_one_is_taken(
    placed: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def start(self: Transfer, row: Any) -> Arriving:
        log.append(f"start {row.number}")
        return Arriving({})

    def wait(self: Arriving) -> dict[str, torch.Tensor]:
        log.append("wait")
        return {}

    monkeypatch.setattr(Transfer, "start", start)
    monkeypatch.setattr(Arriving, "wait", wait)
    first = placed(0)

    class Rows:
        prepared = type("P", (), {"vision": VISION})

        def __iter__(self) -> Any:
            return iter(replace(first, number=n) for n in range(3))

    assert [row.number for row in DeviceRows(Rows(), "cpu")] == [0, 1, 2]  # type: ignore[arg-type]
    assert log == ["start 0", "start 1", "wait", "start 2", "wait", "wait"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("whole", [False, True])
def test_on_a_gpu_rows_arrive_whole_from_slots_that_are_reused_and_from_a_ring_after_a_ring(
    placed: Callable[..., StandIn], whole: bool
) -> None:
    device = torch.device("cuda")
    for round_trip in range(3):  # a new ring may land where the last one was
        transfer = Transfer(device)
        found, expected = [], []
        for seed in range(6):
            expected.append(copies(placed(100 * round_trip + seed)))
            row = placed(100 * round_trip + seed, whole)
            found.append(moved(transfer, row))
            torch.cuda.synchronize()
            transfer._release()
            assert row.released == 1
            row.memory[:] = 255
        transfer.close()
        for ours, theirs in zip(found, expected, strict=True):
            assert all(torch.equal(ours[name].cpu(), theirs[name]) for name in theirs)
