"""brim from Python: judge what was recorded, and record what this process trains.

::

    import brim

    found = brim.diagnose("runs/2026-12-01T10-00-00-train")
    print(found.verdict, [f.cause for f in found.findings])

    with brim.observe("runs/mine") as seen:
        train()
    print(seen.diagnosis.verdict)

``brim.diagnose`` and ``brim.observe`` are the functions of this module (and packages, see
:class:`brim.Verb`).  Callbacks for trainers are in :mod:`brim.api.hf_trainer` and
:mod:`brim.api.lightning`; they need what they are for, and nothing else does.
"""

from brim.api.judging import diagnose
from brim.api.observing import Observation, observe

__all__ = ["Observation", "diagnose", "observe"]
