"""Fixtures of the data tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data import qwen

from brim.data.tokens import ChatTokens


@pytest.fixture(scope="session")
def qwen_folder(pytestconfig: pytest.Config) -> Path:
    """A folder with Qwen's tokenizer; building it takes ten seconds, so it is kept."""
    folder = Path(pytestconfig.cache.mkdir("qwen-tokenizer"))
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
