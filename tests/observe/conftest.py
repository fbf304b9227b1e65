"""Fakes of drivers for the tests of this folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FAKES = Path(__file__).parents[1] / "fakes"


def _load(file: str, name: str) -> ModuleType:
    # under another name: the true pynvml stays importable
    spec = importlib.util.spec_from_file_location(name, FAKES / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def recordings() -> ModuleType:
    """Recordings of devices: ``h200()``, ``v100()``, ``mig()``, …"""
    return _load("recordings.py", "fake_recordings")


@pytest.fixture(scope="session")
def fake_nvml() -> Callable[[dict[str, Any]], Any]:
    """A recording → a module like pynvml."""
    make: Callable[[dict[str, Any]], Any] = _load("pynvml.py", "fake_pynvml").FakeNvml
    return make
