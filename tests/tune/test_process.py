"""Runs of commands: how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from brim.errors import InputError
from brim.tune import process
from brim.tune.process import End

# A launcher with a child in a session of its own, as torchrun's ranks may be; both ignore SIGTERM.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
open("pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""  # noqa: E501


def _run(code: str, tmp_path: Path, *, patience_s: float = 30.0, **watch: object) -> End:
    def measured() -> bool:
        return (tmp_path / "measured").exists()

    return process.run(
        [sys.executable, "-c", code],
        {**os.environ, "HERE": str(tmp_path)},
        tmp_path / "output.log",
        measured=watch.get("measured", measured),  # type: ignore[arg-type]
        progress=watch.get("progress", lambda: 0),  # type: ignore[arg-type]
        patience_s=patience_s,
    )


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("pass", End("exited", 0)),
        ("raise SystemExit(3)", End("exited", 3)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", End("exited", 137)),
    ],
)
def test_a_job_that_ends_by_itself_has_its_exit_code(code: str, end: End, tmp_path: Path) -> None:
    assert _run(code, tmp_path) == end


def test_a_job_is_ended_when_it_has_been_measured(tmp_path: Path) -> None:
    code = "import os, time; open(os.environ['HERE'] + '/measured', 'w'); time.sleep(600)"
    begin = time.monotonic()
    assert _run(code, tmp_path) == End("measured", None)
    assert time.monotonic() - begin < 60  # not the ten minutes that it would take


def test_its_output_and_its_errors_go_to_a_file_and_it_has_no_input(tmp_path: Path) -> None:
    code = "import sys; print(repr(sys.stdin.read())); print('oops', file=sys.stderr)"
    _run(code, tmp_path)
    assert (tmp_path / "output.log").read_text().splitlines() == ["''", "oops"]


def test_a_job_without_progress_hangs_and_one_with_progress_does_not(tmp_path: Path) -> None:
    assert _run("import time; time.sleep(600)", tmp_path, patience_s=0.5) == End("hung", None)
    assert _run(
        "import time; time.sleep(2)", tmp_path, patience_s=0.5, progress=time.monotonic
    ) == End("exited", 0)


def test_nothing_of_a_job_that_ignores_sigterm_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process, "GRACE_S", 0.5)
    end = _run(STUBBORN, tmp_path, measured=lambda: (tmp_path / "pids").exists())
    assert end == End("measured", None)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_ends_the_job_and_is_passed_on(tmp_path: Path) -> None:
    # a test before this one may have left a child of its own here, such as a resource tracker
    others = {p.pid for p in psutil.Process().children()}
    seen: set[int] = set()

    def interrupt() -> bool:
        seen.update({p.pid for p in psutil.Process().children()} - others)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run("import time; time.sleep(600)", tmp_path, measured=interrupt)
    assert len(seen) == 1
    assert not any(_lives(pid) for pid in seen)


def test_a_program_that_cannot_be_started_is_the_user_s_mistake(tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("no interpreter")
    script.chmod(0o755)
    with pytest.raises(InputError, match="cannot be run"):
        process.run([str(script)], dict(os.environ), tmp_path / "log", measured=lambda: False,
                    progress=lambda: 0, patience_s=1.0)  # fmt: skip


def test_a_run_in_a_thread_leaves_signals_alone(tmp_path: Path) -> None:
    ends: list[End] = []
    thread = threading.Thread(target=lambda: ends.append(_run("pass", tmp_path)))
    thread.start()
    thread.join()
    assert ends == [End("exited", 0)]
