"""Architecture → settings, each with its reason.

``torch.cuda.is_bf16_supported()`` counts emulation and says True on a T4, so everything here asks
for the compute capability.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from brim.hardware.gpus import Gpu

Capability = tuple[int, int]

AMPERE: Capability = (8, 0)
ADA: Capability = (8, 9)
HOPPER: Capability = (9, 0)
BLACKWELL: Capability = (10, 0)
BLACKWELL_CONSUMER: Capability = (12, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A value picked on the user's behalf, and why."""

    name: str
    value: str
    why: str


def settings(
    capability: Capability | None,
    *,
    gpu: Gpu | None = None,
    torch: str = "",
    arch_list: Iterable[str] = (),
) -> list[Choice]:
    """What follows from the architecture, in the order in which a user decides.

    ``capability`` None: no CUDA device.  ``torch`` is its version (``2.13.0+cu130``) and
    ``arch_list`` its ``torch.cuda.get_arch_list()``; without them the wheel is judged by the
    newest that brim knows.
    """
    if capability is None:
        return [_cpu_dtype(gpu), _decode(None, gpu)]
    return [
        dtype(capability),
        tf32(capability),
        attention(capability),
        fp8(capability),
        compiling(capability),
        _decode(capability, gpu),
        wheel(capability, torch=torch, arch_list=arch_list),
        *_remarks(capability, gpu),
    ]


def dtype(capability: Capability) -> Choice:
    sm = sm_name(capability)
    if capability >= AMPERE:
        return Choice(name="dtype", value="bfloat16", why=f"{sm} has bf16 tensor cores")
    if capability >= (7, 0):
        why = f"{sm} has fp16 tensor cores and no bf16; it needs a gradient scaler"
        return Choice(name="dtype", value="float16", why=why)
    why = f"{sm} has no tensor cores; fp16 for storage only saves memory"
    return Choice(name="dtype", value="float32", why=why)


def tf32(capability: Capability) -> Choice:
    if capability >= AMPERE:
        why = "what stays in fp32 runs on tensor cores: torch.set_float32_matmul_precision('high')"
        return Choice(name="tf32", value="on", why=why)
    why = f"{sm_name(capability)} has no TF32: keep matrix products out of fp32"
    return Choice(name="tf32", value="not there", why=why)


def attention(capability: Capability) -> Choice:
    """The fastest kernels that exist; which of them is installed is another question."""
    sm = sm_name(capability)
    if capability[0] in (9, 10):
        why = f"FlashAttention 4 runs on {sm}; else cuDNN's SDPA, else FlashAttention 2"
        if capability[0] == 9:  # Dao-AILab/flash-attention#2896
            why += "; its gradients are wrong for heads of 72 (8B's vision tower) unless padded"
        return Choice(name="attention", value="flash-attention-4", why=why)
    if capability >= AMPERE:
        limit = "; head sizes above 192 are limited backwards" if capability != AMPERE else ""
        why = f"FlashAttention 2 and SDPA's flash kernel run on {sm}{limit}"
        return Choice(name="attention", value="flash-attention-2", why=why)
    why = f"flash kernels start at sm_80; SDPA's memory-efficient one runs on {sm}"
    return Choice(name="attention", value="memory-efficient", why=why)


def fp8(capability: Capability) -> Choice:
    if capability >= BLACKWELL_CONSUMER:
        why = "per tensor and block scaling; MXFP8 is not for sm_120"
        return Choice(name="fp8", value="possible", why=why)
    if capability >= BLACKWELL:
        return Choice(name="fp8", value="possible", why="per tensor, MXFP8 and NVFP4")
    if capability >= HOPPER:
        return Choice(name="fp8", value="possible", why="per tensor and block scaling")
    if capability >= ADA:
        return Choice(name="fp8", value="possible", why="per tensor only")
    why = f"{sm_name(capability)} has no fp8 units (they start at sm_89)"
    return Choice(name="fp8", value="no", why=why)


def compiling(capability: Capability) -> Choice:
    if capability >= (7, 0):
        why = "Triton runs here; elementwise chains, norms and losses fuse"
        return Choice(name="torch.compile", value="yes", why=why)
    why = f"Triton needs sm_70; this is {sm_name(capability)}"
    return Choice(name="torch.compile", value="no", why=why)


def wheel(capability: Capability, *, torch: str = "", arch_list: Iterable[str] = ()) -> Choice:
    """Whether the installed torch runs on the device, and which wheel does."""
    built = tuple(arch_list)
    fitting = wheels_for(capability, release(torch) or NEWEST)
    advice = f"{fitting[-1]} does" if fitting else "an older release does"
    if built:
        if runs_on(capability, built):
            why = f"torch {torch} holds code for {sm_name(capability)}"
            return Choice(name="wheel", value="fits", why=why)
        why = f"torch {torch} holds code for {', '.join(built)} only; {advice}"
        return Choice(name="wheel", value="does not fit", why=why)
    version = ".".join(map(str, release(torch) or NEWEST))
    if not fitting:
        why = f"no wheel of torch {version} holds code for {sm_name(capability)}"
        return Choice(name="wheel", value="none", why=why)
    why = f"wheels of torch {version} with code for {sm_name(capability)}"
    if fitting == ["cu126"]:
        why += "; cu126 is the last one, and a plain pip install takes another"
    return Choice(name="wheel", value=", ".join(fitting), why=why)


