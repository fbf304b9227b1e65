"""Threads: of loader workers, and of operations in the training process.

torch sets its own threads in a worker to one; OpenCV, BLAS libraries and a ``worker_init_fn`` that
asks for more are what oversubscribes the cores.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from _brim_hooks.cure import Cure, safely

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
             "VECLIB_MAXIMUM_THREADS", "OPENCV_FOR_THREADS_NUM")  # fmt: skip
# (part of the library's name, functions that set its number of threads); OpenBLAS is built with
# changing prefixes and suffixes
_LIBRARIES = (
    ("openblas", ("openblas_set_num_threads", "openblas_set_num_threads64_",
                  "scipy_openblas_set_num_threads", "scipy_openblas_set_num_threads64_")),
    ("mkl_rt", ("MKL_Set_Num_Threads",)),
    ("libgomp", ("omp_set_num_threads",)),
    ("libiomp5", ("omp_set_num_threads",)),
    ("libomp", ("omp_set_num_threads",)),
)  # fmt: skip


class WorkerThreads(Cure):
    """At most so many threads in each library of a loader worker."""

    ids = ("worker.threads",)
    never = "no loader worker was started"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [
            ("torch.utils.data._utils.worker", self.patch),
            ("torch.utils.data.dataloader", self.patch_loader),
        ]

    def patch(self, module: Any) -> None:
        original = module._worker_loop

        @functools.wraps(original)
        def _worker_loop(*args: Any, **kwargs: Any) -> Any:
            self.begin()
            return original(*args, **kwargs)

        module._worker_loop = _worker_loop

    def patch_loader(self, module: Any) -> None:
        """The training process says that it was done: its workers have files of their own."""
        kind = module._MultiProcessingDataLoaderIter
        original = kind.__init__

        @functools.wraps(original)
        def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, *args, **kwargs)
            self.applied()

        kind.__init__ = __init__

    @safely
    def begin(self) -> None:
        most = int(self.value)
        for name in VARIABLES:  # for libraries that the worker has yet to load
            os.environ[name] = str(most)
        limit_libraries(most)
        torch: Any = sys.modules["torch"]
        torch.set_num_threads = _capped(torch.set_num_threads, most)
        cv2: Any = sys.modules.get("cv2")
        if cv2 is not None:
            cv2.setNumThreads(most)
            cv2.setNumThreads = _capped(cv2.setNumThreads, most)


def _capped(original: Callable[[int], None], most: int) -> Callable[[int], None]:
    @functools.wraps(original)
    def set_threads(n: int) -> None:
        # OpenCV takes a number below zero for "as many as there are"
        original(min(n, most) if n >= 0 else most)

    return set_threads


class Threads(Cure):
    """Threads of operations in the training process: torch's pool and the BLAS libraries."""

    ids = ("cpu.threads",)
    never = "torch was not imported"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.was: int | None = None  # what the job has, or asked for last
        self.set: Callable[[int], None] | None = None
        self.pid = os.getpid()

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [("torch", self.patch)]

    def patch(self, torch: Any) -> None:
        if is_child():
            return  # a spawned worker: what it computes is no operation of the training process
        self.was, self.set = torch.get_num_threads(), torch.set_num_threads

        @functools.wraps(self.set)
        def set_num_threads(n: int) -> None:
            if os.getpid() == self.pid:
                self.was = n
                n = n if self.value is None else self.value
            original(n)  # a forked worker sets its own

        original, torch.set_num_threads = self.set, set_num_threads
        self.switch(self.wanted)

    @safely
    def switch(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        if self.set is None or self.was is None:
            return
        if self.value == self.was:
            self.unavailable("the job has it so already")
            return
        self.set(self.was if self.value is None else self.value)
        limit_libraries(self.was if self.value is None else self.value)
        if self.value is not None:
            self.applied(self.was)


def is_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def limit_libraries(most: int) -> list[str]:
    """Set the number of threads of the BLAS and OpenMP libraries in this process."""
    done = []
    for path in _loaded():
        for part, functions in _LIBRARIES:
            if part in os.path.basename(path):
                library = ctypes.CDLL(path)
                for function in functions:
                    if hasattr(library, function):
                        getattr(library, function)(ctypes.c_int(most))
                        done.append(os.path.basename(path))
                        break
                break
    return done


def _loaded() -> Iterator[str]:
    """Shared libraries of this process, where Linux tells."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
            paths = {line.split(None, 5)[-1].strip() for line in f if ".so" in line}
    except OSError:
        return
    yield from sorted(p for p in paths if p.startswith("/") and os.path.exists(p))


CURES = (WorkerThreads, Threads)
