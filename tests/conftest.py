"""What all tests share."""

from __future__ import annotations

import getpass
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.forks import Forks

# A busy machine is no fault of an example; no test here is about time.  New examples are tried
# where somebody works on the code; a check of a submission tries the same ones each time.
settings.register_profile(
    "brim",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("brim")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of public reference material beside a checkout; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the reference material is not here")
    return SHARED


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Generators start alike in each test, whatever ran before it: a bound on rounding then holds
    or does not, and does not fail for one draw in a thousand."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests and the processes that they kill leave behind goes when pytest's folders go."""
    compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))  # worth keeping
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session")
def forks() -> Iterator[Callable[..., Forks]]:
    """``forks(*TORCH)``: the server of scripts that find these modules imported."""
    servers: dict[tuple[str, ...], Forks] = {}

    def of(*modules: str) -> Forks:
        if modules not in servers:
            servers[modules] = Forks(*modules)
        return servers[modules]

    yield of
    for server in servers.values():
        server.close()
