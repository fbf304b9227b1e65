"""A callback for Lightning, in its new package or in ``pytorch_lightning``.

::

    from brim.api.lightning import BrimCallback

    Trainer(callbacks=[BrimCallback()]).fit(model, data)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brim.api.observing import Observation
from brim.api.session import Session, base


class BrimCallback(base("Callback", "lightning.pytorch", "pytorch_lightning")):  # type: ignore[misc]
    """Measures the fit and prints the verdict when it ends.

    ``run_dir``, ``steps``: as in :func:`brim.observe`.  ``show``: print the report.
    """

    def __init__(
        self, run_dir: str | Path | None = None, *, steps: int = 100, show: bool = True
    ) -> None:
        super().__init__()
        self._session = Session(run_dir, steps=steps, show=show)

    @property
    def seen(self) -> Observation | None:
        """What was measured; its diagnosis after the training, on rank 0."""
        return self._session.seen

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._session.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._session.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._session.end(exception)
