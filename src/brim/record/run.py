"""The run directory: what a measured job leaves, and nothing secret."""

from __future__ import annotations

import contextlib
import datetime
import errno
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from brim.errors import InputError
from brim.files import write_atomic
from brim.record import devices
from brim.record.applied import Applied, file_name, read_applied
from brim.record.devices import Recording
from brim.record.lines import read_lines
from brim.record.loader import LoaderRecord, read_loader
from brim.record.steps import Process, Stack, read_process, read_stacks
from brim.record.workers import WorkerLine, read_workers

VERSION = 1


class RunInfo(msgspec.Struct, kw_only=True):
    """``run.json``, written before the job starts and once more when it has ended."""

    version: int = VERSION
    brim: str = ""
    command: list[str] = []
    started: str = ""
    host: dict[str, Any] = {}
    exit_code: int | None = None
    """The job's; None while it runs, or when the recording was cut off."""
    wall_s: float | None = None


class Run(msgspec.Struct, kw_only=True):
    """A whole run directory in memory."""

    folder: Path
    info: RunInfo
    processes: list[Process]
    """The training process of each rank, by rank."""
    workers: dict[int, list[WorkerLine]] = {}
    worker_stacks: dict[int, dict[str, Stack]] = {}
    loaders: dict[int, LoaderRecord] = {}
    """brim's own loader, of the ranks that have one."""
    recording: Recording | None = None
    """Devices and host beside the job; None when nothing was sampled."""
    traces: list[Path] = []
    applied: dict[int, Applied] = {}
    """By rank, what became of the settings that the job was started with."""
    notes: list[str] = []


def create(root: Path, command: Sequence[str], host: dict[str, Any], version: str) -> Path:
    """A new folder ``runs/<time>-<name>`` that only its owner can read, with its ``run.json``."""
    now = datetime.datetime.now()
    name = f"{now:%Y-%m-%dT%H-%M-%S}-{slug(command)}"
    folder = root / name
    for attempt in range(1, 1000):
        try:
            folder.mkdir(mode=0o700, parents=True)
            break
        except FileExistsError:
            folder = root / f"{name}.{attempt}"
    else:
        raise FileExistsError(errno.EEXIST, "a thousand runs began in this second", str(folder))
    _begin(folder, command, host, version)
    return folder


def create_at(folder: Path, command: Sequence[str], host: dict[str, Any], version: str) -> None:
    """Make ``folder`` itself the run directory of a program that is running already.

    Raises :class:`InputError` when it holds a run.
    """
    if is_run(folder):
        raise InputError(f"{folder}: holds a run already", hint="give each run a folder of its own")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _begin(folder, command, host, version)


def _begin(folder: Path, command: Sequence[str], host: dict[str, Any], version: str) -> None:
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    save_info(folder, RunInfo(brim=version, command=scrub(command), started=started, host=host))


def save_info(folder: Path, info: RunInfo) -> None:
    write_atomic(folder / "run.json", msgspec.json.format(msgspec.json.encode(info), indent=2))


def is_measured(folder: Path) -> bool:
    """Have all training processes of this host recorded what they were asked for?"""
    marks = len(list(folder.glob(".measured.*")))
    if not marks:
        return False
    headers = [p.header for p in map(read_process, folder.glob("steps.*.jsonl")) if p]
    local = max((int(h.env.get("LOCAL_WORLD_SIZE", 1)) for h in headers), default=1)
    return marks >= local


def is_ending(folder: Path) -> bool:
    """Are all processes that were measured on their way out?"""
    measured = {path.suffix for path in folder.glob(".measured.*")}
    return measured <= {path.suffix for path in folder.glob(".ending.*")}


def finish(folder: Path, *, exit_code: int, wall_s: float) -> None:
    """Add what only the end knows to ``run.json``; a full disk leaves it as it was, and a folder
    that the job removed stays removed."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        info = msgspec.json.decode((folder / "run.json").read_bytes(), type=RunInfo)
        info.exit_code, info.wall_s = exit_code, wall_s
        save_info(folder, info)


def slug(command: Sequence[str]) -> str:
    """A name for a command: ``python -m my.train --x`` → ``my-train``."""
    clean = scrub(command)
    words = [w for w in clean if not w.startswith("-") and "=" not in w and HIDDEN not in w]
    scripts = [w for w in words if w.endswith((".py", ".sh", ".yaml", ".toml"))]
    word = (scripts or words[1:2] or words or ["job"])[0]
    stem = Path(word).stem if scripts else word.replace(".", "-")
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:40] or "job"


HIDDEN = "***"
_NAME = r"(?:key|token(?!i[sz])|secret|passw|passphrase|credential|auth)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""([\w.-]*{_NAME}[\w.-]*["']?\s*[:=]\s*["']?)((?:bearer\s+|basic\s+)?[^\s"'&,;}}]+)""",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|AIza|eyJ)[A-Za-z0-9_.-]{8,}"
)
_URL_LOGIN = re.compile(r"(\w+://)[^/\s]*@")


