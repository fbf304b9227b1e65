"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of an example; no test here is about time.
settings.register_profile("brim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("brim")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public reference material beside a checkout; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the reference material is not here")
    return SHARED
