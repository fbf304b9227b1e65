"""What ``brim watch`` costs: its own CPU share at 2 Hz for 8 devices, in a real terminal (a pty).

    python benchmarks/watch_cost.py [--devices recording] [--seconds 20]

The devices are the tests' fake NVML, so the cost of the driver's calls is not in the figure (on an
H200 ``benchmarks/h200_devices.py`` measures those); Python's, the view's and /proc's are.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import pty
import struct
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", default="eight", help="a name of tests/fakes/recordings.py")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=4.0)
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="of brim watch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "recording.json"
        recording.write_text(json.dumps(_recording(args.recording)))
        share, drawn = measure(recording, args.seconds, args.warm_up, args.options)
    print(
        json.dumps(
            {
                "devices": args.recording,
                "core_share": round(share, 5),
                "bytes_drawn_per_s": round(drawn),
                "goal": 0.01,
            }
        )
    )
    return 0 if share < 0.01 else 1


def measure(
    recording: Path | None, seconds: float, warm_up: float, options: list[str]
) -> tuple[float, float]:
    """(share of one core, bytes sent to the terminal per second) after the start-up.

    ``recording`` None: the devices of this machine.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        if recording is not None:
            paths.insert(0, str(ROOT / "tests" / "fakes"))
            os.environ["FAKE_NVML"] = str(recording.resolve())
            os.chdir(recording.parent)
        os.environ.update(PYTHONPATH=os.pathsep.join(paths), TERM="xterm-256color")
        os.execv(sys.executable, [sys.executable, "-m", "brim", "watch", *options])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    drawn = [0]
    threading.Thread(target=_drain, args=(terminal, drawn), daemon=True).start()
    try:
        time.sleep(warm_up)
        before, drawn_before, began = _cpu_s(pid), drawn[0], time.monotonic()
        time.sleep(seconds)
        wall = time.monotonic() - began
        return (_cpu_s(pid) - before) / wall, (drawn[0] - drawn_before) / wall
    finally:
        os.write(terminal, b"q")
        os.waitpid(pid, 0)


def _drain(terminal: int, drawn: list[int]) -> None:
    """Read what is drawn, as a terminal does."""
    while True:
        try:
            drawn[0] += len(os.read(terminal, 65536))
        except OSError:
            return


def _cpu_s(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS_PER_S


def _recording(name: str) -> dict[str, Any]:
    path = ROOT / "tests" / "fakes" / "recordings.py"
    spec = importlib.util.spec_from_file_location("recordings", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recording: dict[str, Any] = module.NAMES[name]()
    return recording


if __name__ == "__main__":
    raise SystemExit(main())
