"""``brim.diagnose`` and ``brim.observe`` are packages and functions at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import brim
from brim.errors import InputError

RUN = Path(__file__).parents[1] / "fixtures" / "runs" / "cpu-main-process"


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import brim",
        "import brim.diagnose.causes, brim",
        "from brim.diagnose import gain; import brim",
    ],
)
def test_the_verb_can_be_called_whatever_was_imported_before(imports: str) -> None:
    code = f"{imports}\nprint(callable(brim.diagnose), brim.diagnose.causes.COMPUTE)"
    if "causes" not in imports:
        code = f"{imports}\nimport brim.diagnose.causes\nprint(callable(brim.diagnose), 'compute')"
    assert _python(code) == "True compute"


def test_importing_brim_imports_nothing_that_takes_time() -> None:
    heavy = "{'torch', 'numpy', 'msgspec', 'rich', 'psutil'} & set(sys.modules)"
    assert _python(f"import sys, brim; brim.diagnose; brim.observe; print({heavy})") == "set()"


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'brim' has no attribute 'diagnoze'"):
        brim.diagnoze  # noqa: B018


def test_a_run_directory_is_judged_as_on_the_command_line(tmp_path: Path) -> None:
    import shutil

    from brim.cli.load import load_diagnosis

    folder = shutil.copytree(RUN, tmp_path / "run")
    found = brim.diagnose(str(folder))  # type: ignore[operator]
    assert found.findings[0].cause == "input.main-process"
    assert load_diagnosis([folder]) == found  # what it left there
    assert brim.diagnose([folder]) == found  # type: ignore[operator]


def test_steps_can_be_left_out_at_the_start(tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(RUN, tmp_path / "run")
    by_itself = brim.diagnose(folder)  # type: ignore[operator]
    later = brim.diagnose(folder, warmup=40)  # type: ignore[operator]
    assert later.window.steps < by_itself.window.steps


def test_what_is_no_run_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        brim.diagnose(tmp_path / "nothing")  # type: ignore[operator]
