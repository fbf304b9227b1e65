"""A function on several ranks that talk through gloo, on one machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from tests.forks import TORCH, meeting

_CONTEXT = multiprocessing.get_context("forkserver")
# imported once, in the server that every rank is forked from
_CONTEXT.set_forkserver_preload(
    [*TORCH, "torch.distributed.fsdp", "brim.train.session", "tests.train.parallel.tiny"]
)


def on_ranks(
    world: int, function: Callable[..., Any], *args: Any, joined: bool = True, timeout: float = 60
) -> list[Any]:
    """``function(ranks, *args)`` on every rank of ``world``; the results by rank.

    ``joined`` False: ``function(*args)``, which joins the ranks itself.  A rank that fails fails
    the call with its traceback, and so does one that hangs after ``timeout`` seconds.
    """
    receivers, processes = [], []
    with meeting(world) as variables:
        for more in variables:
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_one, args=(more, sender, function, args, joined), daemon=True
            )
            process.start()
            sender.close()
            receivers.append(receiver)
            processes.append(process)
        try:
            return [_result(rank, receiver, timeout) for rank, receiver in enumerate(receivers)]
        finally:
            for process in processes:
                process.join(5)
                process.kill()


def _result(rank: int, receiver: Any, timeout: float) -> Any:
    if not receiver.poll(timeout):
        raise TimeoutError(f"rank {rank} gave no result within {timeout} s")
    try:
        good, value = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise RuntimeError(f"rank {rank} is gone") from None
    if not good:
        raise RuntimeError(f"rank {rank} failed:\n{value}")
    return value


def _one(
    variables: dict[str, str], sender: Any, function: Callable[..., Any], args: Any, joined: bool
) -> None:
    import torch

    from brim.train.parallel.ranks import join

    torch.set_num_threads(1)
    os.environ |= variables
    try:
        ranks = join() if joined else None
        result = function(ranks, *args) if ranks else function(*args)
        # by value: a tensor's shared memory would be gone with its process
        sender.send_bytes(pickle.dumps((True, result)))
        if ranks:
            ranks.leave()
    except BaseException:
        sender.send_bytes(pickle.dumps((False, traceback.format_exc())))
