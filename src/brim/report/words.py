"""Figures and phrases that every report words alike, and the cleaning of foreign text."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Final

from brim.diagnose.causes import CAUSES, COMPUTE, REPORTED_FROM, UNKNOWN
from brim.record.findings import Diagnosis, Entry, Finding, Remedy, Where
from brim.report.palette import PARTS
from brim.units import duration, percent

FRAMEWORKS: Final[dict[str, str]] = {
    "torch": "PyTorch",
    "hf-trainer": "HF Trainer",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "ms-swift": "ms-swift",
    "llama-factory": "LLaMA-Factory",
    "brim": "brim",
}

METRICS: Final[dict[str, tuple[str, str]]] = {
    "step_s": ("step", "duration"),
    "mean_step_s": ("mean step", "duration"),
    "median_step_s": ("median step", "duration"),
    "profiled_step_s": ("step under the profiler", "duration"),
    "samples_per_s": ("samples/s", "number"),
    "images_per_s": ("images/s", "number"),
    "tokens_per_s": ("tokens/s", "number"),
    "pad_share": ("padding", "share"),
    "input_wait": ("input wait", "share"),
    "mfu": ("MFU", "share"),
    "busy": ("busy", "share"),
    "gpu_util": ("GPU-Util", "share"),
    "sm_active": ("SM active", "share"),
    "tensor_active": ("tensor active", "share"),
}

# Cc: controls, Cf: direction overrides and zero widths, Cs: halves of pairs, Zl/Zp: line breaks
_INVISIBLE: Final = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def clean(text: str, *, keep_lines: bool = False) -> str:
    """Foreign text without anything that moves a cursor, colours or reorders a line.

    File names, kernel names and evidence come from the measured job: they are hostile until
    proven otherwise.  A tab becomes a space, and so does a line break unless ``keep_lines``.
    """
    out = []
    for character in text.replace("\r\n", "\n"):
        if character == "\n" and keep_lines:
            out.append(character)
        elif character in "\t\n\r\u2028\u2029":
            out.append(" ")
        elif unicodedata.category(character) not in _INVISIBLE:
            out.append(character)
    return "".join(out)


def gain(low_high: tuple[float, float]) -> str:
    """``(1.2, 1.5)`` → ``1.2–1.5× faster``; two decimals where one would hide the gain."""
    low, high = low_high
    if not (math.isfinite(low) and math.isfinite(high)):
        return "gain not known"
    digits = 1 if low >= 1.095 else 2
    first, last = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return f"{first}× faster" if first == last else f"{first}–{last}× faster"


def number(value: float) -> str:
    """Three significant digits, thousands apart: ``42130`` → ``42,100``."""
    if not math.isfinite(value) or abs(value) >= 1e15:
        return f"{value:.3g}"
    if value == 0 or abs(value) < 1e-3:
        return f"{value:.3g}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def figure(name: str, value: float) -> tuple[str, str]:
    """A metric as (label, value): ``"step_s", 0.41`` → ``("step", "410 ms")``."""
    label, kind = METRICS.get(name, (name.replace("_", " "), "number"))
    if kind == "duration":
        return label, duration(value)
    if kind == "share":
        return label, percent(value)
    return label, number(value)


def figures(metrics: dict[str, float]) -> list[tuple[str, str]]:
    """The measured ones of the well-known metrics, in the order of the account."""
    return [figure(n, metrics[n]) for n in METRICS if n in metrics and math.isfinite(metrics[n])]


def other_figures(metrics: dict[str, float]) -> list[tuple[str, str]]:
    """Metrics that have no place in the row of figures."""
    known = {*METRICS, "overhead"}
    return [figure(clean(n), value) for n, value in metrics.items() if n not in known]


SEEN: Final = 0.0005
"""Slices below this would read 0.0 %."""


def part(entry: Entry, *, flops: bool) -> str:
    """The level of an entry in words; without FLOPs busy time cannot be called useful."""
    return "busy" if entry.part == "useful" and not flops else PARTS[entry.part]


def meaning(cause: str) -> str:
    """A cause in words; empty for ids of a later version."""
    return CAUSES.get(cause, "")


def slice_name(entry: Entry, *, flops: bool) -> str:
    """What a slice of the account is: the cause's id, or words where there is no cause."""
    if entry.part == "useful":
        return "the model's own FLOPs" if flops else "the device computes"
    if entry.cause == COMPUTE and entry.part == "busy-not-computing":
        return "copies within the device"
    if entry.cause == COMPUTE:
        return "kernels below the device's peak"
    if entry.cause == UNKNOWN:
        return "not to be told apart"
    return clean(entry.cause)


