"""The last part of ``brim demo``: the same model and photographs under ``brim train``."""

from __future__ import annotations

import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from brim.errors import BrimError

if TYPE_CHECKING:
    from brim.cli.demo import Story
    from brim.record.findings import Diagnosis

STEPS = 60
_METRICS = "trained/records/*/metrics.jsonl"


def tell(story: Story, before: Diagnosis) -> None:
    """Train, and say what its records say; ``before``: the script's own run."""
    from brim.cli.measured import judge
    from brim.units import percent

    _prepare(story)
    story.say()
    story.say("$ brim train sft.toml", "bold cyan")
    story.run(
        [sys.executable, "-m", "brim", "train", "sft.toml"],
        f"training {STEPS} steps with brim train",
        STEPS,
        lambda: len(_metrics(story.folder)),
        # one core plays the accelerator, as in the script
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = _metrics(story.folder)
    (records,) = {path.parent for path in story.folder.glob(_METRICS)}
    found = judge(records).metrics
    rate, theirs = found.get("samples_per_s"), before.metrics.get("samples_per_s")
    if not lines or rate is None:
        raise BrimError(f"{records} holds no steps")
    compared = f"; the script as it was: {theirs:.1f}" if theirs else ""
    story.say(
        f"The same model, photographs and questions in packed rows: {rate:.1f} samples/s{compared}."
    )
    story.say(
        f"Loss {lines[0]['loss']:.2f} at first, {lines[-1]['loss']:.2f} at last; "
        f"{percent(found['input_wait'])} of the time waiting for input, "
        f"{percent(found.get('pad_share', 0.0))} padding. The trained model is a Hugging Face "
        "folder, trained/model."
    )


def _prepare(story: Story) -> None:
    text = resources.files("brim.cli").joinpath("demo_files", "prepare.py.in").read_text()
    (story.folder / "prepare.py").write_text(text)
    command = [sys.executable, "prepare.py", "photos", str(STEPS)]
    made = [story.folder / "sft.toml"]
    story.run(command, "writing chats and a model", 1, lambda: sum(p.exists() for p in made))


def _metrics(folder: Path) -> list[dict[str, float]]:
    """The lines with a loss, as far as they are written."""
    found = [path.read_text().splitlines() for path in folder.glob(_METRICS)]
    return [json.loads(line) for lines in found for line in lines if '"loss"' in line]
