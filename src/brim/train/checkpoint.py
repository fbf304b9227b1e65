"""Checkpoints that a kill at any moment cannot halve, and exact resume on any number of ranks.

::

    output_dir/checkpoints/step-00000500/
        rank-00000-000.safetensors, …   pieces of weights, optimizer and random states
        index.json                      which tensor consists of which pieces
        state.json                      step, and what the loop keeps
        config.json                     the model's, as Hugging Face writes it
        manifest.json                   every file's size and CRC-32; written last

A folder without a manifest whose sizes fit is no checkpoint, and no other program's checkpoint is
read.  A save copies every rank's share into host memory beside the running step; a process beside
each rank writes it to ``step-N.<token>.tmp``; when all have, the first rank's process writes the
manifest and renames the folder.  Older ones are deleted only when ``keep`` valid ones exist.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from brim import __version__
from brim.errors import BrimError
from brim.model.lora import lora_layers
from brim.model.qwen3vl import Qwen3VL
from brim.train.adamw import AdamW
from brim.train.parallel.ranks import Ranks
from brim.train.saving import folders, older, random_states, reader
from brim.train.saving.client import COMMAND, Writer, WriterFailed
from brim.train.saving.job import Job
from brim.train.saving.layout import INDEX, File, Layout, plan
from brim.train.saving.staging import Staging, aligned, free_memory, rounds
from brim.train.step import LossScale

_SHARE = 0.5
"""Of the host's free memory: what the copies of all ranks on it may take."""


class NotWritten(BrimError):
    """A checkpoint could not be written; the run goes on with the one before."""


class Saved(NamedTuple):
    """How far saves are, by their numbers: what ranks tell each other."""

    written: int = 0
    failed: int = 0
    committed: int = 0


@dataclass(slots=True)
class _Machinery:
    """What saves need and keep; made at the first one."""

    layout: Layout
    rounds: list[list[File]]
    staging: Staging
    token: str
    hook: Any
    writer: Writer


