from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from brim.errors import ConfigError, MissingExtra
from brim.train.config import Config, TrainTable
from brim.train.records import Records
from brim.train.tables import flat
from brim.train.trackers import Trackers


class Heard:
    """Stands for the three packages, and remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def modules(self) -> dict[str, ModuleType]:
        heard = self.calls

        class Writer:
            def __init__(self, folder: str) -> None:
                heard.append(("tensorboard opened", folder))

            def add_scalar(self, name: str, value: float, step: int) -> None:
                heard.append(("tensorboard", (step, name, value)))

            def close(self) -> None:
                heard.append(("tensorboard closed", None))

        class Run:
            def log(self, values: dict[str, float], *, step: int) -> None:
                heard.append(("wandb", (step, values)))

            def finish(self) -> None:
                heard.append(("wandb closed", None))

        board, wandb, mlflow = (
            ModuleType(n) for n in ("torch.utils.tensorboard", "wandb", "mlflow")
        )
        board.SummaryWriter = Writer  # type: ignore[attr-defined]
        wandb.init = lambda dir, config: (heard.append(("wandb opened", config)), Run())[1]  # type: ignore[attr-defined]
        mlflow.start_run = lambda: heard.append(("mlflow opened", None))  # type: ignore[attr-defined]
        mlflow.log_params = lambda values: heard.append(("mlflow settings", values))  # type: ignore[attr-defined]
        mlflow.log_metrics = lambda values, step: heard.append(("mlflow", (step, values)))  # type: ignore[attr-defined]
        mlflow.end_run = lambda: heard.append(("mlflow closed", None))  # type: ignore[attr-defined]
        return {m.__name__: m for m in (board, wandb, mlflow)}


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    found = Heard()
    for name, module in found.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_numbers_reach_the_tracker_and_what_is_absent_does_not(
    name: str, heard: Heard, tmp_path: Path
) -> None:
    trackers = Trackers([name], tmp_path, {"seed": 1})
    trackers.log(3, {"step": 3, "loss": 2.5, "mfu": None})
    trackers.close()
    assert (name, (3, {"loss": 2.5})) in heard.calls
    assert any(value == {"seed": 1} for _, value in heard.calls)
    assert heard.calls[-1] == (f"{name} closed", None)


def test_tensorboard_writes_scalars_into_the_runs_records(heard: Heard, tmp_path: Path) -> None:
    records = Records(tmp_path, ["brim", "train"], torch.device("cpu"), report_to=["tensorboard"])
    records.metrics({"step": 2, "loss": 1.5})
    records.close(0, "finished")
    assert heard.calls == [
        ("tensorboard opened", str(records.folder)),
        ("tensorboard", (2, "loss", 1.5)),
        ("tensorboard closed", None),
    ]


def test_a_tracker_that_fails_is_dropped_and_the_others_go_on(heard: Heard, tmp_path: Path) -> None:
    said: list[str] = []
    trackers = Trackers(["wandb", "mlflow"], tmp_path, {}, said.append)

    def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    trackers._open["wandb"] = (away, away)
    trackers.log(1, {"loss": 1.0})
    trackers.log(2, {"loss": 0.5})
    trackers.close()
    assert said == ["wandb is dropped: ConnectionError: no route"]
    assert [v for n, v in heard.calls if n == "mlflow"] == [(1, {"loss": 1.0}), (2, {"loss": 0.5})]


def test_a_tracker_that_is_not_installed_is_said_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"brim\[track\]"):
        Trackers(["wandb"], tmp_path, {})


def test_an_unknown_tracker_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="tensorboard, wandb, mlflow"):
        TrainTable(report_to=("comet",))


def test_settings_are_shown_flat() -> None:
    found = flat(Config())
    assert found["optimizer.learning_rate"] == 1e-5
    assert found["data.tokens_per_row"] == 8192
    assert found["model.freeze"] == "()"
