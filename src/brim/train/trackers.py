"""Metrics to TensorBoard, Weights & Biases or MLflow, beside the JSON lines that are always there.

A tracker that fails is dropped with one line; it never ends a run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.errors import MissingExtra

Log = Callable[[int, Mapping[str, float]], None]
Close = Callable[[], None]
Opened = tuple[Log, Close]


def _tensorboard(folder: Path, _settings: Mapping[str, Any]) -> Opened:
    writer = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(folder: Path, settings: Mapping[str, Any]) -> Opened:
    run = _module("wandb").init(dir=str(folder), config=dict(settings))
    return lambda step, values: run.log(dict(values), step=step), run.finish


def _mlflow(_folder: Path, settings: Mapping[str, Any]) -> Opened:
    mlflow = _module("mlflow")
    mlflow.start_run()
    mlflow.log_params(dict(settings))
    return lambda step, values: mlflow.log_metrics(dict(values), step=step), mlflow.end_run


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Opened]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}


def _module(name: str, package: str = "") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = package or name
        raise MissingExtra(f"train.report_to {package!r}", package=package, extra="track") from None


class Trackers:
    """The chosen trackers as one.  Raises :class:`MissingExtra` for one that is not installed."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        settings: Mapping[str, Any],
        say: Callable[[str], None] = print,
    ) -> None:
        self._open = {name: TRACKERS[name](folder, settings) for name in names}
        self._say = say

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Numbers only; what is absent is left out."""
        numbers = {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and name != "step"
        }
        for name in list(self._open):
            self._guarded(name, lambda opened: opened[0](step, numbers))

    def close(self) -> None:
        for name in list(self._open):
            self._guarded(name, lambda opened: opened[1]())

    def _guarded(self, name: str, act: Callable[[Opened], None]) -> None:
        try:
            act(self._open[name])
        except Exception as error:  # a server that is away must not cost the run
            del self._open[name]
            self._say(f"{name} is dropped: {type(error).__name__}: {error}")
