"""What a device kernel is, told from its name: kind, number format, library.

Names of NVIDIA (cuBLAS, nvjet, CUTLASS, cuDNN old and new, FlashAttention 2 to 4), AMD (Tensile,
Composable Kernel, MIOpen, igemm), Triton (Inductor, Liger, user), ATen and their compiler-mangled
forms, from Volta to Blackwell.  A name that says nothing is ``other`` and has no format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeVar

_T = TypeVar("_T")


class Kind(IntEnum):
    OTHER = 0
    MATMUL = 1
    CONV = 2
    ATTENTION = 3
    ELEMENTWISE = 4
    REDUCE = 5
    NORM = 6
    SOFTMAX = 7
    LOSS = 8
    INDEX = 9
    EMBEDDING = 10
    OPTIMIZER = 11
    LAYOUT = 12
    """Convolution helpers that move data: im2col, vol2col, NCHW to NHWC."""
    COMM = 13
    COPY = 14
    """memcpy and memset on the device's copy engines."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Kernel:
    kind: Kind
    dtype: str
    """``fp64 fp32 tf32 fp16 bf16 fp8 fp4 int8`` of the inputs, or empty."""
    library: str
    fused: bool
    """A generated or hand-written kernel that does several operations at once."""


_KINDS = [
    (Kind.COMM, r"nccl|rccl"),
    (
        Kind.LAYOUT,
        r"im2col|col2im|vol2col|col2vol|im2d2col|nchwtonhwc|nhwctonchw|batched_transpose",
    ),
    (
        Kind.OPTIMIZER,
        r"multi_tensor_apply|adamw?[_a-z]*kernel|fused_?adam|lamb_|lambfunctor|sgdfunctor",
    ),
    (Kind.LOSS, r"cross_?entropy|nll_?loss|mse_?loss|kl_?div|bce"),
    (Kind.EMBEDDING, r"split_embedding|embedding|indexselect"),
    (
        Kind.ATTENTION,
        r"flash|fmha|sdpa|attention|attn_(fwd|bwd)|(fwd|bwd)_attn|_attn_|mem_?eff|paged_?kv|splitkv",
    ),
    (
        Kind.CONV,
        r"conv(?!ert)|scudnn|winograd|fprop|dgrad|wgrad|implicit_gemm|igemm|depthwise|miopen.*xdlops",
    ),
    (
        Kind.MATMUL,
        r"gemm|gemv|nvjet|cijk_|cutlass.*tensorop|cutlass.*simt|matmul|triton_(tem_.*)?mm|"
        r"(?:^|[_:\s])bmm_|splitkreduce|dot_kernel|wmma|xmma|cublas|cublaslt",
    ),
    (Kind.SOFTMAX, r"softmax"),
    (
        Kind.NORM,
        r"layer_?norm|rms_?norm|group_?norm|batch_?norm|instance_?norm|bn_(fw|bw|fwd|bwd)|"
        r"gammabeta|rowwisemoments|(?<!up)norm_(fwd|bwd|kernel)",
    ),
    (
        Kind.INDEX,
        r"index|gather|scatter|catarray|cub::|radix|sort|topk|nonzero|masked_select|scan|cumsum|"
        r"permute|bucketize|unique",
    ),
    (Kind.REDUCE, r"triton_(red|per)_|reduce|welford|norm_two"),
    (
        Kind.ELEMENTWISE,
        r"elementwise|triton_(poi|for)_|pointwise|fillfunctor|dropout|copy_kernel|swiglu|geglu|"
        r"rotary|rope|gelu|silu|swish|_mul_|_add_|subtensorop|optensor|cast|quant",
    ),
]  # fmt: skip
_KIND_PATTERNS = [(kind, re.compile(pattern)) for kind, pattern in _KINDS]

