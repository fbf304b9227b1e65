"""The training loop: rows in, updates out, and everything that may go wrong in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from brim.errors import BrimError, ConfigError
from brim.model import flops
from brim.model.batch import PackedBatch, RowCounts
from brim.model.flops import Trained
from brim.model.lora import lora_layers, merge, save_adapter
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.model.weights import save
from brim.record.steps import Step
from brim.train.checkpoint import Checkpoints, NotWritten
from brim.train.config import Config
from brim.train.readback import Readback
from brim.train.records import Records
from brim.train.schedule import learning_rate
from brim.train.signals import StopRequest
from brim.train.step import Outcome, TrainStep
from brim.train.watchdog import Watchdog
from brim.train.window import ProfilerWindow


class Rows(Protocol):
    """Where rows come from; a position is one integer, so resuming is exact."""

    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        ...

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        """The rows of one optimizer step, on the device."""
        ...

    def evaluation(self) -> Iterator[PackedBatch]:
        """The rows to evaluate on; none when there is nothing to evaluate on."""
        ...

    def identity(self) -> str:
        """A fingerprint of the data and its order; another one cannot continue a checkpoint."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a progress bar shows."""

    step: int
    steps: int
    loss: float
    tokens_per_s: float
    images_per_s: float
    samples_per_s: float
    mfu: float | None
    input_wait: float
    """Share of the time since the last report that the loop waited for rows."""


@dataclass(slots=True)
class _Sent:
    """A step whose loss has not arrived yet."""

    number: int
    profiled: bool
    lr: float
    wait: float
    launch: float
    ended: float
    outcome: Outcome
    rows: int
    length: int
    samples: tuple[int, ...]


@dataclass(slots=True)
class _Window:
    """Sums since the last report."""

    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    loss: float = 0.0
    wait: float = 0.0
    tokens: int = 0
    images: int = 0
    samples: int = 0
    flops: float = 0.0


class Diverged(BrimError):
    """The loss stayed infinite or NaN."""


