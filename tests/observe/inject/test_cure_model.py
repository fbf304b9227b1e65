"""Cures of the model itself: the same losses to rounding, or a reason why not."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.observe.inject.cured import TINY_QWEN, Plan, RunCured, job
from torch import nn

from _brim_hooks import (  # isort: skip
    cure_attention, cure_model, cure_precision, cure_recompute,
)  # fmt: skip

QWEN = (
    TINY_QWEN
    + """
import json

def main():
    torch.manual_seed(0)
    model = make_model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    {setup}
    batch = collate([sample()])
    losses = []
    for n in range(6):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(json.dumps(dict(losses=losses, attention=sorted(
        set(str(m.config._attn_implementation) for m in model.modules() if hasattr(m, "config"))))))

main()
"""
)


def test_a_qwen3_vl_gets_sdpa_a_product_for_its_patches_and_no_recomputation(
    cured: RunCured,
) -> None:
    code = QWEN.replace("{setup}", "model.gradient_checkpointing_enable()")
    plain = cured(code, {})
    settings = {
        "attention.implementation": "sdpa", "patch_embedding.matmul": True, "recompute": "none",
        "liger": True,
    }  # fmt: skip
    found = cured(code, settings)
    assert (plain.said["attention"], found.said["attention"]) == (["eager"], ["sdpa"])
    assert found.states() == {**dict.fromkeys(settings, "applied"), "liger": "unavailable"}
    assert found.knobs["attention.implementation"].was == "eager"
    assert found.losses == pytest.approx(plain.losses, rel=1e-4)


# ------------------------------------------------------------------------------- patch embedding


def _product(conv: nn.Module, plan: Plan) -> nn.Module:
    model = nn.Sequential(conv)
    cure_model.PatchEmbedding({"patch_embedding.matmul": True}).called(model)
    return model


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_has_the_convolutions_values_and_gradients(
    plan: Plan, bias: bool, dtype: torch.dtype
) -> None:
    conv = nn.Conv3d(3, 32, (2, 4, 4), (2, 4, 4), bias=bias).to(dtype)
    reference, x = copy.deepcopy(conv), torch.randn(10, 3, 2, 4, 4, dtype=dtype)
    model = _product(conv, plan)
    for _ in range(2):  # the first call is made both ways
        out, wanted = model(x), reference(x)
        assert out.shape == wanted.shape == (10, 32, 1, 1, 1)
        torch.testing.assert_close(out, wanted)
    out.square().sum().backward()
    wanted.square().sum().backward()
    assert conv.weight.grad is not None and reference.weight.grad is not None
    largest = float(reference.weight.grad.abs().max())  # sums of ten: rounding is that of terms
    torch.testing.assert_close(
        conv.weight.grad, reference.weight.grad, rtol=0, atol=4 * torch.finfo(dtype).eps * largest
    )
    assert plan.states["patch_embedding.matmul"][0] == "applied"


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 2)),
        nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4), padding=1),
        nn.Conv3d(3, 9, (2, 4, 4), (2, 4, 4), groups=3),
        nn.Conv2d(3, 8, 4, 4),
    ],
    ids=["stride", "padding", "groups", "2d"],
)
def test_other_convolutions_stay(plan: Plan, conv: nn.Module) -> None:
    _product(conv, plan)
    assert "forward" not in vars(conv)
    assert plan.states["patch_embedding.matmul"][0] == "unavailable"


def test_an_input_of_several_windows_gives_the_convolution_back(plan: Plan) -> None:
    conv = nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4))
    x = torch.randn(1, 3, 2, 8, 8)
    wanted = conv(x)
    torch.testing.assert_close(_product(conv, plan)(x), wanted)
    assert "forward" not in vars(conv)
    assert plan.states["patch_embedding.matmul"] == (
        "unavailable", "its input has more than one window",
    )  # fmt: skip


def test_a_product_that_differs_is_given_up(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cure_model._Product, "product", lambda self, x: self.original(x) * 1.01)
    conv = nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4))
    x = torch.randn(4, 3, 2, 4, 4)
    wanted = conv(x)
    torch.testing.assert_close(_product(conv, plan)(x), wanted)
    assert plan.states["patch_embedding.matmul"][0] == "failed"
    assert "differs by" in plan.states["patch_embedding.matmul"][1]


# ---------------------------------------------------------------------------------------- blocks


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])


def test_blocks_are_the_repeated_parts_and_not_what_they_are_made_of() -> None:
    text = nn.ModuleList([_Block() for _ in range(3)])
    tower = nn.Sequential(_Block(), _Block())
    head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    mixed = nn.ModuleList([_Block(), nn.Linear(4, 4)])
    model = nn.ModuleDict({"text": text, "tower": tower, "head": head, "mixed": mixed})
    assert cure_model.blocks(model) == [*text, *tower]


COMPILED = """
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        def forward(self, x):
            {extra}
            return x + self.norm(torch.tanh(self.up(x)))
    model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(8, 1))
