"""The trainer's end of the loader: rows in order, from a process that may die and come back.

The process is started as a fresh interpreter (nothing of the trainer is inherited but two
descriptors).  Its death ends the connection at once; it is started again at the row that comes
next, and what it had finished is not lost.  A sample that was in work at three deaths, or for two
minutes, is taken for their cause and replaced.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from brim.data.helper import start
from brim.data.imagecache import ImageCache
from brim.data.maker import Maker
from brim.data.nvjpeg import GpuJpegs, require
from brim.data.plan import COHORT, Plan
from brim.data.prepare import Prepared
from brim.data.process import Job
from brim.data.quarantine import TooManyBadSamples
from brim.data.ring import Layout, Ring
from brim.data.rows import Counts, slot_bytes
from brim.data.sources import cache_folder
from brim.errors import BrimError, ConfigError, InputError
from brim.hardware.cores import usable_cores
from brim.record.loader import LoaderDeath, append

HELD = 3
"""Slots that the trainer may hold: one in use, one being copied, one asked for."""
_HANG_S = 120.0
_DEADLY = 3
_MAX_DEATHS_AT_A_ROW = 12


class LoaderFailed(BrimError):
    """The loader process cannot go on."""


@dataclass(slots=True)
class HostRow:
    """A row in shared memory.  Its arrays are valid until ``release``."""

    step: int
    number: int
    """Its place in the step, the same for any number of ranks."""
    arrays: dict[str, NDArray[Any]]
    counts: Counts
    samples: tuple[int, ...]
    slot: int
    memory: NDArray[np.uint8]
    """The whole slot."""
    layout: Layout
    _loader: Loader | None = field(repr=False)

    def release(self) -> None:
        """Give the memory back.  Once is enough; twice does no harm."""
        if self._loader is not None:
            self._loader._free(self.slot)
            self._loader = None

    def fields(self) -> dict[str, Any]:
        """The arrays with ``counts`` and ``sample_ids``, as ``PackedBatch.from_arrays`` takes."""
        counts = msgspec.structs.asdict(self.counts)
        return {**self.arrays, "counts": counts, "sample_ids": self.samples}


class State(msgspec.Struct, kw_only=True):
    """A position in the data: small, and the same for all ranks at a step's start."""

    version: int = 1
    step: int
    row: int = 0
    """Rows of the step that this rank has taken; 0 at a step's start."""
    epoch_starts: list[int]
    plan: str
    """Fingerprint of the data and of the settings that order it."""


def fingerprint(plan: Plan) -> str:
    """Of everything that decides which sample is shown when."""
    digest = xxhash.xxh3_64(
        repr(
            (COHORT, plan.tokens_per_row, plan.rows_per_step, plan.seed, list(plan.weights))
        ).encode()
    )
    for column in (plan.samples.source, plan.samples.record, plan.samples.length):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


