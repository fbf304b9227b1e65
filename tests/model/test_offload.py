from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from brim.model.offload import HostMemory, Kept
from brim.model.qwen3vl import Recompute
from brim.train.synthetic import Document, pack


def test_gradients_keep_their_bits_when_inputs_wait_on_the_host(
    make_pair: Callable[..., Any],
    samples: dict[str, list[Document]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostMemory.__init__, "__defaults__", (0,))
    kept: list[Kept] = []
    inner = Kept.back
    monkeypatch.setattr(Kept, "back", lambda self: kept.append(self) or inner(self))
    model = make_pair(True).ours
    documents = samples["mixed"]
    batch = pack(documents, sum(len(d) for d in documents), side=6)
    model(batch).backward()
    plain = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.recompute = Recompute(text_blocks=3, offload=True)
    try:
        model(batch).backward()
    finally:
        model.recompute = Recompute()
    assert all(torch.equal(p.grad, plain[n]) for n, p in model.named_parameters())
    # the input of each recomputed block, once, the last one first
    assert [k.host.shape for k in kept] == [(batch.length, 24)] * 3
    assert all(k.before is None for k in kept)


def test_small_tensors_stay_where_they_are() -> None:
    store = HostMemory(least=4096)
    small, large = torch.ones(16, requires_grad=True), torch.ones(2048, requires_grad=True)
    with store:
        total = (small * small).sum() + (large * large).sum()
    total.backward()
    assert torch.equal(small.grad, 2 * torch.ones(16))  # type: ignore[arg-type]
    assert torch.equal(large.grad, 2 * torch.ones(2048))  # type: ignore[arg-type]
    assert store._last is not None and store._last.host.numel() == 2048


def test_a_tensor_on_its_way_back_brings_the_one_before_it() -> None:
    first = Kept(torch.arange(4.0), None, None)
    second = Kept(torch.arange(8.0), None, first)
    assert torch.equal(second.back(), torch.arange(8.0))
    assert first.tensor is not None and torch.equal(first.tensor, torch.arange(4.0))
    assert torch.equal(first.back(), torch.arange(4.0)) and first.tensor is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_tensors_come_back_whole_without_any_wait_of_the_host() -> None:
    x = torch.randn(4096, 4096, device="cuda", requires_grad=True)

    def run(*hooks: saved_tensors_hooks) -> torch.Tensor:
        y = x
        for _ in range(6):
            for hook in hooks:
                hook.__enter__()
            y = torch.tanh(y @ x / 64)
            for hook in hooks:
                hook.__exit__()
        (grad,) = torch.autograd.grad(y.sum(), x)
        return grad

    expected = run()
    run(HostMemory())  # pinned memory exists from now on
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = run(HostMemory())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)