_DTYPES = [
    ("fp4", r"e2m1|fp4|nvfp4|mxfp4"),
    ("fp8", r"e4m3|e5m2|fp8|float8|f8f8|cijk_\w*?_f8|nvjet_(sm\d+_)?q"),
    ("int8", r"int8|i8i8|s8_s8|imma|cijk_\w*?_i8"),
    ("bf16", r"bf16|bfloat16|_bh_|_bbs_|_bb_|cijk_[a-z]+_[a-z]+_b_|nvjet_(sm\d+_)?t|ttf"),
    (
        "fp16",
        r"fp16|float16|f16|half|hgemm|h884|h1688|h16816|s884|cijk_[a-z]+_[a-z]+_h|"
        r"nvjet_(sm\d+_)?h|_hhs_|hhf",
    ),
    ("tf32", r"tf32|s1688|cijk_[a-z]+_[a-z]+_s_?x|xf32"),
    ("fp64", r"dgemm|f64|double|fp64|cijk_[a-z]+_[a-z]+_d[_b]"),
    (
        "fp32",
        r"sgemm|scudnn|simt|f32f32|<float|float>|float const|winograd|gcgemm|cgemm|fp32|"
        r"cijk_[a-z]+_[a-z]+_s[_b]|nvjet_(sm\d+_)?s|igemm\w*fp32",
    ),
]  # fmt: skip
_DTYPE_PATTERNS = [(dtype, re.compile(pattern)) for dtype, pattern in _DTYPES]

_LIBRARIES = [
    ("nccl", r"nccl|rccl"),
    ("flash-attention", r"flash|fmha"),
    ("triton", r"^triton|^_(?!zn)\w+$|^_?[a-z0-9_]+_kernel(_0d1d\w*)?$"),
    ("cudnn", r"cudnn|winograd|implicit_convolve|scudnn"),
    ("cublas", r"cublas|nvjet|^(volta|turing|ampere|sm\d+_xmma|maxwell)_|gemv|splitkreduce|gemmsn"),
    ("aten", r"at::native|at_cuda_detail|at::cuda"),
    ("cutlass", r"cutlass"),
    ("hipblaslt", r"cijk_"),
    ("ck", r"\bck::|^_zn2ck"),
    ("miopen", r"miopen|igemm_|gridwise|im2d2col|subtensorop"),
    ("fbgemm", r"fb_gm|split_embedding"),
    ("transformer-engine", r"transformer_engine"),
]  # fmt: skip
_LIBRARY_PATTERNS = [(name, re.compile(pattern)) for name, pattern in _LIBRARIES]


@lru_cache(maxsize=65536)
def classify(name: str) -> Kernel:
    """The kernel behind ``name``; the longest names are read in their first 400 characters."""
    text = name[:400].lower().replace("fbgemm", "fb_gm")  # a library, not a matrix product
    library = _first(_LIBRARY_PATTERNS, text, "")
    kind = _first(_KIND_PATTERNS, text, Kind.OTHER)
    if text.startswith("triton_"):
        kind = _generated(text, kind)
    fused = library in ("triton", "transformer-engine", "flash-attention") or kind is Kind.OPTIMIZER
    return Kernel(kind, _first(_DTYPE_PATTERNS, text, ""), library, fused)


def _generated(text: str, kind: Kind) -> Kind:
    """Inductor names its kernels by what they fuse; the prefix says what dominates."""
    if text.startswith(("triton_poi_", "triton_for_")):
        return Kind.ELEMENTWISE
    if text.startswith(("triton_red_", "triton_per_")):
        return kind if kind in (Kind.NORM, Kind.SOFTMAX, Kind.LOSS) else Kind.REDUCE
    return Kind.ELEMENTWISE if kind is Kind.OTHER else kind


def _first(patterns: list[tuple[_T, re.Pattern[str]]], text: str, default: _T) -> _T:
    return next((value for value, pattern in patterns if pattern.search(text)), default)


def copy_direction(name: str) -> str:
    """``h2d``, ``d2h``, ``d2d``, ``p2p`` or empty, from ``Memcpy HtoD (Pageable -> Device)``."""
    lower = name.lower()
    for text, direction in (("htod", "h2d"), ("dtoh", "d2h"), ("dtod", "d2d"), ("ptop", "p2p")):
        if text in lower:
            return direction
    return ""


def is_pageable(name: str) -> bool:
    """Whether a copy's host side is pageable memory, as far as the name tells (ROCm's does not)."""
    return "pageable" in name.lower()
