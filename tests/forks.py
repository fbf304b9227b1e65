"""Python scripts as processes of their own, without the seconds that imports take.

A server imports torch (and more, when asked) once; each script is a fork of it that puts on its
environment, working directory and path, runs the ``sitecustomize`` of its ``PYTHONPATH`` as any
interpreter does at its start, becomes ``__main__``, and ends as an interpreter ends.  For tests
whose point is what a script does; how Python starts is tested with Python.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import NoReturn

AT_IMPORT = {
    # a pool of threads that an import starts is lost in a fork
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # a pool of compilers, and compiling what asks which vector instructions compile: 15 seconds
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
}
"""Variables that libraries read once, when they are imported."""
TORCH = ("torch", "torch._dynamo")
"""The first step of an optimizer imports Dynamo: as long as torch itself."""
TRANSFORMERS = (*TORCH, "transformers.trainer", "transformers.models.qwen3_vl.modeling_qwen3_vl")


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a fork becomes."""

    argv: Sequence[str]
    """The script's path and its arguments."""
    cwd: Path
    env: Mapping[str, str]
    out: Path
    """Standard output goes into this file."""
    err: Path


class Forks:
    """The server's other end; not for several threads."""

    def __init__(self, *modules: str) -> None:
        """``modules``: what every script finds imported."""
        self._server, end = Pipe()
        env = {**os.environ, **AT_IMPORT}
        env.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(end.fileno()), *modules], env=env,
            pass_fds=[end.fileno()], start_new_session=True,
        )  # fmt: skip
        end.close()
        self._codes: dict[int, int] = {}
        self.cpu_s = 0.0
        """What all scripts that have ended have taken, with the processes that they waited for."""

    def ready(self) -> None:
        """Wait until all is imported."""
        with tempfile.TemporaryDirectory() as folder:
            nothing = Path(folder, "nothing.py")
            nothing.touch()
            self.run([str(nothing)], cwd=Path(folder), env=os.environ)

    def start(self, script: Script) -> int:
        """The script's process id; it leads a process group of its own."""
        self._server.send(script)
        return self._told("started", timeout=120)

    def wait(self, pid: int, timeout: float) -> int:
        """The exit code, negative for a signal.

        Raises :class:`subprocess.TimeoutExpired` for a script that takes longer, and kills it.
        """
        while pid not in self._codes:
            try:
                self._told("ended", timeout)
            except TimeoutError:
                self.kill(pid)
                raise subprocess.TimeoutExpired(f"process {pid}", timeout) from None
        return self._codes.pop(pid)

    def kill(self, pid: int) -> None:
        """End a script and what it has started; one that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        ranks: int = 1,
        timeout: float = 120,
    ) -> list[subprocess.CompletedProcess[str]]:
        """A script on some ranks, as :func:`subprocess.run` with ``capture_output`` for each."""
        met = meeting(ranks) if ranks > 1 else contextlib.nullcontext([dict[str, str]()])
        with tempfile.TemporaryDirectory() as folder, met as variables:
            outs = [(Path(folder, f"{r}.out"), Path(folder, f"{r}.err")) for r in range(ranks)]
            pids = [
                self.start(Script(argv=argv, cwd=cwd, env={**env, **more}, out=out, err=err))
                for more, (out, err) in zip(variables, outs, strict=True)
            ]
            try:
                codes = [self.wait(pid, timeout) for pid in pids]
            finally:  # of some that wait for another, say
                for pid in pids:
                    self.kill(pid)
            return [
                subprocess.CompletedProcess([*argv], code, out.read_text(), err.read_text())
                for code, (out, err) in zip(codes, outs, strict=True)
            ]

    def close(self) -> None:
        """End the server."""
        self._server.close()
        self._process.wait(30)

    def _told(self, wanted: str, timeout: float) -> int:
        """Take what the server says until it is ``wanted``: the process that it speaks of."""
        while True:
            if not self._server.poll(timeout):
                raise TimeoutError(f"no script has {wanted} within {timeout:g} s")
            said, pid, code, cpu_s = self._server.recv()
            if said == "ended":
                self._codes[pid] = code
                self.cpu_s += cpu_s
            if said == wanted:
                return int(pid)


@contextlib.contextmanager
def meeting(ranks: int) -> Iterator[list[dict[str, str]]]:
    """The variables of each rank, as torchrun sets them.

    The ranks meet at a store of this process: its port is bound before anybody is told of it, so
    nobody else can take it meanwhile.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        for rank in range(ranks)
    ]  # fmt: skip
    del store


def _serve(end: Connection) -> Script | None:
    """In the server: None, when nobody asks any more.  In each fork: its script."""
    running: dict[int, int] = {}  # file descriptor of a process → its id
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            for ready in wait([end, *running]):
                if isinstance(ready, int):
                    end.send(_ended(running.pop(ready), ready))
                    continue
                script: Script = end.recv()
                pid = os.fork()
                if not pid:
                    end.close()
                    return script
                running[os.pidfd_open(pid)] = pid
                end.send(("started", pid, 0, 0.0))
    return None


def _ended(pid: int, fd: int) -> tuple[str, int, int, float]:
    os.close(fd)
    _, status, used = os.wait4(pid, 0)
    return "ended", pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _put_on(script: Script) -> None:
    """What differs between the server and an interpreter that was started for the script."""
    os.setsid()
    for path, number in ((os.devnull, 0), (script.out, 1), (script.err, 2)):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(script.cwd)
    os.environ.clear()
    os.environ.update(script.env)
    sys.argv = list(script.argv)
    sys.path[:1] = filter(None, script.env.get("PYTHONPATH", "").split(os.pathsep))
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    sys.path.insert(0, str(Path(script.argv[0]).resolve().parent))


def _become(path: str) -> int:
    """Run a script in the real ``__main__``, which multiprocessing and pickle look at."""
    main = vars(sys.modules["__main__"])
    main.clear()
    main |= {"__name__": "__main__", "__file__": path, "__builtins__": builtins, "__spec__": None}
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), main)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """As an interpreter ends, but without taking its modules apart: that takes up to a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def server(end: Connection, modules: Sequence[str]) -> None:
    """Of what ``Forks`` starts, and all that its forks do."""
    for name in modules:
        importlib.import_module(name)
    script = _serve(end)
    if script is None:
        _end(0)
    _put_on(script)
    _end(_become(script.argv[0]))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    # under its own name: the script's is __main__
    from tests import forks

    forks.server(Connection(int(sys.argv[1])), sys.argv[2:])