"""


@pytest.mark.slow
def test_blocks_are_compiled_and_the_losses_equal_to_rounding(cured: RunCured) -> None:
    end = "say['compiled'] = sum(m._compiled_call_impl is not None for m in model.modules())"
    setup = COMPILED.format(extra="pass")
    plain = cured(job(setup, end), {})
    found = cured(job(setup, end), {"compile.blocks": True})
    assert found.said["compiled"] == 2
    assert found.states() == {"compile.blocks": "applied"}
    assert found.knobs["compile.blocks"].reason == "2 blocks"
    assert found.losses == pytest.approx(plain.losses, rel=1e-5)


def test_blocks_that_do_not_compile_run_as_they_were(cured: RunCured) -> None:
    setup = (
        COMPILED.format(extra="pass")
        + """
    import torch._inductor.compile_fx as compiler
    def broken(*args, **kwargs):
        raise RuntimeError("no compiler on this machine")
    compiler.compile_fx = broken
    """
    )
    found = cured(job(setup), {"compile.blocks": True})
    assert (found.code, found.states()) == (0, {"compile.blocks": "failed"})
    assert found.losses == cured(job(setup), {}).losses


# --------------------------------------------------------------------------------- recomputation

RECOMPUTED = """
    from torch.utils.checkpoint import checkpoint
    calls = []
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
        def forward(self, x):
            return checkpoint(self.run, x, use_reentrant={reentrant}, preserve_rng_state=True)
        def run(self, x):
            calls.append(1)
            return nn.functional.dropout(torch.tanh(self.inner(x)), 0.1)
    model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), Block(), Block(), nn.Linear(8, 1))