class Trainer:
    """One run on one device."""

    def __init__(
        self,
        config: Config,
        model: Qwen3VL,
        step: TrainStep,
        rows: Rows,
        checkpoints: Checkpoints,
        records: Records,
        *,
        trained: Trained,
        peak: float | None = None,
        say: Callable[[str], None] = print,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.config, self.model, self.step, self.rows = config, model, step, rows
        self.checkpoints, self.records = checkpoints, records
        self.trained, self.peak, self.say, self.show = trained, peak, say, show
        self.steps = config.train.max_steps or rows.steps()
        self.done = 0
        self.lr_factor = 1.0
        self._bad = 0
        self._returns = 0
        self._readback: Readback[_Sent] = Readback()
        self._window = _Window()
        self._last_end = time.monotonic()
        self._profiler = ProfilerWindow(
            records.folder / "trace.rank0.json.gz", enabled=torch.cuda.is_available()
        )

    def run(self) -> bool:
        """Train to the end (True) or until a signal asks to stop (False); then save."""
        self._resume()
        timeout = self.config.train.hang_timeout_s
        watchdog = Watchdog(self.records.folder, timeout) if timeout else None
        try:
            return self._run(watchdog.beat if watchdog else lambda: None)
        finally:
            if watchdog:
                watchdog.close()

    def _run(self, beat: Callable[[], None]) -> bool:
        with StopRequest() as stop:
            self._window = _Window()
            self._last_end = time.monotonic()
            while self.done < self.steps and not stop.asked:
                self._one()
                self._periodic()
                beat()
                if self.done == self.steps:
                    # results on their way may still send the run back
                    self._arrived(self._readback.drain())
        self._profiler.close()
        finished = self.done == self.steps
        if not finished:
            self._arrived(self._readback.drain())
            self.say(f"{stop.signal}: saving step {self.done} and stopping")
        if not finished or self.config.train.save_at_end:
            self._save()
        return finished

    def export(self, folder: Path, companions: Path | None) -> None:
        """Write the trained model as a Hugging Face folder; with adapters, those as a PEFT folder
        beside it, and the model with them merged."""
        if lora_layers(self.model):
            save_adapter(self.model, folder.with_name("adapter"), base=str(companions or ""))
            merge(self.model)
        save(self.model, folder, companions=companions)

    @torch.no_grad()
    def evaluate(self) -> float | None:
        """Mean cross-entropy over the evaluation rows; None without any."""
        total, scored = None, 0
        for row in self.rows.evaluation():
            loss = self.model(row)
            total = loss if total is None else total + loss
            scored += row.counts.scored
        return total.item() / scored if total is not None and scored else None

    def _resume(self) -> None:
        newest = self.checkpoints.newest() if self.config.train.resume else None
        if newest is not None:
            self._load(newest)
            self.say(f"resumed after step {self.done} from {newest}")

    def _load(self, path: Path) -> None:
        if self.checkpoints.kept(path)["data"] != self.rows.identity():
            raise ConfigError(
                f"the data or its settings have changed since {path} was written",
                hint="resume with the same sources, seed, tokens_per_row and rows_per_step, or "
                "set train.resume = false and another output_dir",
            )
        state = self.checkpoints.load(path, self.model, self.step.optimizer, self.step.scale)
        self.done = state["step"]
        self.lr_factor = state["lr_factor"]

    def _save(self) -> None:
        began = time.monotonic()
        extra = {"lr_factor": self.lr_factor, "data": self.rows.identity()}
        try:
            self.checkpoints.save(
                self.done, self.model, self.step.optimizer, self.step.scale, extra
            )
        except NotWritten as error:
            self.say(f"{error}; training goes on, the next checkpoint will try again")
        self._last_end += time.monotonic() - began

    def _one(self) -> None:
        began = time.monotonic()
        rows = self.rows.fetch(self.done)
        fetched = time.monotonic()
        lr = self.lr_factor * learning_rate(self.config.optimizer, self.done, self.steps)
        outcome = self._attempt(rows, lr)
        now = time.monotonic()
        sent = _Sent(
            number=self.done,
            profiled=self._profiler.open,
            lr=lr,
            wait=fetched - began,
            launch=now - fetched,
            ended=now,
            outcome=outcome,
            rows=len(rows),
            length=rows[0].length,
            samples=tuple(s for row in rows for s in row.sample_ids),
        )
        self.done += 1
        self._arrived(self._readback.push(sent, outcome.loss, outcome.norm))
        self._profiler.after_step()

    def _attempt(self, rows: Sequence[PackedBatch], lr: float) -> Outcome:
        """The step; when memory runs out, again with more blocks recomputed.

        Memory runs out before the update, which allocates nothing, so the step can be repeated.
        """
        while True:
            try:
                return self.step(rows, lr)
            except torch.OutOfMemoryError:
                more = more_recomputed(self.model)
                if more is None:
                    raise BrimError(
                        "the device ran out of memory although every block is recomputed",
                        hint="lower data.tokens_per_row, or set optimizer.states = bfloat16",
                    ) from None
            self.step.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.model.recompute = more
            self.say(
                f"out of memory: {more.text_blocks} text and {more.vision_blocks} vision blocks "
                "are recomputed from now on, and the step is repeated"
            )

    def _arrived(self, results: list[tuple[_Sent, list[float]]]) -> None:
        """Record finished steps; a run of bad ones goes back to the last checkpoint."""
        for sent, (loss, norm) in results:
            self._record(sent, loss)
            good = norm == norm and abs(norm) != float("inf")
            self._bad = 0 if good else self._bad + 1
            if not good:
                self.say(
                    f"step {sent.number}: the gradient is not finite, its update was skipped "
                    f"(samples {_few(sent.samples)})"
                )
            self._report(sent, loss, norm)
            if self._bad >= self.config.train.max_bad_steps:
                self._go_back(sent)
                return

    def _go_back(self, sent: _Sent) -> None:
        newest = self.checkpoints.newest()
        self._readback.drain()
        if newest is None or self._returns == 2:
            raise Diverged(
                f"{self._bad} steps in a row had no finite gradient, the last was step "
                f"{sent.number} (samples {_few(sent.samples)})",
                hint="lower optimizer.learning_rate, or look at these samples",
            )
        self._returns += 1
        self._bad = 0
        self._load(newest)
        self.lr_factor /= 2
        self.say(f"back to step {self.done} with {self.lr_factor:g} of the learning rate")

    def _record(self, sent: _Sent, loss: float) -> None:
        counts = sent.outcome.counts
        self.records.step(
            Step(
                n=sent.number,
                t=sent.ended,
                wall=sent.ended - self._last_end,
                clock="opt0",
                profiled=int(sent.profiled),
                input_wait=sent.wait,
                batches=sent.rows,
                backward=sent.launch,
                backward_n=sent.rows,
                tokens=sent.rows * sent.length,
                pad_tokens=sent.rows * sent.length - counts.tokens,
                counted_batches=sent.rows,
                longest=counts.longest_document,
                documents=counts.documents,
                images=counts.images,
                patches=counts.patches,
                loss=loss,
            )
        )
        self._last_end = sent.ended

    def _report(self, sent: _Sent, loss: float, norm: float) -> None:
        window, counts = self._window, sent.outcome.counts
        window.steps += 1
        window.loss += loss
        window.wait += sent.wait
        window.tokens += counts.tokens
        window.images += counts.images
        window.samples += counts.documents
        window.flops += self._flops(counts)
        if (sent.number + 1) % self.config.train.logging_steps and sent.number + 1 < self.steps:
            return
        seconds = max(time.monotonic() - window.began, 1e-9)
        progress = Progress(
            step=sent.number + 1,
            steps=self.steps,
            loss=window.loss / window.steps,
            tokens_per_s=window.tokens / seconds,
            images_per_s=window.images / seconds,
            samples_per_s=window.samples / seconds,
            mfu=window.flops / seconds / self.peak if self.peak else None,
            input_wait=window.wait / seconds,
        )
        line = {name: getattr(progress, name) for name in Progress.__slots__}
        line |= {"lr": sent.lr, "grad_norm": norm, "tflops": window.flops / seconds / 1e12}
        self.records.metrics(line | _memory())
        self.show(progress)
        self._window = _Window()

    def _flops(self, counts: RowCounts) -> float:
        return flops.step(self.model.config, counts, self.trained).total

    def _periodic(self) -> None:
        table = self.config.train
        if table.eval_steps and self.done % table.eval_steps == 0:
            began = time.monotonic()
            loss = self.evaluate()
            if loss is not None:
                self.records.metrics({"step": self.done, "eval_loss": loss})
                self.say(f"step {self.done}: evaluation loss {loss:.4f}")
            self._last_end += time.monotonic() - began
        if table.save_steps and self.done % table.save_steps == 0 and self.done < self.steps:
            self._arrived(self._readback.drain())
            if self._bad == 0:
                self._save()


def more_recomputed(model: Qwen3VL) -> Recompute | None:
    """A quarter more of each tower's blocks; None when all are recomputed already."""
    text, vision = len(model.blocks), len(model.visual.blocks)
    now = model.recompute
    if now.text_blocks >= text and now.vision_blocks >= vision:
        return None
    return replace(
        now,
        text_blocks=min(text, now.text_blocks + -(-text // 4)),
        vision_blocks=min(vision, now.vision_blocks + -(-vision // 4)),
    )


def _memory() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    return {"peak_memory_bytes": torch.cuda.max_memory_allocated()}


def _few(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:8])) or "unknown"
    return f"{shown}, …" if len(samples) > 8 else shown
