"""From a configuration and a model to a plan: the one call that starts every run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.data.columns import Scan
from brim.data.config import DataConfig
from brim.data.cost import Cost
from brim.data.geometry import Vision
from brim.data.lines import Lines
from brim.data.plan import Plan
from brim.data.quarantine import Quarantine
from brim.data.samples import Samples, gather
from brim.data.scan import Progress, scan
from brim.data.sources import Source, cache_folder, open_sources
from brim.data.table import Parquet
from brim.data.tars import Tar
from brim.data.tokens import ChatTokens
from brim.errors import InputError
from brim.hardware.cores import usable_cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """All that loading rows needs."""

    config: DataConfig
    sources: list[Source]
    scans: list[Scan]
    samples: Samples
    plan: Plan
    tokens: ChatTokens
    vision: Vision
    cost: Cost
    quarantine: Quarantine


def prepare(
    config: DataConfig,
    model: str | os.PathLike[str],
    *,
    quarantine: Path | None = None,
    cache: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Prepared:
    """Open, scan and plan.  ``model``: folder or hub id; ``quarantine``: file for bad samples;
    ``cache``: folder instead of the one beside the data.  Raises BrimError.
    """
    sources = open_sources(config.sources, cache)
    tokens = ChatTokens.of_model(model)
    vision = config.vision(_json(tokens.folder / "preprocessor_config.json"))
    model_config = _json(tokens.folder / "config.json")
    cost = Cost.of_model(model_config) if "vision_config" in model_config else Cost()
    bad = Quarantine(path=quarantine, max_share=config.max_bad_share, max_count=config.max_bad)
    scans = scan(
        sources,
        tokens,
        config.decode,
        sampling=config.sampling,
        cache=[cache or _beside(source) for source in sources],
        quarantine=bad,
        processes=usable_cores().whole,
        progress=progress,
    )
    samples = gather(
        scans,
        vision,
        cost,
        tokens_per_row=config.tokens_per_row,
        overlong=config.overlong,
    )
    plan = Plan(
        samples,
        [source.weight for source in sources],
        config.tokens_per_row,
        config.rows_per_step,
        config.seed,
    )
    return Prepared(
        config=config,
        sources=sources,
        scans=scans,
        samples=samples,
        plan=plan,
        tokens=tokens,
        vision=vision,
        cost=cost,
        quarantine=bad,
    )


def _beside(source: Source) -> Path:
    records = source.records
    if isinstance(records, Lines | Parquet | Tar):
        return cache_folder(records.path.parent)
    return cache_folder(Path.cwd())


def _json(path: Path) -> Mapping[str, Any]:
    """A model's configuration file; empty where the folder has none."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    return found
