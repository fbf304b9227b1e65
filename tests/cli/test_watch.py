"""``brim watch`` as a program, beside a fake driver, in pipes and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import recordings

from brim.cli.main import main
from brim.record.devices import FILE, read
from brim.record.run import read_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment in which an H200 is seen."""
    (tmp_path / "h200.json").write_text(json.dumps(recordings.h200()))
    return {
        **os.environ,
        "FAKE_NVML": str(tmp_path / "h200.json"),
        "PYTHONPATH": f"{ROOT / 'tests' / 'fakes'}:{ROOT / 'src'}",
        "TERM": "xterm-256color",
        "COLUMNS": "80",
    }


def _watch(env: dict[str, str], *words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "brim", "watch", *words],
        env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _until(ready: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_once_prints_a_table_with_tensor_activity_and_ends(
    env: dict[str, str], tmp_path: Path
) -> None:
    out, err = _watch(env, "--once", cwd=tmp_path).communicate(timeout=60)
    assert err == "" and "0   H200" in out and "tensor" in out
    assert re.search(r" 4[4-6]% ", out) and "\x1b" not in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_json_is_one_snapshot_with_meanings(env: dict[str, str], tmp_path: Path) -> None:
    out, _ = _watch(env, "--json", "-", cwd=tmp_path).communicate(timeout=60)
    snapshot = json.loads(out)
    assert snapshot["devices"][0]["sm_clock_mhz"] > 1000
    assert snapshot["about"]["fields"]["device.power_w"]["unit"] == "W"
    assert snapshot["host"]["cpu"] >= 0


def test_without_a_terminal_it_looks_once(env: dict[str, str], tmp_path: Path) -> None:
    process = _watch(env, cwd=tmp_path)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.count("brim watch") == 1


def test_a_headless_recording_ends_cleanly_on_sigterm(env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "devices.jsonl"
    process = _watch(env, "--headless", "--record", str(file), "--interval", "0.1", cwd=tmp_path)
    _until(lambda: file.exists() and file.read_bytes().count(b'"type":"device"') > 3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0
    recording = read(file)
    assert recording.about.devices[0].name == "NVIDIA H200" and len(recording.samples) > 3


def test_metrics_are_served_while_it_runs(env: dict[str, str], tmp_path: Path) -> None:
    process = _watch(env, "--headless", "--prometheus", "127.0.0.1:0", cwd=tmp_path)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/metrics", first)
        assert url is not None and "ssh -L" in process.stderr.readline()
        seen: list[str] = []

        def exported() -> bool:
            with urllib.request.urlopen(url[0], timeout=5) as answer:
                seen.append(answer.read().decode())
            return 'brim_device_tensor_active_ratio{device="0"}' in seen[-1]

        _until(exported)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


JOB = "import sys, time; print('said'); sys.stdout.flush(); time.sleep({s}); sys.exit({code})"


def test_a_command_keeps_its_output_and_its_exit_code_and_leaves_a_run(
    env: dict[str, str], tmp_path: Path
) -> None:
    job = [sys.executable, "-c", JOB.format(s=1.5, code=3)]
    process = _watch(env, "--", *job, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3 and out == "said\n" and "the job ended with 3" in err
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert run.info.exit_code == 3 and run.recording is not None
    assert len(run.recording.samples) >= 1


def test_a_view_that_is_killed_does_not_take_the_job_with_it(
    env: dict[str, str], tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    script = f"import time, pathlib; time.sleep(2); pathlib.Path({str(mark)!r}).write_text('done')"
    process = _watch(env, "--", sys.executable, "-c", script, cwd=tmp_path)
    _until(lambda: any((tmp_path / "runs").glob(f"*/{FILE}")))
    process.kill()
    process.communicate()
    _until(mark.exists, 20)


def test_a_run_directory_is_followed(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"command": ["x"]}')
    steps = [
        {"n": i, "t": time.monotonic() - 5 + i, "wall": 1.0, "clock": "opt0", "images": 8}
        for i in range(5)
    ]
    (folder / "steps.rank0.1.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    out, _ = _watch(env, str(folder), "--json", "-", cwd=tmp_path).communicate(timeout=60)
    job = json.loads(out)["job"]
    assert job["name"] == "run" and job["images_s"] == pytest.approx(8.0)


class Terminal:
    """``brim watch`` in a pty of 80×24."""

    def __init__(self, env: dict[str, str], cwd: Path, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            command = [sys.executable, "-m", "brim", "watch", *words]
            os.execve(sys.executable, command, {**env, "LINES": "24"})
        self.text = b""

    def read(self, until: bytes, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while until not in self.text:
            assert time.monotonic() < deadline, self.text[-2000:]
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += self._chunk()

    def end(self) -> int:
        """The exit code; reads until the terminal closes."""
        while chunk := self._chunk():
            self.text += chunk
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)

    def _chunk(self) -> bytes:
        try:
            return os.read(self.fd, 65536)
        except OSError:
            return b""


def test_in_a_terminal_the_view_draws_and_q_ends_it(env: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal(env, tmp_path)
    terminal.read(b"H200")
    os.write(terminal.fd, b"q")
    assert terminal.end() == 0
    # the alternate screen is left again
    assert terminal.text.rfind(b"\x1b[?1049l") > terminal.text.find(b"\x1b[?1049h") >= 0


def test_a_command_under_the_view_writes_to_a_file_and_ends_the_view(
    env: dict[str, str], tmp_path: Path
) -> None:
    job = [sys.executable, "-c", JOB.format(s=2.0, code=7)]
    terminal = Terminal(env, tmp_path, "--", *job)
    terminal.read(b"the job ended with 7")
    assert terminal.end() == 7
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "output.log").read_text() == "said\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--headless"], "does nothing alone"),
        (["--prometheus", "0.0.0.0:1", "--once"], "every network"),
        (["--once", "--", "true"], "look once"),
        (["absent"], "no run directory"),
        (["--interval", "0"], "between 0.1 and 3600"),
        (["--", "no-such-program-here"], "no such command"),
    ],
)
def test_wrong_usage_is_two_lines_and_exit_code_2(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code: Any = main(["watch", *words])
    except SystemExit as error:
        code = error.code
    assert code == 2 and said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_cannot_be_written_is_said_before_anything_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "absent" / "devices.jsonl"
    assert main(["watch", "--headless", "--record", str(file)]) == 2
    assert "No such file" in capsys.readouterr().err


def test_dcgm_without_a_host_engine_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.observe.dcgm._listens", lambda: False)
    assert main(["watch", "--once", "--dcgm"]) == 1
    assert "systemctl start nvidia-dcgm" in capsys.readouterr().err
