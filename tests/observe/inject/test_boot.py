"""Patching modules right after they are imported, without a trace."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Importable modules ``victim``, ``victim_broken`` and the package ``victim_pkg.inner``."""
    (tmp_path / "victim.py").write_text("VALUE = 1\ndef f():\n    return VALUE\n")
    (tmp_path / "victim_broken.py").write_text("raise RuntimeError('its own')\n")
    (tmp_path / "victim_pkg").mkdir()
    (tmp_path / "victim_pkg" / "__init__.py").touch()
    (tmp_path / "victim_pkg" / "inner.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in [n for n in sys.modules if n.startswith("victim")]:
        del sys.modules[name]


def _install(**callbacks: Any) -> None:
    from _brim_hooks.boot import PostImport

    PostImport({name.replace("__", "."): call for name, call in callbacks.items()}).install()


def test_a_module_is_patched_when_its_body_has_run(package: None) -> None:
    seen: list[tuple[ModuleType, int]] = []
    _install(victim=lambda m: seen.append((m, m.VALUE)), victim_pkg__inner=lambda m: None)
    assert seen == []
    import victim  # type: ignore[import-not-found]

    assert seen == [(victim, 1)]
    importlib.import_module("victim_pkg.inner")
    assert len(seen) == 1


def test_a_module_that_was_imported_before_is_patched_at_once(package: None) -> None:
    module = importlib.import_module("victim")
    seen: list[ModuleType] = []
    _install(victim=seen.append)
    assert seen == [module]


def test_the_loader_is_as_it_was_source_resources_and_pickling_work(package: None) -> None:
    _install(victim=lambda m: setattr(m, "patched", True))
    module = importlib.import_module("victim")
    assert module.patched
    assert "exec_module" not in vars(module.__loader__)
    assert inspect.getsource(module.f) == "def f():\n    return VALUE\n"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert pickle.loads(pickle.dumps(module.f))() == 1


def test_a_module_that_is_reloaded_works_as_before(package: None) -> None:
    calls: list[ModuleType] = []
    _install(victim=calls.append)
    module = importlib.import_module("victim")
    assert importlib.reload(module) is module
    assert len(calls) == 1


def test_a_patch_that_fails_leaves_the_import_unharmed(recorder: Any, package: None) -> None:
    _install(victim=lambda m: m.not_there)
    assert importlib.import_module("victim").VALUE == 1
    assert "not_there" in recorder._failures["victim"]


def test_a_module_that_cannot_be_imported_fails_with_its_own_error(package: None) -> None:
    calls: list[ModuleType] = []
    _install(victim_broken=calls.append, victim_absent=calls.append)
    with pytest.raises(RuntimeError, match="its own"):
        importlib.import_module("victim_broken")
    with pytest.raises(ModuleNotFoundError, match="victim_absent"):
        importlib.import_module("victim_absent")
    assert calls == []


def test_another_finder_that_wraps_all_others_does_not_go_in_circles(package: None) -> None:
    class Wrapper:
        """As ``wrapt`` does it: asks the machinery again, with itself switched off."""

        busy = False

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if self.busy or name != "victim":
                return None
            self.busy = True
            try:
                return importlib.util.find_spec(name)
            finally:
                self.busy = False

    calls: list[ModuleType] = []
    sys.meta_path.insert(0, Wrapper())  # type: ignore[arg-type]
    _install(victim=calls.append)
    assert importlib.import_module("victim").VALUE == 1
    assert len(calls) == 1


def test_a_finder_of_the_old_kind_is_passed_by(package: None) -> None:
    class Old:
        def find_module(self, name: str) -> None: ...

    sys.meta_path.insert(0, Old())  # type: ignore[arg-type]
    calls: list[ModuleType] = []
    _install(victim=calls.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "meta_path", [f for f in sys.meta_path if not isinstance(f, Old)])
        assert importlib.import_module("victim").VALUE == 1
    assert len(calls) == 1
