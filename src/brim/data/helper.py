"""Helper processes: fresh interpreters that inherit a connection and nothing else.

``multiprocessing`` would run the user's script again in every helper (and, without a main guard,
start helpers of the helpers); these only import the module that they are for.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection


def start(
    module: str, function: str, *fds: int, gpus: bool = False
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run ``module.function(connection, *fds)`` in a new process; our end of its connection.

    The connection ends when either process does.  ``gpus``: it may see them.
    """
    ours, theirs = socket.socketpair()
    program = (
        f"import sys; from multiprocessing.connection import Connection; "
        f"from {module} import {function}; fds = list(map(int, sys.argv[1:])); "
        f"{function}(Connection(fds[0]), *fds[1:])"
    )
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno()), *map(str, fds)],
            pass_fds=(theirs.fileno(), *fds),
            stdin=subprocess.DEVNULL,
            env=environment(gpus=gpus),
        )
    return process, Connection(ours.detach())


def environment(*, gpus: bool = False) -> dict[str, str]:
    """Ours, without the GPUs unless they are wanted, with one thread per operation and an allocator
    that keeps its pages: image buffers are megabytes that come and go, and a page fault costs more
    than a pixel."""
    env = dict(os.environ)
    tunables = [t for t in env.get("GLIBC_TUNABLES", "").split(":") if t]
    if not any("malloc.hugetlb" in t for t in tunables):
        tunables.append("glibc.malloc.hugetlb=1")
    env.update(
        PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
        GLIBC_TUNABLES=":".join(tunables),
    )
    if not gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    env.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 30))
    env.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 33))
    env.setdefault("MALLOC_TOP_PAD_", str(1 << 26))
    return env
