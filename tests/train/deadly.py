"""Writers of checkpoints that die, or take their trainer along, at a chosen system call."""

from __future__ import annotations

from brim.train.saving.client import COMMAND

_PATCH = """
import os, signal, sys
name, count, whom = {name!r}, {count}, {whom!r}
real = getattr(os, name)
def dies(*args, **options):
    global count
    count -= 1
    if count == 0:
        if whom == "both":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **options)
setattr(os, name, dies)
"""


def deadly(name: str, count: int, *, whom: str = "both") -> tuple[str, ...]:
    """The command of a writer that ends at its ``count``-th call of ``os.name``.

    ``whom``: "both" kills its trainer first; "writer" only the writer.
    """
    *start, program = COMMAND
    return (*start, _PATCH.format(name=name, count=count, whom=whom) + program)
