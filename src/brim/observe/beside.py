"""Samples devices and host beside a process that observes itself, until its input ends.

::

    python -m brim.observe.beside FOLDER PID
"""

from __future__ import annotations

import sys
from pathlib import Path

from brim.observe.devices import Sampler


def main(argv: list[str]) -> int:
    """``FOLDER PID``: where the records go, and the process whose tree is the job."""
    with Sampler(Path(argv[0]), job=int(argv[1]), with_root=True):
        sys.stdin.buffer.read()  # ends when the observed process closes it, or ends
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