def scrub(command: Sequence[str]) -> list[str]:
    """The command with everything that may be a secret replaced by ``***``."""
    clean: list[str] = []
    hide_next = False
    for word in command:
        if hide_next and not word.startswith("-"):
            clean.append(word if _is_count(clean[-1], word) else HIDDEN)
            hide_next = False
            continue
        hide_next = word.startswith("-") and "=" not in word and _is_secret(word)
        clean.append(_scrubbed(word))
    return clean


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name))


def _is_count(name: str, value: str) -> bool:
    """``--max-tokens 4096`` is a number of tokens and no token."""
    return value.isdigit() and "tokens" in name.lower()


def _scrubbed(word: str) -> str:
    flag, equals, value = word.partition("=")
    if equals and _is_secret(flag) and "://" not in flag and not _is_count(flag, value):
        return f"{flag}={HIDDEN}"
    word = _SECRET_VALUE.sub(HIDDEN, _URL_LOGIN.sub(rf"\1{HIDDEN}@", word))
    return _ASSIGNED.sub(lambda m: m[0] if _is_count(m[1], m[2]) else m[1] + HIDDEN, word)


def is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def read_run(folder: Path) -> Run:
    """Raises :class:`InputError` when ``folder`` is no run directory."""
    path = folder / "run.json"
    try:
        info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    except FileNotFoundError:
        raise InputError(f"{folder}: no run directory (it has no run.json)") from None
    except (msgspec.DecodeError, OSError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    found = [p for p in map(read_process, sorted(folder.glob("steps.*.jsonl"))) if p]
    ranks = _training_processes(found)
    notes = [] if ranks else [_why_nothing(folder)]
    by_rank = {p.header.rank: p for p in ranks}
    return Run(
        folder=folder,
        info=info,
        processes=ranks,
        workers={r: _workers(folder, p) for r, p in by_rank.items()},
        worker_stacks={r: read_stacks(folder / f"stacks.workers.rank{r}.jsonl") for r in by_rank},
        loaders={r: _loader(folder, p) for r, p in by_rank.items()},
        recording=_recording(folder),
        traces=sorted(folder.glob("trace.rank*.json.gz")),
        applied={r: read_applied(folder / file_name(r)) for r in by_rank},
        notes=notes,
    )


def _why_nothing(folder: Path) -> str:
    """What the hooks noted before there was anything to measure."""
    path = folder / "processes.jsonl"
    kinds = Counter(kind for kind, _ in read_lines(path)) if path.exists() else Counter[str]()
    if kinds["torch"]:
        return "torch was imported, but no optimizer step, backward pass or loader batch was seen"
    if kinds["python"]:
        return "Python ran, but torch was never imported"
    return (
        "brim's hooks were loaded in no process: the command starts no Python, or one that "
        "ignores PYTHONPATH (python -I, -E or -S), or one older than 3.7"
    )


def _training_processes(found: Sequence[Process]) -> list[Process]:
    """For each rank the process that trained: the one with the most steps."""
    best: dict[int, Process] = {}
    for process in found:
        rank = process.header.rank
        if rank not in best or _weight(process) > _weight(best[rank]):
            best[rank] = process
    return [best[rank] for rank in sorted(best)]


def _weight(process: Process) -> tuple[int, int]:
    return sum(s.clock.startswith("opt") for s in process.steps), len(process.steps)


def _workers(folder: Path, process: Process) -> list[WorkerLine]:
    """Lines from this process's time on: an earlier job of the rank is another story."""
    lines = read_workers(folder / f"workers.rank{process.header.rank}.jsonl")
    return [line for line in lines if line.t >= process.header.t]


def _loader(folder: Path, process: Process) -> LoaderRecord:
    """From this process's time on, as for the workers."""
    found = read_loader(folder / f"loader.rank{process.header.rank}.jsonl")
    begin = process.header.t
    return LoaderRecord(
        windows=[w for w in found.windows if w.t >= begin],
        deaths=[d for d in found.deaths if d.t >= begin],
    )


def _recording(folder: Path) -> Recording | None:
    path = folder / devices.FILE
    try:
        return devices.read(path) if path.exists() else None
    except InputError:
        return None  # the job was killed before the sampler had said what it samples