class Checkpoints:
    """The checkpoints of one run.  Every rank has one, and calls the same methods as the others.

    ``writer``: what starts the process that writes, for tests that kill it at a chosen call.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        ranks: Ranks | None = None,
        writer: Sequence[str] = COMMAND,
    ) -> None:
        self.folder, self.keep, self.ranks = folder, keep, ranks or Ranks()
        self._command = writer
        self._made: _Machinery | None = None
        self._job: Job | None = None
        self._count = 0
        self._at: int | None = None
        """The step of the last checkpoint written or loaded."""

    def newest(self) -> Path | None:
        """The newest valid checkpoint, checksums and all; every rank gets the same.

        Damaged and unfinished ones are passed over.  The ranks share the reading.
        """
        found = [path for path in folders.finished(self.folder) if folders.valid(path)]
        rank, world = self.ranks.rank, self.ranks.world
        for path in reversed(self.ranks.told(found)):
            if not self.ranks.any(bool(folders.damaged(path, part=rank, parts=world))):
                return path
        return None

    @staticmethod
    def kept(path: Path) -> dict[str, Any]:
        """What ``save`` was given as ``extra``."""
        found: dict[str, Any] = json.loads((path / "state.json").read_bytes())["extra"]
        return found

    def load(
        self, path: Path, model: Qwen3VL, optimizer: AdamW, scale: LossScale
    ) -> dict[str, Any]:
        """Restore everything from ``path``; returns ``extra`` with the number of steps done.

        The number of ranks, and how they share the model, may be another than when it was written.
        """
        state: dict[str, Any] = json.loads((path / "state.json").read_bytes())
        if older.is_older(path):
            older.load(path, state["random"], model, optimizer, scale)
        else:
            self._load(path, model, optimizer, scale)
        self._at = state["step"]
        return {**state["extra"], "step": state["step"]}

    def _load(self, path: Path, model: Qwen3VL, optimizer: AdamW, scale: LossScale) -> None:
        tensors = state_tensors(model, optimizer, scale)
        there = reader.read_index(path)
        own = random_states.capture(self.ranks.rank)
        own = {name: state for name, state in own.items() if name in there}
        reader.load(path, tensors | own)
        optimizer.attempts = int(tensors["optimizer.attempts"])
        if own:  # a rank that was not there before keeps its own
            random_states.restore(own, self.ranks.rank)

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is under way; the same on all ranks."""
        return self._job is not None

    def prepare(self, model: Qwen3VL, optimizer: AdamW, scale: LossScale) -> None:
        """Do now what the first save would do: agree on the layout, and take host memory."""
        self._machinery(self._tensors(model, optimizer, scale), optimizer)

    def save(
        self,
        step: int,
        model: Qwen3VL,
        optimizer: AdamW,
        scale: LossScale,
        extra: Mapping[str, Any],
    ) -> Path:
        """Write the checkpoint of ``step`` finished steps and wait for it.

        Raises :class:`NotWritten`, with nothing left behind, when that fails on any rank.
        """
        self.start(step, model, optimizer, scale, extra)
        return self.finish()

    def start(
        self,
        step: int,
        model: Qwen3VL,
        optimizer: AdamW,
        scale: LossScale,
        extra: Mapping[str, Any],
    ) -> None:
        """Begin a checkpoint; the state may change as soon as this returns.

        A share that does not fit into the host's memory is written here, in rounds.
        """
        assert self._job is None, "finish the checkpoint under way first"
        if step == self._at:
            return
        tensors = self._tensors(model, optimizer, scale)
        made = self._machinery(tensors, optimizer)
        self._count += 1
        name = folders.name_of(step)
        folder = self.folder / f"{name}.{made.token}-{self._count}.tmp"
        job = Job(self._count, step, folder, self.folder / name, made.writer, made.staging)
        self._job = job
        texts: dict[str, str] = {}
        if self.ranks.first:
            folders.clear_unfinished(self.folder, keep=folder)
            texts = self._texts(step, model, extra)
        for files in made.rounds:
            starts = made.staging.copy(files, tensors)
            job.add_files(files, starts, texts, made.layout.total)
            texts = {}
            if len(made.rounds) > 1:
                job.advance(wait=True)
        job.add(do="part", name=_part(self.ranks.rank))

    def progress(self) -> Saved:
        """How far this rank is; never waits."""
        job = self._job
        if job is None:
            return Saved(written=self._count)
        job.advance()
        return Saved(
            written=job.number if job.committing or job.idle else job.number - 1,
            failed=job.number if job.why else 0,
            committed=job.number if job.committing and job.idle and self.ranks.first else 0,
        )

    def agreed(self, ranks: Saved) -> Path | None:
        """Go on as all ranks are: ``written`` is the least of theirs, the others the largest.

        Returns the checkpoint when it is complete.  Raises :class:`NotWritten`, on all ranks, when
        it failed on one.
        """
        job = self._job
        if job is None:
            return None
        if ranks.failed >= job.number:
            self._give_up(job)
        if ranks.committed >= job.number:
            return self._end(job)
        if ranks.written >= job.number:
            self._commit(job)
        return None

    def finish(self) -> Path:
        """Wait for the checkpoint under way; raises as :meth:`save` does."""
        job = self._job
        if job is None:
            return self.folder / folders.name_of(self._at or 0)
        if not job.committing:
            job.advance(wait=True)
            self._unless_failed(job)
            self._commit(job)
        job.advance(wait=True)
        self._unless_failed(job)
        return self._end(job)

    def drop(self) -> None:
        """Forget the checkpoint under way, if there is one."""
        job, self._job = self._job, None
        if job is None:
            return
        job.advance(wait=True)  # its files may still be written
        self.ranks.barrier()
        if self.ranks.first:
            folders.clear_unfinished(self.folder)

    def close(self) -> None:
        """End the process beside this one; a checkpoint under way stays unfinished."""
        made, job = self._made, self._job
        self._made = self._job = None
        if made is not None:
            made.hook.remove()
            made.writer.close(at_once=job is not None)
            made.staging.close()

    def _tensors(
        self, model: Qwen3VL, optimizer: AdamW, scale: LossScale
    ) -> dict[str, torch.Tensor]:
        own = random_states.capture(self.ranks.rank)
        return state_tensors(model, optimizer, scale) | own

    def _machinery(self, tensors: Mapping[str, torch.Tensor], optimizer: AdamW) -> _Machinery:
        if self._made is None:
            layout = plan(tensors, self.ranks)
            groups = rounds(layout.files, int(_SHARE * free_memory() / self.ranks.local_world))
            most = max(sum(aligned(file.nbytes) for file in group) for group in groups)
            staging = Staging(most, next(iter(tensors.values())).device)
            hook = optimizer.register_step_pre_hook(lambda *_: staging.hold_update())
            token = self.ranks.told(secrets.token_hex(4))
            writer = Writer(staging.fd, self._command)
            self._made = _Machinery(layout, groups, staging, token, hook, writer)
        if not self._made.writer.alive:
            self._made.writer.close()
            self._made.writer = Writer(self._made.staging.fd, self._command)
        return self._made

    def _texts(self, step: int, model: Qwen3VL, extra: Mapping[str, Any]) -> dict[str, str]:
        assert self._made is not None
        config = model.config.to_hf() | {"tie_word_embeddings": model.config.tied}
        state = {"step": step, "extra": dict(extra)}
        return {
            INDEX: self._made.layout.index,
            "state.json": json.dumps(state),
            "config.json": json.dumps(config, indent=2),
        }

    def _commit(self, job: Job) -> None:
        if job.committing:
            return
        job.committing = True
        if self.ranks.first:
            about = {"brim": __version__, "step": job.step, "world": self.ranks.world}
            parts = [_part(rank) for rank in range(self.ranks.world)]
            job.add(do="commit", target=str(job.target), parts=parts, about=about, keep=self.keep)

    def _end(self, job: Job) -> Path:
        self._job, self._at = None, job.step
        return job.target

    def _unless_failed(self, job: Job) -> None:
        if self.ranks.any(bool(job.why)):
            self._give_up(job)

    def _give_up(self, job: Job) -> None:
        self._job = None
        if self.ranks.first and self._made is not None:
            try:
                self._made.writer.answer(
                    self._made.writer.ask({"do": "abort", "folder": str(job.folder)}), wait=True
                )
            except WriterFailed:
                folders.clear_unfinished(self.folder)
        found = enumerate(self.ranks.gather(job.why))
        rank, why = next((rank, why) for rank, why in found if why)
        where = f"rank {rank}: " if self.ranks.world > 1 else ""
        raise NotWritten(f"checkpoint of step {job.step} not written: {where}{why}")


def state_tensors(model: Qwen3VL, optimizer: AdamW, scale: LossScale) -> dict[str, torch.Tensor]:
    """Name → tensor of everything that all ranks share, sharded or not.

    With adapters only they are kept: the rest is the model that the run began with.
    """
    adapters = bool(lora_layers(model))
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad or not adapters]
    states = optimizer.tensors([name for name, _ in optimizer_order(model, optimizer)])
    return (
        {f"model.{name}": parameter.detach() for name, parameter in named}
        | {f"optimizer.{name}": state for name, state in states.items()}
        | {f"scale.{name}": value for name, value in scale.tensors().items()}
    )


def optimizer_order(model: Qwen3VL, optimizer: AdamW) -> list[tuple[str, torch.Tensor]]:
    """(name, parameter) in the order of the optimizer's groups."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


def _part(rank: int) -> str:
    return f"part-{rank:05d}.json"
