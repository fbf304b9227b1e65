"""A callback for the Hugging Face Trainer, and for those built on it (TRL, ms-swift, …).

::

    from brim.api.hf_trainer import BrimCallback

    Trainer(model, args, train_dataset=data, callbacks=[BrimCallback()]).train()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brim.api.observing import Observation
from brim.api.session import Session, base


class BrimCallback(base("TrainerCallback", "transformers")):  # type: ignore[misc]
    """Measures the training and prints the verdict when it ends.

    ``run_dir``, ``steps``: as in :func:`brim.observe`.  ``show``: print the report.
    """

    def __init__(
        self, run_dir: str | Path | None = None, *, steps: int = 100, show: bool = True
    ) -> None:
        self._session = Session(run_dir, steps=steps, show=show)

    @property
    def seen(self) -> Observation | None:
        """What was measured; its diagnosis after the training, on rank 0."""
        return self._session.seen

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.end()
