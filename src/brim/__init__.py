"""brim keeps GPUs full of useful work while they fine-tune vision-language models.

::

    found = brim.diagnose("runs/2026-12-01T10-00-00-train")     # or traces of a job's ranks
    with brim.observe() as seen:                                 # measure what this process trains
        train()

Both names are packages too (``brim.diagnose.causes``); how that fits together is said in
:class:`Verb`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_VERBS = ("diagnose", "observe")


class Verb(ModuleType):
    """The type of a package that can also be called, as the verb of its name.

    Importing any module of ``brim.diagnose`` makes Python set the package as an attribute of
    ``brim``, whatever stood there before, so the package itself must be what is called.  It hands
    the call to :mod:`brim.api`, which stands above all packages that the answer needs.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from brim import api

        return getattr(api, self.__name__.rpartition(".")[2])(*args, **kwargs)


def __getattr__(name: str) -> ModuleType:
    """``brim.diagnose(…)`` works after a bare ``import brim``, which stays cheap."""
    if name in _VERBS:
        return importlib.import_module(f"brim.{name}")
    raise AttributeError(f"module 'brim' has no attribute {name!r}")
