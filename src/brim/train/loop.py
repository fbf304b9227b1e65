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
from brim.train.failures import badsteps, memory
from brim.train.failures.badsteps import BadSteps, Verdict
from brim.train.failures.stragglers import Stragglers
from brim.train.failures.votes import Vote, Votes
from brim.train.readback import Readback
from brim.train.records import Records
from brim.train.schedule import learning_rate
from brim.train.signals import StopRequest, name_of
from brim.train.step import SUMMED, Outcome, TrainStep
from brim.train.watchdog import Phase, Watchdog
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
class _Between:
    """What the loop did since the step before, beside steps: seconds and times."""

    evaluation: float = 0.0
    evaluation_n: int = 0
    save: float = 0.0
    save_n: int = 0


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
    before: _Between


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
        self.ranks = step.parallel.ranks
        self._bad = BadSteps(config.train.max_bad_steps)
        self._votes = Votes(self.ranks)
        self._halving = memory.Halving()
        self._stragglers = Stragglers()
        self._names = self.ranks.gather(self.ranks.name)
        self._waited = 0.0
        self._beat: Callable[[Phase, int], None] = lambda _phase, _step: None
        self._saving = 0
        """Steps of the checkpoint under way; it counts when the last of them was good."""
        self._judged = 0
        """Steps whose gradient is known to be finite or not."""
        self._readback: Readback[_Sent] = Readback(exact=self.ranks.world > 1)
        self._window = _Window()
        self._between = _Between()
        self._last_end = time.monotonic()
        self._profiler = ProfilerWindow(
            records.folder / f"trace.rank{self.ranks.rank}.json.gz",
            enabled=torch.cuda.is_available(),
        )

    def run(self) -> bool:
        """Train to the end (True) or until a signal asks to stop (False); then save."""
        self._resume()
        timeout = self.config.train.hang_timeout_s
        watchdog = Watchdog(self.records.folder, timeout, self.ranks.rank) if timeout else None
        if watchdog:
            self._beat = watchdog.beat
        try:
            if self.config.train.save_steps or self.config.train.save_at_end:
                self.checkpoints.prepare(self.model, self.step.optimizer, self.step.scale)
            return self._run()
        finally:
            self.checkpoints.close()
            if watchdog:
                watchdog.close()

    def _run(self) -> bool:
        stop = 0
        with StopRequest() as request:
            self._window = _Window()
            self._last_end = time.monotonic()
            while self.done < self.steps and not stop:
                self._one()
                self._periodic()
                self._beat(Phase.BETWEEN, self.done)
                stop = self._heard(self._votes.cast(self._vote(request)))
                if self.done == self.steps:
                    # results on their way may still send the run back
                    self._arrived(self._readback.drain())
            stop = max(stop, self._heard(self._votes.heard()))
        self._profiler.close()
        finished = self.done == self.steps
        if not finished:
            self._arrived(self._readback.drain())
            self._tell(f"{name_of(stop)}: saving step {self.done} and stopping")
        self._settle()
        if not finished or self.config.train.save_at_end:
            self._save()
            if not self._settle():
                self._save()  # no later one will make up for it
                self._settle()
        return finished

    def _vote(self, request: StopRequest) -> Vote:
        recompute = self.model.recompute
        return Vote(
            stop=request.number,
            saved=self.checkpoints.progress(),
            recomputed=(recompute.text_blocks, recompute.vision_blocks),
            busy=(self.step.arrival.seconds(),),
            waited=(self._waited,),
        )

    def _heard(self, vote: Vote | None) -> int:
        """Do what all ranks agreed on; the number of the signal that stops them, or 0."""
        if vote is None:
            return 0
        memory.at_least(self.model, *vote.recomputed)
        late = self._stragglers.add(vote.busy, vote.waited)
        if late is not None:
            self._tell(f"{self._names[late.rank]} {late}")
        if self._judged >= self._saving:
            self._written(lambda: self.checkpoints.agreed(vote.saved))
        return vote.stop

    def _tell(self, line: str) -> None:
        """What all ranks know, said once."""
        if self.ranks.first:
            self.say(line)

    def export(self, folder: Path, companions: Path | None) -> None:
        """Write the trained model as a Hugging Face folder; with adapters, those as a PEFT folder
        beside it, and the model with them merged."""
        first = self.ranks.first
        if lora_layers(self.model):
            with self.step.parallel.whole():
                if first:
                    save_adapter(
                        self.model, folder.with_name("adapter"), base=str(companions or "")
                    )
                merge(self.model)
                if first:
                    save(self.model, folder, companions=companions)
        else:
            save(self.model, folder, companions=companions, writes=first)
        self.ranks.barrier()

    @torch.no_grad()
    def evaluate(self) -> float | None:
        """Mean cross-entropy over the evaluation rows; None without any."""
        total, scored = None, 0
        for row in self.rows.evaluation():
            loss = self.model(row).double()
            total = loss if total is None else total + loss
            scored += row.counts.scored
        self.step.parallel.settle()
        if total is None:
            return None
        sums = torch.stack([total, torch.full_like(total, scored)])
        summed, count = self.step.parallel.total(sums).tolist()
        return summed / count if count else None

    def _resume(self) -> None:
        learnt = memory.remembered(self.checkpoints.folder, self.rows.identity())
        memory.at_least(self.model, learnt.text_blocks, learnt.vision_blocks)
        newest = self.checkpoints.newest()
        if newest is not None and not self.config.train.resume:
            # the run's own would be taken for older ones, and deleted first
            raise ConfigError(
                f"train.resume is false, and {newest} belongs to another run",
                hint="set another output_dir, or delete that run's checkpoints",
            )
        if newest is not None:
            self._load(newest)
            self._tell(f"resumed after step {self.done} from {newest}")

    def _load(self, path: Path) -> None:
        if self.checkpoints.kept(path)["data"] != self.rows.identity():
            raise ConfigError(
                f"the data or its settings have changed since {path} was written",
                hint="resume with the same sources, seed, tokens_per_row and rows_per_step, or "
                "set another output_dir",
            )
        state = self.checkpoints.load(path, self.model, self.step.optimizer, self.step.scale)
        self.done = self._judged = state["step"]
        self.lr_factor = state["lr_factor"]

    def _save(self) -> None:
        """Begin a checkpoint of the steps done; at most one is under way."""
        began = time.monotonic()
        self._beat(Phase.SAVING, self.done)
        self._settle()
        extra = {"lr_factor": self.lr_factor, "data": self.rows.identity()}
        self._saving = self.done
        self._written(
            lambda: self.checkpoints.start(
                self.done, self.model, self.step.optimizer, self.step.scale, extra
            )
        )
        self._between.save += time.monotonic() - began
        self._between.save_n += 1

    def _settle(self) -> bool:
        """Wait until no checkpoint is under way; whether the last one was written."""
        if self.checkpoints.saving:
            self._arrived(self._readback.drain())
        return self._written(self.checkpoints.finish)

    def _written(self, action: Callable[[], object]) -> bool:
        try:
            action()
        except NotWritten as error:
            self._tell(f"{error}; training goes on, the next checkpoint will try again")
            return False
        return True

    def _one(self) -> None:
        began = time.monotonic()
        self._beat(Phase.ROWS, self.done)
        with torch.profiler.record_function("brim: next_batch"):  # what a trace knows as a wait
            rows = self.rows.fetch(self.done)
        fetched = time.monotonic()
        self._beat(Phase.STEP, self.done)
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
            before=self._between,
        )
        self._between = _Between()
        self.done += 1
        self._waited = fetched - began
        totals = () if outcome.totals is None else outcome.totals.unbind()
        self._arrived(self._readback.push(sent, outcome.loss, outcome.norm, *totals))
        self._profiler.after_step()

    def _attempt(self, rows: Sequence[PackedBatch], lr: float) -> Outcome:
        """The step; when memory runs out, again with more blocks recomputed, at last with its rows
        cut in two.

        Memory runs out before the update, which allocates nothing, so the step can be repeated.
        """
        rows = self._halving.planned(rows)
        while True:
            try:
                return self.step(rows, lr)
            except torch.OutOfMemoryError:
                pass  # what the traceback holds is freed before the step is repeated
            self.step.parallel.clear(self.step.parameters)
            torch.cuda.empty_cache()
            more = memory.more_recomputed(self.model)
            if more is None:
                rows = self._halved(rows)
            else:
                self._recompute(more)

    def _recompute(self, more: Recompute) -> None:
        memory.remember(self.checkpoints.folder, more, self.rows.identity())
        if self.step.sent.anything:
            raise memory.RestartNeeded(
                f"{self.ranks.name} ran out of memory with the step half sent; from its next "
                f"start on the run recomputes {more.text_blocks} text and "
                f"{more.vision_blocks} vision blocks",
                hint="torchrun --max-restarts=3 starts it again by itself",
            )
        self.model.recompute = more
        host = ", their inputs wait on the host" if more.offload else ""
        self.say(
            f"out of memory: {more.text_blocks} text and {more.vision_blocks} vision blocks "
            f"are recomputed from now on{host}, and the step is repeated"
        )

    def _halved(self, rows: Sequence[PackedBatch]) -> Sequence[PackedBatch]:
        """On several ranks only where they meet once a step, and have not met yet."""
        possible = self.step.parallel.own_rows and not self.step.sent.anything
        parts = memory.halves(rows) if possible else None
        if parts is None:
            raise BrimError(
                "the device ran out of memory although every block is recomputed",
                hint="lower data.tokens_per_row, or set optimizer.states = 8bit",
            )
        self._halving.happened(self.done)
        often = "; all rows are cut from now on" if self._halving.always else ""
        self.say(
            f"out of memory: step {self.done} is repeated with its rows cut in two{often} (lower "
            "data.tokens_per_row)"
        )
        return parts

    def _arrived(self, results: list[tuple[_Sent, list[float]]]) -> None:
        """Record finished steps; a run of bad ones goes back to the last checkpoint."""
        for sent, (loss, norm, *totals) in results:
            self._record(sent, loss)
            verdict = self._bad.judge(norm)
            self._judged = sent.number + 1
            if verdict is not Verdict.GOOD:
                self._bad_step(sent, loss)
            self._report(sent, loss, norm, totals)
            if verdict in (Verdict.BACK, Verdict.STOP):
                self._go_back(sent, verdict)
                return

    def _bad_step(self, sent: _Sent, loss: float) -> None:
        badsteps.note(self.records.folder, self.ranks.rank, sent.number, loss, sent.samples)
        self._tell(
            f"step {sent.number}: the gradient is not finite, its update was skipped "
            f"(samples {_few(sent.samples)})"
        )
        if self._judged == self._saving:
            self.checkpoints.drop()  # a run that goes back should not end up here again

    def _go_back(self, sent: _Sent, verdict: Verdict) -> None:
        self._readback.drain()
        if self._judged < self._saving:
            self.checkpoints.drop()
        self._written(self.checkpoints.finish)
        newest = self.checkpoints.newest()
        if newest is None or verdict is Verdict.STOP:
            raise Diverged(
                f"{self._bad.row} steps in a row had no finite gradient, the last was step "
                f"{sent.number} (samples {_few(sent.samples)})",
                hint="lower optimizer.learning_rate, or look at the samples that "
                f"{self.records.folder}/bad-steps.rank*.jsonl lists",
            )
        self._bad.gone_back()
        lower = self.lr_factor / 2
        self._load(newest)
        self.lr_factor = min(self.lr_factor, lower)
        self._tell(f"back to step {self.done} with {self.lr_factor:g} of the learning rate")

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
                evaluation=sent.before.evaluation,
                evaluation_n=sent.before.evaluation_n,
                save=sent.before.save,
                save_n=sent.before.save_n,
            )
        )
        self._last_end = sent.ended

    def _report(self, sent: _Sent, loss: float, norm: float, totals: Sequence[float]) -> None:
        """``totals``: the counts of all ranks; empty on one."""
        window, counts = self._window, sent.outcome.counts
        if totals:
            counts = replace(counts, **dict(zip(SUMMED, map(int, totals), strict=True)))
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
            mfu=window.flops / seconds / self.peak / self.ranks.world if self.peak else None,
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
            self._beat(Phase.EVALUATION, self.done)
            loss = self.evaluate()
            if loss is not None:
                self.records.metrics({"step": self.done, "eval_loss": loss})
                self._tell(f"step {self.done}: evaluation loss {loss:.4f}")
            self._between.evaluation += time.monotonic() - began
            self._between.evaluation_n += 1
        if table.save_steps and self.done % table.save_steps == 0 and self.done < self.steps:
            self._save()


def _memory() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    return {"peak_memory_bytes": torch.cuda.max_memory_allocated()}


def _few(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:8])) or "unknown"
    return f"{shown}, …" if len(samples) > 8 else shown
