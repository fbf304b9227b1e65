"""Runs a comparison of a Triton kernel in a process of its own.

Triton decides at its import whether it interprets, so the test's own process cannot do both.
"""

from __future__ import annotations

import os
import subprocess
import sys


def run_kernel(code: str, device: str, **environment: str) -> str:
    """All that ``code`` prints, given ``device`` as its argument."""
    done = subprocess.run(
        [sys.executable, "-c", code, device],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
