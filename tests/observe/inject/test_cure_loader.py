"""Workers, prefetch, pinning, persistence and threads of the training loader; copies from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.observe.inject.cured import Plan, RunCured, job
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from _brim_hooks import cure_loader, cure_transfer, cure_worker  # isort: skip

WORKERS, PREFETCH = "loader.num_workers", "loader.prefetch_factor"
PIN, PERSISTENT = "loader.pin_memory", "loader.persistent_workers"
DATA = TensorDataset(torch.arange(32.0)[:, None])


def _adjusted(loader: Any, **wanted: Any) -> tuple[int, int | None, bool, bool]:
    """(workers, prefetch, pinning, persistence) of a loader under settings."""
    settings = {f"loader.{name}": value for name, value in wanted.items()}
    cure_loader.Loader(settings).adjust(loader)
    return loader.num_workers, loader.prefetch_factor, loader.pin_memory, loader.persistent_workers


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(32))


class Epochs(TensorDataset):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_workers_come_with_the_prefetch_that_a_loader_needs_and_go_with_it(plan: Plan) -> None:
    assert _adjusted(DataLoader(DATA), num_workers=3) == (3, 2, False, False)
    assert (plan.states[WORKERS], plan.was[WORKERS]) == (("applied", ""), 0)
    kept = DataLoader(DATA, num_workers=4, prefetch_factor=8, persistent_workers=True)
    assert _adjusted(kept, num_workers=0) == (0, None, False, False)
    assert plan.was[WORKERS] == 4


def test_prefetch_and_persistence_are_set_with_workers(plan: Plan) -> None:
    loader = DataLoader(DATA, num_workers=1)
    assert _adjusted(loader, prefetch_factor=7, persistent_workers=True) == (1, 7, False, True)
    assert plan.states == {PREFETCH: ("applied", ""), PERSISTENT: ("applied", "")}
    assert plan.was == {PREFETCH: 2, PERSISTENT: False}


@pytest.mark.parametrize(
    ("loader", "wanted", "id", "reason"),
    [
        (lambda: DataLoader(Stream()), {"num_workers": 2}, WORKERS, "other batches"),
        (lambda: DataLoader(DATA), {"prefetch_factor": 4}, PREFETCH, "no workers"),
        (lambda: DataLoader(DATA), {"persistent_workers": True}, PERSISTENT, "no workers"),
        (lambda: DataLoader(Epochs(torch.ones(4)), num_workers=1), {"persistent_workers": True},
         PERSISTENT, "set_epoch"),
        (lambda: DataLoader(DATA), {"pin_memory": True}, PIN, "no accelerator"),
        (lambda: DataLoader(DATA, num_workers=2), {"num_workers": 2}, WORKERS, "so already"),
        (lambda: DataLoader(DATA), {"pin_memory": False}, PIN, "so already"),
    ],
    ids=["stream", "prefetch", "persistent", "set_epoch", "pin", "same", "unpinned"],
)  # fmt: skip
def test_what_cannot_be_changed_stays_and_says_why(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, loader: Any, wanted: dict[str, Any], id: str,
    reason: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    made = loader()
    before = dict(vars(made))
    _adjusted(made, **wanted)
    assert plan.states[id][0] == "unavailable"
    assert reason in plan.states[id][1]
    assert {k: v for k, v in vars(made).items() if k != "_brim_cured"} == before


def test_pinning_is_for_a_machine_with_an_accelerator(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert _adjusted(DataLoader(DATA), pin_memory=True)[2] is True
    assert plan.states[PIN][0] == "applied"


def test_the_loader_of_an_evaluation_is_left_alone(plan: Plan, recorder: Any) -> None:
    with torch.no_grad():
        assert _adjusted(DataLoader(DATA), num_workers=3)[0] == 0
    with torch.inference_mode():
        assert _adjusted(DataLoader(DATA), num_workers=3)[0] == 0
    recorder.current = SimpleNamespace(  # after model.eval()
        mine=lambda: True, evaluating=12, sampler=SimpleNamespace(stop=lambda: None)
    )
    assert _adjusted(DataLoader(DATA), num_workers=3)[0] == 0
    assert plan.states == {}


LOADS = """
    class Own(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            return all_x[i], all_y[i] + 0 * os.getpid()
    data = Own()
    import multiprocessing
    def in_step(n):
        say["workers"] = max(say.get("workers", 0), len(multiprocessing.active_children()))
"""


def test_workers_that_stay_give_the_same_batches_in_the_same_order_in_every_epoch(
    cured: RunCured,
) -> None:
    plain = cured(job(LOADS, steps=12), {})
    settings = {WORKERS: 2, PERSISTENT: True, PREFETCH: 3, "worker.threads": 1}
    found = cured(job(LOADS, steps=12), settings)
    assert (plain.said["workers"], found.said["workers"]) == (0, 2)
    assert set(found.states().values()) == {"applied"}
    assert found.losses == plain.losses


def test_workers_that_cannot_start_leave_the_job_without_them(cured: RunCured) -> None:
    """A data set with a lock cannot be sent to a spawned process."""
    setup = """
    import threading
    class Own(Dataset):
        lock = None
        def __len__(self):
            return 64
        def __getitem__(self, i):
            return all_x[i], all_y[i]
    data = Own()
    data.lock = threading.Lock()
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    """
    plain = cured(job(setup), {})
    found = cured(job(setup), {WORKERS: 1})
    assert (found.code, found.states()) == (0, {WORKERS: "failed"})
    assert "pickle" in found.knobs[WORKERS].reason
    assert found.losses == plain.losses


# ---------------------------------------------------------------------------------------- threads


def test_a_worker_may_ask_for_fewer_threads_and_gets_no_more() -> None:
    asked: list[int] = []
    limited = cure_worker._capped(asked.append, 2)
    for n in (1, 2, 64, -1, 0):  # OpenCV: below 0 is "all", 0 is none but the caller's
        limited(n)
    assert asked == [1, 2, 2, 2, 0]


def test_threads_of_a_worker_are_limited_in_every_library(cured: RunCured) -> None:
    setup = """
    import numpy
    sys.modules["cv2"] = cv2 = type(sys)("cv2")  # a stand-in: OpenCV is not installed here
    cv2.n = -1
    cv2.setNumThreads = lambda n: setattr(cv2, "n", n)
    class Own(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, i):
            torch.set_num_threads(8)
            cv2.setNumThreads(8)
            return all_x[i], torch.tensor([torch.get_num_threads(), cv2.n,
                                       int(os.environ["OMP_NUM_THREADS"])]).float()
    data, loader_options = Own(), {"num_workers": 1}
    torch.set_num_threads(2)
    model = nn.Sequential(model, nn.Linear(1, 3))
    """
    end = "say['seen'] = y[0].tolist()\nsay['own'] = torch.get_num_threads()"
    found = cured(job(setup, end), {"worker.threads": 1})
    assert found.said["seen"] == [1, 1, 1]
    assert found.said["own"] == 2  # the training process keeps its own
    assert found.states() == {"worker.threads": "applied"}


def test_numpys_own_pool_can_be_limited() -> None:
    import numpy as np

    np.ones((4, 4)) @ np.ones((4, 4))
    done = cure_worker.limit_libraries(1)
    has = [path for path in cure_worker._loaded() if "openblas" in os.path.basename(path)]
    assert [name for name in done if "openblas" in name] == [os.path.basename(p) for p in has]


def test_threads_of_the_training_process_are_held_against_its_own_wish(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [4]
    fake = SimpleNamespace(
        get_num_threads=lambda: now[0], set_num_threads=lambda n: now.__setitem__(0, n)
    )
    monkeypatch.setattr(cure_worker, "limit_libraries", lambda most: [])
    threads = cure_worker.Threads({"cpu.threads": 2})
    threads.patch(fake)
    assert (now, plan.was["cpu.threads"]) == ([2], 4)
    fake.set_num_threads(6)  # the job asks
    assert now == [2]
    threads.switch({})  # the other arm: as the job has it
    assert now == [6]
    threads.switch({"cpu.threads": 3})
    assert now == [3]


# ----------------------------------------------------------------------------------------- copies


class _Tensor:
    """Says how it was copied."""

    def __init__(self, *, pinned: bool = False, base: Any = None) -> None:
        self._base = base
        if pinned:
            self._brim_pinned = True

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return kwargs.get("non_blocking", args[2] if len(args) > 2 else False)

    cuda = to


@pytest.mark.parametrize(
    ("tensor", "args", "kwargs", "wanted"),
    [
        (_Tensor(pinned=True), ("cuda",), {}, True),
        (_Tensor(pinned=True), ("cuda",), {"non_blocking": False}, True),  # accelerate's default
        (_Tensor(base=_Tensor(pinned=True)), ("cuda",), {}, True),  # a slice of the batch
        (_Tensor(pinned=True), ("cuda", None, False), {}, False),  # said in its own way
        (_Tensor(), ("cuda",), {}, False),  # pageable, or a buffer of the job's own
    ],
)
def test_only_what_the_loader_has_pinned_is_copied_without_blocking(
    plan: Plan, tensor: Any, args: Any, kwargs: dict[str, Any], wanted: bool
) -> None:
    kind = type("Tensor", (_Tensor,), {})
    cure_transfer.NonBlocking({"transfer.non_blocking": True}).patch_tensor(
        SimpleNamespace(Tensor=kind)
    )
    assert kind.to(tensor, *args, **kwargs) is wanted
    assert ("transfer.non_blocking" in plan.states) is wanted


def test_all_tensors_of_a_pinned_batch_are_marked(plan: Plan) -> None:
    batch = {"pixels": torch.ones(2), "more": [torch.ones(3), "text"]}

    def pin_memory(data: Any, device: Any = None) -> Any:  # as torch's: it calls itself by name
        if isinstance(data, dict):
            return {k: module.pin_memory(v, device) for k, v in data.items()}
        if isinstance(data, list):
            return [module.pin_memory(v, device) for v in data]
        return data.clone() if isinstance(data, torch.Tensor) else data

    module = SimpleNamespace(pin_memory=pin_memory)
    cure_transfer.NonBlocking({"transfer.non_blocking": True}).patch_pinning(module)
    pinned = module.pin_memory(batch)
    assert cure_transfer.is_marked(pinned["pixels"])
    assert cure_transfer.is_marked(pinned["more"][0][1:])
    assert not cure_transfer.is_marked(batch["pixels"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_are_copied_without_blocking_on_a_device(cured: RunCured) -> None:
    setup = """
    model.cuda()
    inner = model.forward
    model.forward = lambda x: inner(x.to("cuda"))
    y = y.cuda()
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    """
    code = job(setup).replace("(model(x) - y)", "(model(x) - y.to('cuda'))")
    plain = cured(code, {})
    found = cured(code, {PIN: True, "transfer.non_blocking": True})
    assert set(found.states().values()) == {"applied"}
    assert found.losses == plain.losses
