from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from brim.errors import ConfigError
from brim.model.attention import BACKENDS
from brim.model.kernels import Capability, Choices, choose, compile_blocks, installed, kernels
from brim.model.loss import fused_row_loss, torch_row_loss
from brim.model.weights import load
from brim.train.synthetic import Document, pack

ALL = frozenset({"flash-attn-4", "triton"})
PLAIN = frozenset({"triton"})
# device, capability → dtype, attention, compile, TF32, FP8 hardware, loss scaling
TABLE: list[tuple[str, Capability | None, tuple[object, ...]]] = [
    ("CPU", None, ("float32", "math", False, False, False, False)),
    ("P100", (6, 0), ("float32", "efficient", False, False, False, False)),
    ("GTX 1080", (6, 1), ("float32", "efficient", False, False, False, False)),
    ("V100", (7, 0), ("float16", "efficient", True, False, False, True)),
    ("T4", (7, 5), ("float16", "efficient", True, False, False, True)),
    ("A100", (8, 0), ("bfloat16", "varlen", True, True, False, False)),
    ("RTX 3090", (8, 6), ("bfloat16", "varlen", True, True, False, False)),
    ("L40S", (8, 9), ("bfloat16", "varlen", True, True, True, False)),
    ("H200", (9, 0), ("bfloat16", "fa4", True, True, True, False)),
    ("B200", (10, 0), ("bfloat16", "fa4", True, True, True, False)),
    ("RTX PRO 6000", (12, 0), ("bfloat16", "fa4", True, True, True, False)),
]


def values(choices: Choices) -> tuple[object, ...]:
    picked = (
        choices.dtype,
        choices.attention,
        choices.compile,
        choices.tf32,
        choices.fp8,
        choices.loss_scaling,
    )
    return tuple(choice.value for choice in picked)


@pytest.mark.parametrize(("device", "capability", "expected"), TABLE, ids=[t[0] for t in TABLE])
def test_each_generation_gets_what_the_table_says(
    device: str, capability: Capability | None, expected: tuple[object, ...]
) -> None:
    choices = choose(capability, ALL)
    assert values(choices) == expected, device
    assert all(len(reason) > 15 for reason in choices.reasons().values())


def test_without_flash_attn_4_a_hopper_falls_back_to_torchs_kernel_and_says_why() -> None:
    attention = choose((9, 0), PLAIN).attention
    assert attention.value == "varlen"
    assert "flash-attn-4 is not installed" in attention.why


def test_without_triton_nothing_is_compiled() -> None:
    assert choose((9, 0)).compile.value is False


def test_float32_on_a_hopper_takes_the_memory_efficient_kernel() -> None:
    choices = choose((9, 0), ALL, dtype="float32")
    assert choices.attention.value == "efficient"
    assert choices.attention.why == "the flash kernel does not take float32 on sm_90"


def test_an_override_is_obeyed_and_named_as_such() -> None:
    choices = choose((9, 0), ALL, attention="varlen", compile=False, dtype="float16")
    assert values(choices)[:3] == ("float16", "varlen", False)
    assert choices.attention.why == choices.compile.why == "as configured"
    assert choices.loss_scaling.value is True


@pytest.mark.parametrize(
    ("capability", "attention", "hint"),
    [
        ((7, 5), "varlen", "usable here: efficient, math"),
        ((8, 0), "fa4", "usable here: varlen, efficient, math"),
        (None, "efficient", "usable here: math"),
    ],
)
def test_an_override_that_cannot_run_names_what_can(
    capability: Capability | None, attention: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match="cannot run here") as caught:
        choose(capability, ALL, attention=attention)
    assert hint in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fa4, varlen, efficient, math"):
        choose(None, attention="flash2")


def test_names_become_functions() -> None:
    eager = kernels(choose(None))
    assert eager.text_attention is BACKENDS["math"]
    assert eager.row_loss is torch_row_loss
    assert kernels(choose((9, 0), ALL)).row_loss is fused_row_loss


def test_installed_sees_what_is_importable_here() -> None:
    assert ("triton" in installed()) == (torch.utils._triton.has_triton_package())


def test_compiled_blocks_see_four_graphs_and_none_more_for_other_patch_and_document_counts(
    make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    from torch._dynamo.testing import CompileCounter

    model = load(make_pair(True).folder, dtype=torch.float32)
    rows = [pack(samples[kind], 90, side=6) for kind in ("mixed", "several images", "one image")]
    expected = [model(row).item() for row in rows]
    torch._dynamo.reset()
    counter = CompileCounter()
    compile_blocks(model, backend=counter)
    for row, loss in zip(rows, expected, strict=True):
        found = model(row)
        found.backward()
        assert found.item() == pytest.approx(loss, rel=1e-6)
    # a text block, a vision block, the merger and a deepstack merger
    assert counter.frame_count == 4
