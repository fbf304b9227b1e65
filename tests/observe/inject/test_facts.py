"""What a process says of itself, and what it never says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st


def _environment(**variables: str) -> dict[str, str]:
    from _brim_hooks import facts

    found: dict[str, str] = facts.environment(variables)
    return found


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "RANK",
     "TORCH_DISTRIBUTED_DEBUG", "TOKENIZERS_PARALLELISM", "LD_PRELOAD"],
)  # fmt: skip
def test_settings_that_matter_for_speed_are_kept(name: str) -> None:
    assert _environment(**{name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_x"), ("WANDB_API_KEY", "x"), ("AWS_SECRET_ACCESS_KEY", "x"),
        ("PATH", "/bin"), ("HOME", "/home/me"), ("NCCL_AUTH_TOKEN", "x"),
        ("TORCH_PASSWORD", "x"), ("TORCH_HUB", "https://me:pw@host"), ("RANKING", "1"),
    ],
)  # fmt: skip
def test_secrets_addresses_and_everything_else_are_not(name: str, value: str) -> None:
    assert _environment(**{name: value}) == {}


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_no_value_is_longer_than_two_hundred_characters_and_all_is_json(
    variables: dict[str, str],
) -> None:
    found = _environment(NCCL_X="y" * 999, **variables)
    assert all(len(value) <= 200 for value in found.values())
    json.dumps(found)


def test_a_header_holds_what_the_reader_asks_for(recorder: Any) -> None:
    import msgspec
    from _brim_hooks import facts

    from brim.record.steps import Footer, Header

    header = msgspec.json.decode(json.dumps(facts.header()), type=Header)
    assert header.cores and header.machine_cores
    footer = msgspec.json.decode(json.dumps(facts.footer("x", {"a": "b"})), type=Footer)
    assert footer.failures == {"a": "b"}


def test_a_job_without_a_cuda_context_gets_none_from_being_asked(recorder: Any) -> None:
    import torch
    from _brim_hooks import facts

    assert facts.device() is None
    assert facts.memory() is None
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("loss = model(x)", "loss = model(x)"),
        ('wandb.login(key="0123456789abcdef")', "wandb.login(key='***')"),
        ("login(token='hf_abcdefgh', new=True)", "login(token='***', new=True)"),
        ('    api_key = "unterminated', "    api_key = '***'"),
        ("x" * 300, "x" * 160),
        ("img = Image.open('a.jpg')", "img = Image.open('a.jpg')"),
    ],
)
def test_a_source_line_is_stored_without_the_literals_of_a_line_that_may_hold_a_secret(
    text: str, kept: str
) -> None:
    from _brim_hooks.sampler import _clean

    assert _clean(text) == kept