"""


@pytest.mark.parametrize(
    ("reentrant", "value", "runs"), [(False, "none", 4), (True, "none", 4), (False, "half", 6)]
)
def test_four_blocks_run_as_often_as_asked_with_the_same_dropout(
    cured: RunCured, reentrant: bool, value: str, runs: int
) -> None:
    setup, end = RECOMPUTED.format(reentrant=reentrant), "say['calls'] = len(calls)"
    plain = cured(job(setup, end), {})
    found = cured(job(setup, end), {"recompute": value})
    assert (plain.said["calls"], found.said["calls"]) == (8 * 8, runs * 8)
    assert found.states() == {"recompute": "applied"}
    assert found.losses == pytest.approx(plain.losses, rel=1e-6)


def test_a_model_that_recomputes_nothing_can_be_made_to(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    model: Any = nn.Linear(2, 2)
    model.supports_gradient_checkpointing = True
    model.activation_checkpointing_enable = asked.append
    monkeypatch.setattr(cure_recompute, "pretrained", lambda model: iter([model]))
    cure_recompute.Recompute({"recompute": "all"}).called(model)
    assert asked == [{"use_reentrant": False}]
    assert plan.states["recompute"][0] == "applied"
    model.gradient_checkpointing = True
    cure_recompute.Recompute({"recompute": "all"}).called(model)
    assert plan.states["recompute"] == ("unavailable", "the job has it so already")


class _Flagged(_Block):
    gradient_checkpointing = True


def test_half_of_the_blocks_is_every_second_one_that_recomputes(plan: Plan) -> None:
    model = nn.ModuleDict({
        "text": nn.ModuleList([_Flagged() for _ in range(5)]),
        "tower": nn.ModuleList([_Block() for _ in range(2)]),
    })  # fmt: skip
    cure = cure_recompute.Recompute({"recompute": "half"})
    cure.called(model)
    text = model["text"]
    assert isinstance(text, nn.ModuleList)
    assert [b.gradient_checkpointing for b in text] == [True, False, True, False, True]
    assert plan.states["recompute"] == ("applied", "3 of 5 blocks")
    assert cure.recomputes() is True  # a call comes from a block that is left


def test_a_part_that_backward_computes_again_is_no_model_of_its_own() -> None:
    inner = nn.Linear(2, 2)
    model, other = nn.Sequential(inner), nn.Linear(2, 2)
    seen: list[Any] = []
    watcher = cure_model.Watcher()
    watcher.callbacks.append(seen.append)
    for called in (model, inner, model, other):
        watcher.look(called)
    assert seen == [model, other]


# ----------------------------------------------------------------------------- attention, numbers


class _Model(nn.Linear):
    """As a transformers model: a configuration, and a setter that may refuse."""

    def __init__(
        self, *, refuses: Exception | None = None, fixed: bool = False, **config: int
    ) -> None:
        super().__init__(2, 2)
        self.config = SimpleNamespace(_attn_implementation="eager", **config)
        self.refuses, self.fixed = refuses, fixed

    def set_attn_implementation(self, name: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        if not self.fixed:
            self.config._attn_implementation = name


def _tower(hidden_size: int) -> nn.Module:
    """As a vision tower of Qwen3-VL: 16 heads, of 64 (4B) or of 72 (8B)."""
    return _Model(hidden_size=hidden_size, num_heads=16).bfloat16()


@pytest.mark.parametrize(
    ("model", "value", "state", "reason"),
    [
        (_Model(), "sdpa", "applied", ""),
        (_Model().bfloat16(), "flash_attention_2", "applied", ""),
        (_Model(), "flash_attention_2", "unavailable", "needs bfloat16"),
        (_Model(refuses=ImportError("flash_attn is missing")), "sdpa", "unavailable", "missing"),
        (_Model(fixed=True), "sdpa", "unavailable", "cannot change"),
        (nn.Linear(2, 2), "sdpa", "unavailable", "none of transformers'"),
        (_tower(1152), "flash_attention_4", "unavailable", "has wrong gradients for heads of 72"),
        (_tower(1152), "flash_attention_2", "applied", ""),
        (_tower(1024), "flash_attention_4", "applied", ""),
        (_Model(head_dim=80).half(), "flash_attention_4", "unavailable", "heads of 80"),
        (_Model(head_dim=128).half(), "flash_attention_4", "applied", ""),
    ],
)
def test_attention_is_changed_where_the_model_can(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, model: Any, value: str, state: str, reason: str
) -> None:
    monkeypatch.setattr(
        cure_attention, "pretrained", lambda m: iter([m] if isinstance(m, _Model) else [])
    )
    cure_attention.Implementation({"attention.implementation": value}).called(model)
    assert plan.states["attention.implementation"][0] == state
    assert reason in plan.states["attention.implementation"][1]


def test_sdpas_back_end_comes_first_and_goes_back(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    before = torch._C._get_sdp_priority_order()
    sdpa = cure_attention.Sdpa({})
    sdpa.patch(torch)
    sdpa.switch({"attention.sdpa": "cudnn"})
    try:
        now = torch._C._get_sdp_priority_order()
        assert now == [3, *(n for n in before if n != 3)]
        assert plan.states["attention.sdpa"] == ("applied", "")
        assert plan.was["attention.sdpa"] == "flash"
    finally:
        sdpa.switch({})
    assert torch._C._get_sdp_priority_order() == before


def test_tf32_is_held_against_the_job_and_goes_back_to_what_it_wants(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: (9, 0))
    before = torch.get_float32_matmul_precision()
    tf32 = cure_precision.Tf32({"precision.tf32": "high"})
    try:
        tf32.patch(torch)
        assert torch.backends.cuda.matmul.allow_tf32 is True
        torch.set_float32_matmul_precision("highest")  # the job's first lines
        tf32.stepped(1)
        assert torch.get_float32_matmul_precision() == "high"
        assert plan.states["precision.tf32"][0] == "applied"
        tf32.switch({})
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("used", "capability", "reason"),
    [(False, (9, 0), "does not use a CUDA device"), (True, (7, 5), "before Ampere")],
)
def test_tf32_needs_a_device_that_has_it(
    monkeypatch: pytest.MonkeyPatch, used: bool, capability: tuple[int, int], reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *a: capability)
    assert reason in cure_precision.Tf32({"precision.tf32": "high"}).why_not()


@pytest.mark.parametrize("value", [True, False])
def test_cudnns_search_is_switched_and_what_the_job_set_meanwhile_comes_back(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, value: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", value)
    cure = cure_precision.CudnnBenchmark({})
    cure.patch(torch)
    torch.backends.cudnn.benchmark = not value  # the job, in the first arm
    cure.switch({"cudnn.benchmark": value})
    assert torch.backends.cudnn.benchmark is value
    assert plan.was["cudnn.benchmark"] is (not value)
    cure.switch({})
    assert torch.backends.cudnn.benchmark is (not value)


@pytest.mark.parametrize(
    ("model", "value", "state"),
    [
        (nn.Linear(4, 4), "bfloat16", "applied"),
        (nn.Linear(4, 4), "float16", "unavailable"),  # without loss scaling
        (nn.Linear(4, 4).bfloat16(), "bfloat16", "unavailable"),
    ],
)
def test_autocast_is_for_float32_models(
    plan: Plan, model: nn.Module, value: str, state: str
) -> None:
    dtype = next(model.parameters()).dtype
    cure_precision.Autocast({"precision.autocast": value}).called(model)
    assert plan.states["precision.autocast"][0] == state
    out = model(torch.ones(2, 4, dtype=dtype))
    assert out.dtype == (torch.bfloat16 if state == "applied" else dtype)
    assert not torch.is_autocast_enabled("cpu")  # only inside the model


# ----------------------------------------------------------------------------------------- Liger


@pytest.fixture
def liger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A stand-in for the package that knows qwen3_vl; the models that it was given."""
    folder = tmp_path / "liger_kernel" / "transformers"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(
        "given = []\ndef _apply_liger_kernel_to_instance(model):\n    given.append(model)\n"
    )
    (folder / "monkey_patch.py").write_text("MODEL_TYPE_TO_APPLY_LIGER_FN = {'qwen3_vl': None}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cure_model, "pretrained", lambda model: iter([model]))
    yield importlib.import_module("liger_kernel.transformers").given
    for name in [n for n in sys.modules if n.startswith("liger_kernel")]:
        del sys.modules[name]


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is not None, reason="Liger is here")
@pytest.mark.parametrize(
    ("kind", "device", "state", "reason"),
    [
        ("qwen3_vl", "meta", "applied", ""),  # any device that is not the CPU
        ("qwen3_vl", "cpu", "unavailable", "need an accelerator"),
        ("another", "meta", "unavailable", "does not know another"),
    ],
)
def test_ligers_kernels_go_into_models_that_it_knows(
    plan: Plan, liger: list[Any], kind: str, device: str, state: str, reason: str
) -> None:
    model: Any = nn.Linear(2, 2, device=device)
    model.config = SimpleNamespace(model_type=kind)
    cure_model.Liger({"liger": True}).called(model)
    assert (plan.states["liger"][0], liger) == (state, [model] if state == "applied" else [])
    assert reason in plan.states["liger"][1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_qwen3_vl_on_a_device_gets_tf32_its_back_end_and_liger(cured: RunCured) -> None:
    code = QWEN.replace("{setup}", "model.cuda()").replace("**batch)", "**{k: v.cuda() for k, v in batch.items()})")  # fmt: skip  # noqa: E501
    plain = cured(code, {})
    settings = {
        "attention.implementation": "sdpa", "attention.sdpa": "efficient", "liger": True,
        "patch_embedding.matmul": True, "cudnn.benchmark": True, "compile.blocks": True,
        "precision.tf32": "high",
    }  # fmt: skip
    found = cured(code, settings)
    states = found.states()
    if "not installed" in found.knobs["liger"].reason:
        states.pop("liger")
    assert set(states.values()) == {"applied"}
    assert found.losses == pytest.approx(plain.losses, rel=1e-2)


@pytest.mark.parametrize(
    "what", ["inner", "lambda x: inner(x.to(torch.float64).to(x))"], ids=["model", "function"]
)
def test_a_job_that_compiles_whole_graphs_itself_still_can(cured: RunCured, what: str) -> None:
    """fullgraph=True turns every break of the graph, and so every hook in it, into an error."""
    setup = f"""
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    compiled = torch.compile({what}, fullgraph=True, backend="eager")
    model = type("Model", (nn.Module,), {{"forward": lambda self, x: compiled(x)}})()
    model.inner = inner
    """
    code = job(setup).replace("(model(x) - y)", "(compiled(x) - y)")
    settings = {
        "patch_embedding.matmul": True,
        "recompute": "none",
        "precision.autocast": "bfloat16",
    }
    found = cured(code, {**settings, "transfer.non_blocking": True})
    assert found.code == 0, found.stderr
    assert set(found.states()) == {*settings, "transfer.non_blocking"}
