#!/usr/bin/env python
"""Kill training runs at random and at named points, start them again, and look what is lost.

    python benchmarks/kills.py --kills 200

A run of a tiny model (one rank, two with DDP, two with FSDP2; gloo) saves every step or two.  It is
started, killed, started again, … until it comes to its end; then the next one.  After every kill:
the newest checkpoint is whole and no older than the newest before.  At the end: every loss that any
start recorded, and every byte of the last checkpoint (weights, optimizer, random states), are those
of a run that was never killed.  Ranks are forked from this process, so a start takes a third of a
second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
import torch.distributed.fsdp  # noqa: E402
from tests.train import ranked  # noqa: E402
from tests.train.deadly import deadly  # noqa: E402

from brim.train.parallel.ranks import join  # noqa: E402
from brim.train.saving import folders  # noqa: E402
from brim.train.saving.client import COMMAND  # noqa: E402

STEPS = 8
POINTS = (("fsync", 13), ("replace", 5), ("rename", 2), ("unlink", 3), ("mkdir", 1))
"""Calls of the process that writes, and about how many of them it makes in its first save."""


@dataclass(frozen=True)
class Form:
    """What is killed."""

    world: int
    data: str = "ddp"

    @property
    def name(self) -> str:
        return f"{self.world} {'rank' if self.world == 1 else 'ranks, ' + self.data}"


FORMS = (Form(1), Form(2), Form(2, "fsdp"))


@dataclass(frozen=True)
class Kill:
    """Who dies, and when: ``after`` seconds, or at the ``count``-th ``call`` of a writer."""

    who: str
    rank: int
    after: float = 0.0
    call: str = ""
    count: int = 0

    @property
    def kind(self) -> str:
        return f"{self.who} at {'os.' + self.call if self.call else 'a random time'}"


def chosen(rng: random.Random, form: Form, typical_s: float) -> Kill:
    """One kill; half of them fall into the writing of a checkpoint."""
    rank = rng.randrange(form.world)
    if rng.random() < 0.5:
        call, most = rng.choice(POINTS)
        who = rng.choice(("rank and writer", "writer"))
        return Kill(who, rank, call=call, count=rng.randint(1, most))
    who = "all" if form.world == 1 else rng.choice(("one rank", "all"))
    return Kill(who, rank, after=rng.uniform(0.05, 0.8) * typical_s)


class Start:
    """One start of a run: its ranks are children of this process."""

    def __init__(self, form: Form, output: Path, save_steps: int, kill: Kill | None) -> None:
        self.kill = kill
        port = _free_port()
        self.pids = {
            _fork(form, rank, port, output, save_steps, kill): rank for rank in range(form.world)
        }
        self.codes: dict[int, int] = {}

    def wait(self) -> dict[int, int]:
        """rank → exit code, negative for a signal; as torchrun does, one that fails ends all."""
        began = time.monotonic()
        asked = 0.0
        while self.pids:
            self._reap()
            now = time.monotonic()
            if self.kill and not self.kill.call and now - began > self.kill.after and not asked:
                self._end(signal.SIGKILL, only=self.kill.rank if self.kill.who != "all" else None)
                asked = now
            if any(self.codes.values()) and not asked:
                asked = now
            if asked and now - asked > 0.1:
                self._end(signal.SIGTERM)
            if asked and now - asked > 2.0:
                self._end(signal.SIGKILL)
            if now - began > 60:
                self._end(signal.SIGKILL)
                raise AssertionError("a start hangs")
            time.sleep(0.005)
        return self.codes

    def _reap(self) -> None:
        for pid, rank in list(self.pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                del self.pids[pid]

    def _end(self, number: int, only: int | None = None) -> None:
        for pid, rank in self.pids.items():
            if only is None or rank == only:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _fork(
    form: Form, rank: int, port: int, output: Path, save_steps: int, kill: Kill | None
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(output / f"log.rank{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if form.world > 1:
            os.environ |= {
                "RANK": str(rank), "WORLD_SIZE": str(form.world), "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(form.world), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }  # fmt: skip
        writer: Sequence[str] = COMMAND
        if kill and kill.call and kill.rank == rank:
            whom = "writer" if kill.who == "writer" else "both"
            writer = deadly(kill.call, kill.count, whom=whom)
        options = {
            "steps": STEPS, "data": form.data, "save_steps": save_steps, "writer": writer,
            "rows": 2,
        }  # fmt: skip
        finished, said = ranked.run(join(), str(output), options)
        print("\n".join(said))
        code = 0 if finished else 75
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def run_until_done(
    form: Form, output: Path, save_steps: int, rng: random.Random, typical_s: float, most: int
) -> Counter[str]:
    """Start, kill, start again; at most ``most`` kills.  Returns what was killed how often."""
    output.mkdir(parents=True)
    killed: Counter[str] = Counter()
    newest = 0
    for _ in range(10 * most + 10):
        kill = chosen(rng, form, typical_s) if killed.total() < most else None
        codes = Start(form, output, save_steps, kill).wait()
        newest = look(output, newest)
        if kill and (any(codes.values()) or kill.who == "writer"):
            died = any(code == -signal.SIGKILL for code in codes.values())
            if died or "ended with code -9" in (output / "log.rank0").read_text():
                killed[kill.kind] += 1
        if newest == STEPS:
            return killed
    raise AssertionError(f"no end: {output}")


def look(output: Path, before: int) -> int:
    """The step of the newest checkpoint, which must be whole; nothing may be lost."""
    checkpoints = output / "checkpoints"
    found = folders.finished(checkpoints)
    broken = [path.name for path in found if not folders.valid(path) or folders.damaged(path)]
    assert not broken, f"{output}: {broken} have a checkpoint's name and are none"
    newest = int(found[-1].name.removeprefix("step-")) if found else 0
    assert newest >= before, f"{output}: step {before} was there, now the newest is {newest}"
    return newest


def compare(output: Path, whole: Path) -> int:
    """Losses recorded by all starts and the last checkpoint against the run never killed."""
    expected = losses(whole)
    found = losses(output)
    assert found == expected, f"{output}: losses {found} instead of {expected}"
    last = f"checkpoints/{folders.name_of(STEPS)}"
    files, wanted = folders.manifest(output / last), folders.manifest(whole / last)
    assert files == wanted, f"{output}: the last checkpoint has other bytes"
    return len(found)


def losses(output: Path) -> dict[int, set[float]]:
    """Step → every loss that a start recorded for it."""
    found: dict[int, set[float]] = {}
    for path in output.glob("records/*/steps.rank*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # cut off by a kill
                values = json.loads(line)
                if "loss" in values:
                    found.setdefault(values.get("n", 0), set()).add(values["loss"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; 0: never")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep the runs' folders")
    args = parser.parse_args()
    torch.set_num_threads(1)
    root = Path(tempfile.mkdtemp(prefix="brim-kills-"))
    rng = random.Random(args.seed)
    began = time.monotonic()
    killed: Counter[str] = Counter()
    by_form: Counter[str] = Counter()
    typical: dict[Path, float] = {}
    runs = 0
    while killed.total() < args.kills:
        form, save_steps = FORMS[runs % len(FORMS)], 1 + runs // len(FORMS) % 2
        output = root / f"run-{runs}"
        whole = root / f"{form.world}-{form.data}-{save_steps}-whole"
        if whole not in typical:
            started = time.monotonic()
            assert not run_until_done(form, whole, save_steps, rng, 0.0, 0)
            typical[whole] = time.monotonic() - started
        most = min(12, args.kills - killed.total())
        found = run_until_done(form, output, save_steps, rng, typical[whole], most)
        compare(output, whole)
        killed += found
        by_form[form.name] += found.total()
        runs += 1
        seconds = time.monotonic() - began
        print(f"{killed.total():4} kills, {runs} runs, {seconds:.0f} s", flush=True)
        if not args.keep:
            shutil.rmtree(output)
        if args.seconds and seconds > args.seconds:
            break
    result = {
        "kills": killed.total(), "runs": runs, "lost": 0, "seed": args.seed,
        "seconds": round(time.monotonic() - began), "torch": torch.__version__,
        "by": dict(killed.most_common()), "forms": dict(by_form),
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if not args.keep:
        shutil.rmtree(root)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
