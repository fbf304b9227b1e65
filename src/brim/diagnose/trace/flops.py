"""Work of an operation from its recorded input sizes, and the roof over it.

A multiply-add counts 2.  Bytes are a lower bound: every input and the output touched once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from brim.diagnose.trace.tables import Bound

Shape = list[int]
Rule = Callable[[list[Shape]], tuple[int, int]]
"""Sizes of the inputs → FLOPs and elements of the output."""

_BYTES: Final = {
    "double": 8, "long int": 8, "long": 8, "float": 4, "int": 4, "c10::half": 2,
    "c10::bfloat16": 2, "bool": 1, "unsigned char": 1, "signed char": 1, "char": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call."""

    flops: float
    n_bytes: float


@dataclass(frozen=True, slots=True)
class Roof:
    """What a device can do at most."""

    flops_per_s: float
    bytes_per_s: float

    def seconds(self, work: Work) -> tuple[float, Bound]:
        """Least time for ``work``, and which limit sets it."""
        compute = work.flops / self.flops_per_s if self.flops_per_s else 0.0
        memory = work.n_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return max(compute, memory), "compute" if compute >= memory else "memory"


@lru_cache(maxsize=65536)
def work(operation: str, dims: str, types: str) -> Work | None:
    """FLOPs and bytes of one call, or None where the operation's work is not known.

    ``dims`` and ``types`` are the JSON texts of ``Input Dims`` and ``Input type``.
    """
    shapes, kinds = input_shapes(dims), _kinds(types)
    rule = _RULES.get(operation.removeprefix("aten::"))
    if rule is None or not shapes:
        return None
    try:
        flops, output = rule(shapes)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    size = _BYTES.get(kinds[0], 4) if kinds else 4
    touched = sum(
        math.prod(shape) * _BYTES.get(kind, size)
        for shape, kind in zip(shapes, [*kinds, *[""] * len(shapes)], strict=False)
        if shape
    )
    return Work(float(flops), float(touched + output * size))


def elements(dims: str) -> int:
    """Summed elements of all inputs."""
    return sum(math.prod(shape) for shape in input_shapes(dims) if shape)


def input_shapes(dims: str) -> list[Shape]:
    """One list of sizes per input; empty for scalars and absent inputs."""
    try:
        values: Any = msgspec.json.decode(dims)
    except msgspec.DecodeError:
        return []
    if not isinstance(values, list):
        return []
    return [_flat(value) for value in values]


def _flat(value: Any) -> Shape:
    """A tensor's sizes; a list of tensors counts as one of all their elements."""
    if not isinstance(value, list):
        return []
    if value and all(isinstance(item, list) for item in value):
        return [sum(math.prod(_flat(item)) for item in value if item)]
    return [item for item in value if isinstance(item, int) and item >= 0]


def _kinds(types: str) -> list[str]:
    try:
        values: Any = msgspec.json.decode(types)
    except msgspec.DecodeError:
        return []
    return [str(value).lower() for value in values] if isinstance(values, list) else []


def _mm(s: list[Shape]) -> tuple[int, int]:
    (m, k), (_, n) = s[0], s[1]
    return 2 * m * k * n, m * n


def _bmm(s: list[Shape]) -> tuple[int, int]:
    (b, m, k), (_, _, n) = s[0], s[1]
    return 2 * b * m * k * n, b * m * n


def _linear(s: list[Shape]) -> tuple[int, int]:
    rows, (n, k) = math.prod(s[0][:-1]), s[1]
    return 2 * rows * k * n, rows * n


def _convolution(s: list[Shape]) -> tuple[int, int]:
    """Stride and padding are in later inputs only as scalars, so the output's size is not known
    where it is not the input's: kernel equal to stride (a patch embedding) is told by size."""
    x, weight = s[0], s[1]
    taps = math.prod(weight[2:])
    space = math.prod(x[2:])
    patches = taps > 1 and all(a % b == 0 for a, b in zip(x[2:], weight[2:], strict=True))
    out_space = space // taps if patches and x[2:] == weight[2:] else space
    flops = 2 * x[0] * weight[0] * out_space * weight[1] * taps
    return flops, x[0] * weight[0] * out_space


def _attention(s: list[Shape]) -> tuple[int, int]:
    (b, h, q, d), (_, _, k, _) = s[0], s[1]
    return 4 * b * h * q * k * d, b * h * q * d


def _twice(rule: Rule) -> Rule:
    """A backward: two products of the forward's size; the incoming gradient stands first."""

    def backward(s: list[Shape]) -> tuple[int, int]:
        flops, output = rule(s[1:])
        return 2 * flops, 2 * output

    return backward


def _with_mask(at: int, rule: Rule) -> Rule:
    """Attention that was given a mask computes every score; without one it may be causal, which
    the sizes do not say."""

    def full(s: list[Shape]) -> tuple[int, int]:
        if not s[at]:
            raise ValueError
        return rule(s)

    return full


_RULES: Final[dict[str, Rule]] = {
    "mm": _mm,
    "addmm": lambda s: _mm(s[1:]),
    "_scaled_mm": _mm,
    "bmm": _bmm,
    "baddbmm": lambda s: _bmm(s[1:]),
    "linear": _linear,
    "convolution": _convolution,
    "_convolution": _convolution,
    "cudnn_convolution": _convolution,
    "miopen_convolution": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "_slow_conv2d_forward": _convolution,
    "slow_conv_dilated2d": _convolution,
    "slow_conv3d_forward": _convolution,
    "slow_conv_dilated3d": _convolution,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_cudnn_attention_forward": _with_mask(3, _attention),
    "_scaled_dot_product_flash_attention_backward": _twice(_attention),
    "_scaled_dot_product_efficient_attention_backward": _twice(_attention),
    "_scaled_dot_product_cudnn_attention_backward": _twice(_attention),
    "_cudnn_attention_backward": _with_mask(8, _twice(_attention)),
    "convolution_backward": _twice(_convolution),
}