NEWEST = (2, 14)

_ALL = (5, 0)
# release → CUDA tag → (lowest, highest) capability with code in the Linux x86 wheel.
# From the build scripts and release notes of pytorch/pytorch.
_WHEELS: dict[tuple[int, int], dict[str, tuple[Capability, Capability]]] = {
    (2, 8): {"cu126": (_ALL, (9, 0)), "cu128": ((7, 0), (12, 1)), "cu129": ((7, 0), (12, 1))},
    (2, 9): {"cu126": (_ALL, (9, 0)), "cu128": ((7, 0), (12, 1)), "cu130": ((7, 5), (12, 1))},
    (2, 11): {"cu126": (_ALL, (9, 0)), "cu128": ((7, 5), (12, 1)), "cu130": ((7, 5), (12, 1))},
    (2, 12): {"cu126": (_ALL, (9, 0)), "cu130": ((7, 5), (12, 1)), "cu132": ((7, 5), (12, 1))},
}


def wheels_for(capability: Capability, torch: tuple[int, int]) -> list[str]:
    """CUDA tags of the wheels of a release that run on the device, oldest CUDA first."""
    known = [version for version in _WHEELS if version <= torch]
    if not known:
        return []
    return [
        tag
        for tag, (lowest, highest) in _WHEELS[max(known)].items()
        if lowest <= capability <= highest
    ]


def runs_on(capability: Capability, arch_list: Iterable[str]) -> bool:
    """Whether code of ``arch_list`` runs: same major and no newer minor, or older PTX."""
    for entry in arch_list:
        kind, _, digits = entry.partition("_")
        number = re.match(r"\d+", digits)
        if number is None:
            continue
        built = (int(number[0][:-1] or 0), int(number[0][-1]))
        if kind == "sm" and built[0] == capability[0] and built[1] <= capability[1]:
            # sm_90a and sm_100a run on that very device only
            if digits == number[0] or built == capability:
                return True
        elif kind == "compute" and built <= capability:
            return True
    return False


def release(torch: str) -> tuple[int, int] | None:
    """``2.13.0+cu130`` → ``(2, 13)``."""
    found = re.match(r"(\d+)\.(\d+)", torch)
    return (int(found[1]), int(found[2])) if found else None


def sm_name(capability: Capability) -> str:
    """``(9, 0)`` → ``sm_90``."""
    return f"sm_{capability[0]}{capability[1]}"


def _cpu_dtype(gpu: Gpu | None) -> Choice:
    if gpu is not None:  # ROCm
        return Choice(name="dtype", value="bfloat16", why=f"{gpu.arch} has bf16 matrix cores")
    return Choice(
        name="dtype",
        value="float32",
        why="no accelerator; bf16 is fast only on CPUs with AMX or AVX-512 BF16",
    )


def _decode(capability: Capability | None, gpu: Gpu | None) -> Choice:
    engines = gpu.nvjpg_engines if gpu is not None else None
    if engines:
        doubt = " (count not confirmed)" if gpu and "nvjpg" in " ".join(gpu.uncertain) else ""
        why = f"{engines} JPEG engine{'s' if engines > 1 else ''}{doubt}; baseline JPEG only"
        return Choice(name="image decode", value="CPU, or the device's engines", why=why)
    if capability is not None and engines is None and capability >= AMPERE:
        why = "whether this device has JPEG engines is not known"
        return Choice(name="image decode", value="CPU", why=why)
    if capability is not None:
        why = "no JPEG engines; nvJPEG on the SMs takes time from the model"
        return Choice(name="image decode", value="CPU", why=why)
    return Choice(name="image decode", value="CPU", why="no accelerator with JPEG engines")


def _remarks(capability: Capability, gpu: Gpu | None) -> list[Choice]:
    """What is particular about a card."""
    found = []
    if gpu is not None and gpu.nvlink_gb_s_bidir == 0:
        why = "no NVLink: gradients and gathers go over PCIe"
        found.append(Choice(name="several devices", value="DDP, accumulation", why=why))
    if gpu is not None and gpu.tdp_w is not None and gpu.tdp_w <= 75:
        why = f"{gpu.tdp_w:g} W: the power cap binds long before the peak"
        found.append(Choice(name="power", value="expect throttling", why=why))
    if gpu is not None and gpu.name.startswith("H20 "):
        why = "rich in bandwidth, poor in compute: recomputation is dearer here than elsewhere"
        found.append(Choice(name="checkpointing", value="avoid", why=why))
    if capability[0] >= 12:
        why = "sm_120 is no superset of sm_100: kernels for tcgen05 do not run"
        found.append(Choice(name="kernels", value="sm_120 builds", why=why))
    return found
