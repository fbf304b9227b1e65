"""What ``brim tune -- COMMAND`` imports before the job starts."""

from __future__ import annotations

import subprocess
import sys


def test_tuning_a_command_never_imports_torch() -> None:
    code = (
        "import sys, brim.cli.tune, brim.tune.jobs, brim.tune.loop, brim.tune.state, "
        "brim.report.ladder; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
