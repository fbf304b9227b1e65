"""A store that sometimes takes its time, as a network share does: for ``data.py --sections wait``.

A module of its own, because the loader's process imports it by name.
"""

from __future__ import annotations

import random
import time

from brim.data.chat import Ref
from brim.data.store import Store

SHARE = 0.005
SECONDS = 1.5


class SlowStore(Store):
    """One read of 200 takes 1.5 seconds longer."""

    __slots__ = ()

    def read(self, ref: Ref) -> bytes:
        if random.random() < SHARE:
            time.sleep(SECONDS)
        return super().read(ref)
