"""The section ``torchvision`` of ``data.py``: brim and the processor in turn, each on one core.

The processor runs under another Python (``torchvision_processor.py``), since its torchvision does
not load beside every build of torch.  Between its turns that process waits and costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from brim.data.geometry import Vision
from brim.data.indices import write_patches
from brim.data.pixels import normalize
from brim.data.resize import load_image

PEER = Path(__file__).parent / "torchvision_processor.py"
DECODERS = ("pillow", "torchvision")


class Peer:
    """The other Python: ``ask`` it, one line each."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: object) -> Any:
        """Raises ``RuntimeError`` when the process has ended; its last words are on stderr."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the Python of --torchvision could not run the processor")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def on_one_core() -> Iterator[None]:
    """This process and what it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(
    python: str,
    folder: Path,
    files: Sequence[Path],
    vision: Vision,
    ours: Callable[[float], float],
    *,
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    """Images a second of one core, in turn, and equality on ``files``.

    ``ours`` measures brim for so many seconds.
    """
    with on_one_core(), closing(Peer(python)) as peer:
        found: dict[str, list[float]] = {"brim": [], **{name: [] for name in DECODERS}}
        for _ in range(rounds):
            found["brim"].append(ours(seconds))
            for name in DECODERS:
                found[name].append(peer.ask("rate", name, seconds, folder))
        return {
            "versions": peer.ask("about"),
            **_figures(found),
            "equality": equality(peer, folder, files, vision),
        }


def _figures(found: dict[str, list[float]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"brim_images_s": _spread(found["brim"])}
    for name in DECODERS:
        ratios = [a / b for a, b in zip(found["brim"], found[name], strict=True)]
        figures[f"processor_decoding_by_{name}_images_s"] = _spread(found[name])
        figures[f"brim_by_processor_decoding_by_{name}"] = _spread(ratios)
    return figures


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def equality(peer: Peer, folder: Path, files: Sequence[Path], vision: Vision) -> dict[str, Any]:
    """Pixels bit by bit, and the largest difference of the values that they become."""
    theirs = peer.ask("values", folder, len(files))
    same = sum(_sha(file, vision) == theirs["sha256"][file.name] for file in files)
    values = normalize(torch.arange(256, dtype=torch.uint8))
    seen = [(ours, v) for ours, v in zip(values.tolist(), theirs["levels"], strict=True)
            if v is not None]  # fmt: skip
    return {
        "pictures": len(files),
        "with_the_same_bits": same,
        "levels_seen": len(seen),
        "largest_difference_of_values": max(abs(a - b) for a, b in seen),
    }


def _sha(file: Path, vision: Vision) -> str:
    pixels = load_image(file.read_bytes(), vision)
    patches = torch.empty(pixels.size // 768, 768, dtype=torch.uint8).numpy()
    write_patches(pixels, patches, 16, 2)
    return hashlib.sha256(patches.tobytes()).hexdigest()
