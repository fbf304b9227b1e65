"""Fixtures of the data tests."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from tests.data import qwen

from brim.data.tokens import ChatTokens


@pytest.fixture(scope="session")
def qwen_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Qwen's tokenizer; building it takes ten seconds, so it is kept."""
    cache = getattr(pytestconfig, "cache", None)  # absent with -p no:cacheprovider
    folder = Path(cache.mkdir("qwen-tokenizer")) if cache else tmp_path_factory.mktemp("qwen")
    with (folder / "lock").open("w") as lock:  # parallel test processes share the folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "tokenizer_config.json").exists():
            qwen.build(folder)
    return folder


@pytest.fixture(scope="session")
def chat_tokens(qwen_folder: Path) -> ChatTokens:
    return ChatTokens(qwen_folder)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of Qwen's form and 256 tokens, for what is not about tokens."""
    folder = tmp_path_factory.mktemp("small-model")
    qwen.build_small(folder)
    return folder
