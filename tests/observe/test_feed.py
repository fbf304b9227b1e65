"""The feed of the view and the exporter, and the command that runs under the view."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from brim.observe.backend import Moment
from brim.observe.child import Child
from brim.observe.devices import Probe
from brim.observe.feed import Feed
from brim.record.devices import About, Device, DeviceSample, HostSample, Meaning, read


class Learning:
    """A backend that learns with its second sample that a field is absent."""

    name = "learning"
    driver = "1"
    meanings: dict[str, Meaning] = {}  # noqa: RUF012 - a protocol's attribute

    def __init__(self) -> None:
        self.samples = 0

    def open(self) -> None:
        """Always there."""

    def devices(self) -> list[Device]:
        absent = {"power_w": "not offered"} if self.samples >= 2 else {}
        return [Device(index=0, name="d", absent=absent)]

    def sample(self, moment: Moment) -> list[DeviceSample]:
        self.samples += 1
        return [DeviceSample(t=moment.t, mono=moment.mono, interval_s=moment.interval_s, device=0)]

    def close(self) -> None:
        raise OSError("the driver has gone")


def test_reasons_that_turn_up_later_reach_the_view_and_the_file(tmp_path: Path) -> None:
    seen: list[About] = []

    def consume(about: About, devices: list[DeviceSample], host: HostSample | None) -> None:
        seen.append(about)

    file = tmp_path / "a.jsonl"
    feed = Feed(Probe(backend=Learning()), 0.5, consume, record=file)
    for _ in range(4):
        feed.tick()
    feed.close()  # a driver that fails while leaving is nobody's news
    assert [bool(a.devices[0].absent) for a in seen] == [False, True, True, True]
    recording = read(file)
    assert recording.about.devices[0].absent == {"power_w": "not offered"}
    assert len(recording.samples) == 4
    assert file.read_bytes().count(b'"type":"about"') == 2


def test_a_file_that_cannot_be_written_is_known_at_once(tmp_path: Path) -> None:
    feed = Feed(Probe(backend=Learning()), 0.5, lambda *_: None, record=tmp_path / "no" / "f")
    assert "No such file" in feed.record_error
    feed.tick()


def _child(tmp_path: Path, script: str, **options: Any) -> Child:
    return Child([sys.executable, "-c", script], tmp_path, output=tmp_path / "out.log", **options)


def test_a_commands_output_and_code_are_kept(tmp_path: Path) -> None:
    child = _child(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)")
    assert child.wait() == 4 and child.ended()
    assert sorted((tmp_path / "out.log").read_text().split()) == ["err", "out"]


def test_a_command_that_a_signal_ended_has_128_more(tmp_path: Path) -> None:
    child = _child(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    assert child.wait() == 128 + signal.SIGTERM


def test_the_hooks_know_the_run_directory(tmp_path: Path) -> None:
    child = _child(tmp_path, "import os; print(os.environ['BRIM_RUN_DIR'])")
    child.wait()
    assert (tmp_path / "out.log").read_text().strip() == str(tmp_path)


def test_the_first_ctrl_c_while_waiting_reaches_the_whole_job(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('ready', flush=True)\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: p.wait(); sys.exit(9)\n"
    )
    child = _child(tmp_path, script)
    deadline = time.monotonic() + 20
    while "ready" not in (tmp_path / "out.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    assert child.wait() == 9


def test_without_an_output_file_the_streams_stay_the_terminals(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "pass"], tmp_path, output=None)
    assert child.wait() == 0 and list(tmp_path.glob("*.log")) == []
