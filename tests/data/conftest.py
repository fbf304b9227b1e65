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