def verdict(diagnosis: Diagnosis) -> str:
    """The diagnosis's sentence, or one made of its first finding."""
    if diagnosis.verdict.strip():
        return clean(diagnosis.verdict)
    if not diagnosis.findings:
        return without_findings(diagnosis)[0]
    first = diagnosis.findings[0]
    what = meaning(first.cause)
    said = f"{first.cause}: {what}" if what else clean(first.cause)
    return f"{percent(first.share)} of the time is lost to {said}."


def without_findings(diagnosis: Diagnosis) -> tuple[str, bool]:
    """What to say when there is no finding, and whether it is good news."""
    unknown = math.fsum(e.share for e in diagnosis.account if e.part == "unknown")
    limit = percent(REPORTED_FROM).replace(".0", "")
    if unknown >= 0.995:
        return "Nothing can be said about where the time went.", False
    if unknown >= REPORTED_FROM:
        said = f"{percent(unknown)} of it could not be told apart"
        return f"No cause is known to take {limit} of the time, but {said}.", False
    return f"Nothing to cure: no cause takes {limit} of the time.", True


def remains(account: Iterable[Entry]) -> list[Entry]:
    """What a healthy run still loses, largest first."""
    lost = [e for e in account if e.part != "useful" and e.share >= SEEN]
    return sorted(lost, key=lambda e: -e.share)


def window(diagnosis: Diagnosis) -> str:
    """``20 steps, 4.1 s, 1 rank; after 5 warm-up steps``."""
    w = diagnosis.window
    counted = [count(w.steps, "step")] if w.steps else []
    said = ", ".join([*counted, duration(w.wall_s), count(w.ranks, "rank")])
    return f"{said}; {clean(w.chosen)}" if w.chosen else said


def count(n: int, noun: str) -> str:
    """``1 step``, ``20 steps``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def place(where: Where) -> str:
    """``train.py:41 in collate``."""
    said = f"{clean(where.file)}:{where.line}"
    return f"{said} in {clean(where.function)}" if where.function else said


def framework(name: str) -> str:
    return FRAMEWORKS.get(name, clean(name))


def ordered_settings(remedy: Remedy, frameworks: list[str]) -> list[tuple[str, str]]:
    """All settings of a remedy, the job's own framework first, then plain PyTorch, then others."""
    wanted = [*frameworks, *FRAMEWORKS, *remedy.settings]
    names = list(dict.fromkeys(n for n in wanted if n in remedy.settings))
    return [(name, remedy.settings[name]) for name in names]


def sentence(text: str) -> str:
    """Cleaned, with a capital at the start."""
    said = clean(text)
    return said[:1].upper() + said[1:]


def price(remedy: Remedy) -> str:
    """``lossless`` or ``changes the numbers``, and what it costs in memory."""
    said = "lossless" if remedy.lossless else "changes the numbers"
    return f"{said}; memory: {clean(remedy.memory)}" if remedy.memory else said


def headline(finding: Finding) -> str:
    """``31.0 % of the time · 1.2–1.5× faster · confidence high``."""
    parts = (f"{percent(finding.share)} of the time", gain(finding.gain))
    return " · ".join((*parts, f"confidence {finding.confidence}"))


__all__ = [
    "FRAMEWORKS", "METRICS", "clean", "count", "figure", "figures", "framework", "gain", "headline",
    "meaning", "number", "ordered_settings", "other_figures", "part", "place", "price", "remains",
    "sentence", "slice_name", "verdict", "window", "without_findings",
]  # fmt: skip