class Loader:
    """Rows of one rank, in order, from ``step`` on.

    ``stop``: the first step that is not wanted; ``local_world``: ranks on this host, which share
    its cores.  ``run_dir`` receives the loader's records and the quarantine file.  ``whole``: rows
    hold whole pictures, which :class:`brim.data.transfer.Transfer` cuts on the device.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        rank: int = 0,
        world: int = 1,
        local_world: int = 1,
        stop: int | None = None,
        state: Mapping[str, Any] | None = None,
        run_dir: Path | None = None,
        whole: bool = False,
    ) -> None:
        self.prepared, self.plan = prepared, prepared.plan
        self.rank, self.world = rank, world
        self.stop, self.run_dir, self.whole = stop, run_dir, whole
        self.deaths = 0
        self.wait_s = 0.0
        """Time spent waiting for rows, in all."""
        self._print = fingerprint(self.plan)
        self.step, self.row = self._resumed(state)
        self._per_step = len(self.plan.rows(self.step, rank, world))  # checks rank and world
        config = prepared.config
        size = slot_bytes(
            config.tokens_per_row,
            prepared.vision,
            config.patch_bucket,
            videos=any(scan.columns.frames.any() for scan in prepared.scans),
        )
        slots = config.max_loader_bytes // size
        if slots < HELD + 1:
            raise ConfigError(
                f"data.max_loader_bytes is {config.max_loader_bytes}; "
                f"{HELD + 1} rows of {config.tokens_per_row} tokens take {size * (HELD + 1)}"
            )
        self._gpu = GpuJpegs(torch.device("cuda", require())) if config.nvjpeg else None
        self._cores = max(1.0, usable_cores().usable / local_world)
        self._local_world = local_world
        self.ring = Ring.create(min(slots, 256), size)
        self._held: set[int] = set()
        self._avoid: dict[int, str] = {}
        self._at_death: Counter[int] = Counter()
        self._deaths_at_row = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._closed = False
        self._start()

    # taking rows

    def __iter__(self) -> Iterator[HostRow]:
        return self

    def __next__(self) -> HostRow:
        """The next row.  Raises StopIteration at ``stop``, and BrimError when loading must end."""
        if self._closed or (self.stop is not None and self.step >= self.stop):
            raise StopIteration
        start = time.perf_counter()
        message = self._receive()
        waited = time.perf_counter() - start
        self.wait_s += waited
        self._tell(("next", waited))
        _, step, number, slot, layout, counts, samples = message
        assert step == self.step, f"row of step {step} where {self.step} was due"
        self._held.add(slot)
        self._deaths_at_row = 0
        self.row += 1
        if self.row == self._per_step:
            self.step, self.row = self.step + 1, 0
        arrays, memory = self.ring.arrays(slot, layout), self.ring.slot(slot)
        return HostRow(step, number, arrays, counts, samples, slot, memory, layout, self)

    def state(self) -> dict[str, Any]:
        """The position after the rows taken so far, for ``Loader(state=…)``; small JSON."""
        state = State(
            step=self.step, row=self.row, epoch_starts=list(self.plan.starts), plan=self._print
        )
        return msgspec.structs.asdict(state)

    def close(self) -> None:
        """End the process.  Rows that are still held stay readable."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.ring.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # the process

    def _resumed(self, state: Mapping[str, Any] | None) -> tuple[int, int]:
        if state is None:
            return 0, 0
        try:
            found = msgspec.convert(state, State)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the saved position in the data cannot be read: {error}") from None
        if found.plan != self._print:
            raise ConfigError(
                "the data or its settings have changed since the checkpoint was written",
                hint="resume with the same sources, seed, tokens_per_row and rows_per_step",
            )
        self.plan.starts = list(found.epoch_starts)
        return found.step, found.row

    def _start(self) -> None:
        config, prepared = self.prepared.config, self.prepared
        self._process, self._connection = start(
            "brim.data.process", "main", self.ring.fd, gpus=self._gpu is not None
        )
        cache = _image_cache(prepared, self._local_world) if config.image_cache_bytes else None
        maker = Maker(
            sources=prepared.sources,
            samples=prepared.samples,
            tokens=prepared.tokens,
            vision=prepared.vision,
            policy=config.decode,
            tokens_per_row=config.tokens_per_row,
            sampling=config.sampling,
            cache=cache,
            gpu=self._gpu,
        )
        job = Job(
            maker=maker,
            plan=self.plan,
            rank=self.rank,
            world=self.world,
            step=self.step,
            row=self.row,
            stop=self.stop,
            free=tuple(s for s in range(self.ring.slots) if s not in self._held),
            slots=self.ring.slots,
            slot_bytes=self.ring.slot_bytes,
            held=HELD,
            bucket=config.patch_bucket,
            whole=self.whole,
            threads=config.threads,
            cores=self._cores,
            bad_path=self._file("quarantine"),
            max_bad_share=config.max_bad_share,
            max_bad=config.max_bad,
            record=self._file("loader"),
            avoid=self._avoid,
            suspects=frozenset(self._at_death),
        )
        self._tell(job)

    def _receive(self) -> tuple[Any, ...]:
        """The next row's message, whatever it takes."""
        while True:
            assert self._connection is not None
            try:
                if self._connection.poll(1.0):
                    message: tuple[Any, ...] = self._connection.recv()
                    if message[0] == "row":
                        return message
                    self._raise(message)
                else:
                    self._check_hang()
            except (EOFError, OSError):
                self._restart()

    def _raise(self, message: tuple[Any, ...]) -> None:
        self.close()
        if message[0] == "bad":
            raise TooManyBadSamples(message[1], hint=message[2])
        if message[0] == "refused":
            raise InputError(message[1], hint=message[2])
        raise LoaderFailed(f"the loader process failed:\n{message[1]}")

    def _check_hang(self) -> None:
        """Kill a process whose thread has been at one sample for too long."""
        now = time.monotonic_ns()
        for marked, since in self.ring.box.tolist():
            if marked and (now - since) / 1e9 > _HANG_S:
                self._avoid[marked - 1] = f"reading it took more than {_HANG_S:.0f} s"
                assert self._process is not None
                self._process.kill()
                return

    def _restart(self) -> None:
        """After a death: note the suspects, and start again at the row that is due."""
        assert self._process is not None and self._connection is not None
        self._connection.close()
        code = self._process.wait()
        suspects = [int(marked) - 1 for marked in self.ring.box[:, 0] if marked]
        self.ring.box[:] = 0
        self.deaths += 1
        self._deaths_at_row += 1
        self._at_death.update(suspects)
        for sample in suspects:
            if self._at_death[sample] >= _DEADLY:
                self._avoid.setdefault(sample, "the loader died three times while reading it")
        record = self._file("loader")
        if record is not None:
            death = LoaderDeath(
                t=time.monotonic(),
                rank=self.rank,
                step=self.step,
                exit_code=code,
                suspects=suspects,
            )
            append(record, death)
        if self._deaths_at_row > _MAX_DEATHS_AT_A_ROW:
            raise LoaderFailed(
                f"the loader process died {self._deaths_at_row} times before one row was made "
                f"(its last exit code: {code})",
                hint="-9 is the kernel's out-of-memory killer: lower data.max_loader_bytes",
            )
        self._start()

    def _tell(self, message: object) -> None:
        """A death is noticed when the next row is received, not here."""
        assert self._connection is not None
        try:
            self._connection.send(message)
        except OSError:
            return

    def _free(self, slot: int) -> None:
        self._held.discard(slot)
        if not self._closed:
            self._tell(("free", slot))

    def _file(self, name: str) -> Path | None:
        return None if self.run_dir is None else self.run_dir / f"{name}.rank{self.rank}.jsonl"


def _image_cache(prepared: Prepared, share: int) -> ImageCache:
    config = prepared.config
    folder = Path(config.image_cache_folder)
    if not config.image_cache_folder:
        root = Path(prepared.sources[0].store.root)
        folder = cache_folder(root if root.is_dir() else Path.cwd()) / "images"
    try:
        return ImageCache(folder, config.image_cache_bytes, share=share)
    except OSError as error:
        raise ConfigError(
            f"data.image_cache_folder is {folder}, which cannot be used: {error.strerror}"
        ) from None
