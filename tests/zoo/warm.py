"""Runs scripts in forks of one process that has the heavy imports behind it.

    python warm.py DATA SCRIPT:ARM:RANKS …     → JSON: failed script → what it wrote

Thirty scripts so take half a minute instead of three.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import socket
import sys
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
AT_ONCE = 2
LONGEST_S = 45.0
"""Of one script.  A fork of a process with threads may hang, so one that takes longer is run once
more before it counts as failed."""


def main() -> int:
    warm_up()
    data, waiting = Path(sys.argv[1]), [job.split(":") for job in sys.argv[2:]]
    running: dict[str, list[BaseProcess]] = {}
    since: dict[str, float] = {}
    again: set[str] = set()
    failed: dict[str, str] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            script, arm, ranks = waiting.pop(0)
            running[script] = start(data, script, arm, int(ranks), steps=3)
            since[script] = time.monotonic()
        wait([process.sentinel for ranks_ in running.values() for process in ranks_], timeout=1)
        for script in [name for name, ranks_ in running.items() if _ended(ranks_)]:
            codes = [process.exitcode for process in running.pop(script)]
            if any(codes):
                failed[script] = f"exit codes {codes}: {(data / f'{script}.err').read_text()}"
        for script in [name for name in running if time.monotonic() - since[name] > LONGEST_S]:
            _kill(running.pop(script))
            if script in again:
                failed[script] = f"did not end within {LONGEST_S:g} s, twice"
            else:
                again.add(script)
                jobs = (job.split(":") for job in sys.argv[2:])
                waiting.append(next(job for job in jobs if job[0] == script))
    print(json.dumps(failed))
    return 1 if failed else 0


def warm_up() -> None:
    """The imports that every fork then has."""
    import torch
    import transformers

    assert torch.__version__
    assert transformers.Trainer


def start(data: Path, script: str, arm: str, ranks: int, steps: int) -> list[BaseProcess]:
    """One process per rank, each a fork of this one that becomes the script."""
    context = multiprocessing.get_context("fork")
    port = _free_port() if ranks > 1 else 0
    processes = [
        context.Process(target=_run, args=(data, script, arm, steps, rank, ranks, port))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return [*processes]


def _kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
        process.join()


def _ended(processes: list[BaseProcess]) -> bool:
    return not any(process.is_alive() for process in processes)


def _run(data: Path, script: str, arm: str, steps: int, rank: int, ranks: int, port: int) -> None:
    with (data / f"{script}.err").open("a") as errors, Path(os.devnull).open("w") as nothing:
        os.dup2(errors.fileno(), 2)
        os.dup2(nothing.fileno(), 1)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.chdir(data)
    sys.path.insert(0, str(SCRIPTS))
    sys.argv = [script, "--arm", arm, "--data", str(data), "--steps", str(steps)]
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
