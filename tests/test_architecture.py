"""The house rules that a machine can check."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "brim"

# A folder imports only itself and folders before it.
ORDER = (
    "errors", "units", "files",
    "record", "hardware", "diagnose", "observe", "report", "data", "model", "train", "tune", "cli",
    "api",
)  # fmt: skip
WITHOUT_TORCH = (
    "errors", "units", "files", "record", "hardware", "diagnose", "report", "cli", "api",
)  # fmt: skip
# `train` writes the same records through `record`; `tune` starts jobs as processes.
FORBIDDEN = {"train": {"observe", "tune", "report"}}


def _sources() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def _imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """Dotted names that ``path`` imports; with ``top_level`` only those run at import time."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def _house(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def _edges() -> Iterator[tuple[Path, str, str]]:
    for path in _sources():
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "brim" and len(parts) > 1 and parts[1] in ORDER:
                yield path, _house(path), parts[1]


def test_folders_import_only_themselves_and_folders_before_them() -> None:
    for path, importer, imported in _edges():
        if importer in ORDER:
            assert ORDER.index(imported) <= ORDER.index(importer), f"{path} imports {imported}"
        assert imported not in FORBIDDEN.get(importer, set()), f"{path} imports {imported}"


def test_every_folder_has_its_place_in_the_order() -> None:
    known = {*ORDER, "__init__", "__main__"}
    assert {_house(p) for p in _sources()} <= known


@pytest.mark.parametrize("folder", WITHOUT_TORCH)
def test_a_laptop_without_torch_can_read_and_show_a_run(folder: str) -> None:
    heavy = {"torch", "transformers", "datasets", "PIL"}
    for path in _sources():
        if _house(path) == folder:
            for name in _imports(path):
                assert name.split(".")[0] not in heavy, f"{path} imports {name}"


def test_the_hooks_import_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"sitecustomize"}
    for path in (SRC / "observe" / "inject").rglob("*.py"):
        for name in _imports(path, top_level=True):
            first = name.split(".")[0]
            assert first in allowed or first.startswith("_brim"), f"{path} imports {name}"


def test_there_is_no_import_circle() -> None:
    modules = {".".join(p.relative_to(SRC.parent).with_suffix("").parts): p for p in _sources()}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = {
        name: {
            target
            for found in _imports(path, top_level=True)
            for target in (found, found.rpartition(".")[0])
            if target in modules and target != name
        }
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_file_is_longer_than_600_lines() -> None:
    for path in _sources():
        assert path.read_text().count("\n") <= 600, path


def test_help_does_not_import_torch_or_numpy() -> None:
    program = (
        "import sys\n"
        "from brim.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'transformers', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "diagnose" in done.stdout
