from __future__ import annotations

import pytest
import torch
from tests.kernels import run_kernel

from brim.train import eightbit
from brim.train.adamw import AdamW, gradient_norm
from brim.train.eightbit import BLOCK, CUT, decode, encode
from brim.train.rounding import hashed

WHOLE = 1 << CUT


def value_of(code: int, *, signed: bool) -> float:
    """A code's value, written down from the format's definition: (1 + m / 8) · 2^e, 1.0 on top."""
    size, top = (code & 0x7F, 127) if signed else (code, 255)
    if size == 0:
        return 0.0
    steps = top - size  # below 1.0, eight to an octave
    exponent, mantissa = -(-steps // 8), -steps % 8
    value = (1 + mantissa / 8) * 2.0**-exponent
    return -value if signed and code > 0x7F else value


@pytest.mark.parametrize("signed", [True, False])
def test_every_code_means_what_the_format_says(signed: bool) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(1, -1)
    found = decode(codes, torch.full((1, 1), 4.0), signed=signed)[0].tolist()
    assert found == [4 * value_of(code, signed=signed) for code in range(256)]


@pytest.mark.parametrize("signed", [True, False])
def test_what_the_format_can_hold_is_kept_whatever_the_noise(signed: bool) -> None:
    codes = [c for c in range(256) if c != 0x80 or not signed]
    exact = torch.tensor([[value_of(c, signed=signed) for c in codes]]) * 2.0**-20
    for noise in (0, 12_345, WHOLE - 1):
        found, scale = encode(exact, torch.full_like(exact, noise).long(), signed=signed)
        assert found[0].tolist() == codes
        assert scale.tolist() == [[2.0**-20]]
        assert torch.equal(decode(found, scale, signed=signed), exact)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("share", [0.9, 0.26, 3e-3, 2e-5])
def test_rounding_has_no_bias_to_four_standard_errors(share: float, signed: bool) -> None:
    n = 100_000
    values = torch.full((n // 100, 100), share)
    values[:, 0] = 1.0  # the scale
    noise = hashed(torch.arange(n), 3).view(values.shape) & (WHOLE - 1)
    found = decode(*encode(values, noise, signed=signed), signed=signed)[:, 1:]
    error = float(found.std()) / found.numel() ** 0.5
    assert abs(float(found.mean()) - share) < 4 * error + 1e-9
    assert found.unique().numel() == 2


def test_a_mean_below_the_smallest_code_keeps_its_expectation_and_a_square_never_becomes_zero() -> (
    None
):
    n = 100_000
    tiny = torch.full((n // 100, 100), 0.3 * eightbit.LEAST_MEAN)
    tiny[:, 0] = 1.0
    noise = hashed(torch.arange(n), 5).view(tiny.shape) & (WHOLE - 1)
    means = decode(*encode(tiny, noise, signed=True), signed=True)[:, 1:]
    assert float((means > 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    tiny[:, 1:] = 2.0**-40
    squares = decode(*encode(tiny, noise, signed=False), signed=False)[:, 1:]
    assert squares.unique().tolist() == [eightbit.LEAST_SQUARE]


def test_blocks_of_a_row_have_their_own_scales_and_a_cut_last_block_its_own() -> None:
    values = torch.ones(3, 2 * BLOCK + 44)
    values[1, BLOCK : 2 * BLOCK] = 300.0
    values[2, 2 * BLOCK :] = 0.0
    codes, scale = encode(values, torch.zeros_like(values).long(), signed=True)
    assert scale.shape == (3, 3)
    assert scale[0].tolist() == [1.0, 1.0, 1.0] and scale[1].tolist() == [1.0, 512.0, 1.0]
    assert torch.equal(decode(codes, scale, signed=True)[2, 2 * BLOCK :], torch.zeros(44))


def run(optimizer: AdamW, grads: list[torch.Tensor]) -> torch.Tensor:
    (weight,) = optimizer.param_groups[0]["params"]
    for grad in grads:
        weight.grad = grad.to(weight.dtype)
        optimizer.prepare(gradient_norm([weight]), 0.0, torch.ones(()))
        optimizer.step()
    return weight.detach()


def start(rows: int = 40, columns: int = 300) -> torch.nn.Parameter:
    generator = torch.Generator().manual_seed(1)
    return torch.nn.Parameter(torch.randn(rows, columns, generator=generator))


def eight(weight: torch.nn.Parameter, lr: float = 1e-3) -> AdamW:
    return AdamW([weight], lr=lr, masters=False, state_dtype=torch.uint8)


def test_states_take_2_03_bytes_a_parameter_and_vectors_stay_in_bfloat16() -> None:
    matrix, vector = start(64, 2560), torch.nn.Parameter(torch.zeros(2560))
    optimizer = AdamW([matrix, vector], masters=False, state_dtype=torch.uint8)
    size = sum(t.numel() * t.element_size() for t in optimizer.state[matrix].values())
    assert size / matrix.numel() == 2 + 2 * 4 / BLOCK
    assert optimizer.state[vector]["mean"].dtype is torch.bfloat16


def test_second_moments_do_not_freeze() -> None:
    # each step changes them by less than a fiftieth of what a code can tell apart
    weight = start(100, 256)
    optimizer = eight(weight)
    run(optimizer, [torch.ones(100, 256)] * 300)
    state = optimizer.state[weight]
    found = decode(state["square"], state["square_scale"], signed=False)
    assert float(found.mean()) == pytest.approx(1 - 0.999**300, rel=0.02)
    run(optimizer, [torch.zeros(100, 256)] * 300)
    found = decode(state["square"], state["square_scale"], signed=False)
    assert float(found.mean()) == pytest.approx((1 - 0.999**300) * 0.999**300, rel=0.03)


def test_three_hundred_noisy_steps_go_where_torchs_adamw_goes() -> None:
    ours, theirs = start(), start()
    generator = torch.Generator().manual_seed(2)
    target, sizes = torch.randn(ours.shape, generator=generator), torch.logspace(-4, 0, 300)
    optimizer, reference = eight(ours, 1e-2), torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.0)
    for _ in range(300):
        noise = 0.3 * torch.randn(ours.shape, generator=generator)
        theirs.grad = (theirs.detach() - target + noise) * sizes  # gradients of four magnitudes
        run(optimizer, [(ours.detach() - target + noise) * sizes])
        reference.step()
    left, right = ((w.detach() - target).square().mean().item() for w in (ours, theirs))
    assert left == pytest.approx(right, rel=0.05)
    assert right < 0.1


def test_a_saved_and_restored_optimizer_continues_to_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(40, 300, generator=generator) for _ in range(6)]
    whole, first, second = (eight(start()) for _ in range(3))
    expected = run(whole, grads)
    halfway = run(first, grads[:3])
    second.param_groups[0]["params"][0].data.copy_(halfway)
    second.load_tensors(first.tensors(["w"]), ["w"])
    assert torch.equal(run(second, grads[3:]), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    good = [torch.randn(40, 300, generator=generator) for _ in range(2)]
    poisoned = good[1].clone()
    poisoned[3, 5] = bad
    skipped = eight(start())
    run(skipped, [good[0]])
    before = {k: v.clone() for k, v in skipped.tensors(["w"]).items() if k != "attempts"}
    run(skipped, [poisoned])
    assert all(torch.equal(v, skipped.tensors(["w"])[k]) for k, v in before.items())


KERNEL = """
import sys
import torch
from brim.train.arithmetic import Rule
from brim.train.eightbit import reference_update
from brim.train.eightbit_triton import update

device = sys.argv[1]
generator = torch.Generator().manual_seed(0)
for shape in ((1, 1), (3, 256), (9, 700)):
    for dtype, masters in ((torch.float32, False), (torch.bfloat16, False), (torch.float16, True)):
        for flag in (1.0, 0.0):
            blocks = -(-shape[1] // 256)
            w = torch.randn(shape, generator=generator)
            codes = [torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
                     for _ in range(2)]
            codes[0][codes[0] == 0x80] = 0
            scales = [torch.full((shape[0], blocks), s) for s in (0.25, 2.0**-6)]
            grad = torch.randn(shape, generator=generator).to(dtype)
            start = (w.to(dtype), w if masters else None, grad, *codes, *scales)
            control = torch.tensor([0.5, flag, 0.3, 0.2])
            results = []
            for function in (reference_update, update):
                moved = [None if t is None else t.clone().to(device) for t in start]
                rule = Rule(lr=1e-2, decay=0.1, betas=(0.9, 0.999), eps=1e-8, seed=11, first=7,
                            round_weight=dtype is torch.bfloat16)
                function(*moved, control.to(device), rule)
                results.append([t.cpu() for t in moved if t is not None])
            for a, b in zip(*results):
                # one unit of the last place of float32 may decide a rounding
                near = torch.isclose(a.float(), b.float(), rtol=2e-6, atol=1e-7)
                assert near.float().mean() > 0.99, (shape, dtype, masters, a.dtype)
                assert torch.allclose(a.float(), b.float(), rtol=0.01, atol=1.0)
print("equal")
"""


def test_the_triton_kernel_in_the_interpreter_equals_the_reference() -> None:
    pytest.importorskip("triton")
    assert "equal" in run_kernel(KERNEL, "cpu", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_triton_kernel_on_a_gpu_equals_the_reference() -> None:
    assert "equal" in run_kernel(KERNEL, "cuda")
