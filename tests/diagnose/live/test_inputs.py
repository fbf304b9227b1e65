"""Which ``input.*`` a wait for the loader is, and its look-alikes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import (
    LOADING,
    MAIN,
    SITE,
    TRAIN,
    evidence,
    machine,
    process,
    seen,
    stack,
    steps,
    workers,
)

from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import gather
from brim.diagnose.live.inputs import Machine, clues
from brim.diagnose.live.window import choose
from brim.diagnose.remedies import for_cause

WAITS: dict[str, Any] = {"input_wait": 0.06, "input_cpu": 0.001, "batches": 1}


def _clue(
    fields: dict[str, Any],
    lines: dict[str, Any] | None = None,
    host: Machine | None = None,
    number: int = 2,
) -> Clue:
    """The one clue of a loop of 100 steps of 0.1 s with these fields."""
    found = evidence(steps(100, **(WAITS | fields)))
    load = workers(found.chosen, number, **lines) if lines is not None else None
    (clue,) = clues(found, load, host or machine())
    return clue


BUSY: dict[str, Any] = {}  # workers that compute all the time, one thread each


@pytest.mark.parametrize(
    ("cause", "fields", "lines", "host"),
    [
        # busy workers, and cores are left
        ("input.workers", {}, BUSY, machine()),
        # the same workers on as many cores as they use: making samples is too dear
        ("input.decode", {}, BUSY | {"cores": 2}, machine(machine=2, usable=2.0)),
        # the same on a machine that has more, but not for this job
        ("input.cpu-limit", {}, BUSY | {"cores": 2}, machine(usable=2.0)),
        ("input.cpu-limit", {}, BUSY, machine(throttled=0.4)),
        # several threads a worker that all want a core
        ("input.oversubscription", {}, {"threads": 9, "running": 6.0, "run_delay": 0.5,
                                        "thread_cpu": 0.4}, machine()),
        # the same threads where there are cores for all of them
        ("input.workers", {}, {"threads": 9, "running": 3.0}, machine()),
        # the workers are off their cores
        ("input.storage", {}, {"thread_cpu": 0.1, "cpu": 0.1}, machine()),
        # off their cores for want of one
        ("input.decode", {}, {"thread_cpu": 0.4, "run_delay": 0.5, "cpu": 0.95, "cores": 2},
         machine(machine=2, usable=2.0)),
        # the wait is unpickling in the training process
        ("input.handoff", {"rebuild": 0.05, "rebuild_bytes": 1 << 20}, BUSY, machine()),
        # or pickling in the workers' feeder threads
        ("input.handoff", {"rebuild": 0.02}, {"getitem": 0.2, "thread_cpu": 0.2, "pickle": 0.8},
         machine()),
        # no workers
        ("input.main-process", {"input_main": 0.06, "input_cpu": 0.055, "getitem": 0.05}, None,
         machine()),
        # no workers, and the process is off its core while it loads
        ("input.storage", {"input_main": 0.06, "input_cpu": 0.006}, None, machine()),
        # off its core for want of one: a busy machine is no storage
        ("input.main-process", {"input_main": 0.06, "input_cpu": 0.01, "run_delay": 0.08}, None,
         machine()),
        # workers without records
        ("input.workers", {}, None, machine()),
    ],
)  # fmt: skip
def test_each_cause_from_the_records_that_show_it(
    cause: str, fields: dict[str, Any], lines: dict[str, Any] | None, host: Machine
) -> None:
    clue = _clue(fields, lines, host)
    assert clue.cause == cause
    assert clue.seconds == pytest.approx(6.0)
    assert clue.evidence


def test_a_cheap_handoff_does_not_hide_workers_that_never_rest() -> None:
    slow = {"input_wait": 0.012, "rebuild": 0.008}
    both = machine(machine=2, usable=2.0)
    assert _clue(slow, BUSY | {"cores": 2}, both).cause == "input.decode"
    rested = {"getitem": 0.1, "thread_cpu": 0.1, "cpu": 0.1, "cores": 2}
    assert _clue(slow, rested, both).cause == "input.handoff"


def _epochs(**of_a_start: Any) -> list[Any]:
    lines = steps(100, **(WAITS | {"input_wait": 0.002}))
    for line in lines[::10]:
        line.epochs = 1
        for name, value in of_a_start.items():
            setattr(line, name, value)
    return lines


def test_workers_started_anew_every_epoch_are_named_with_their_number() -> None:
    found = evidence(
        _epochs(worker_starts=2, input_iter=0.05, input_first=0.04, input_wait=0.095, wall=0.2)
    )
    (clue,) = clues(found, workers(found.chosen), machine())
    assert clue.cause == "input.worker-restart"
    assert "20 worker processes were started in 10 epochs" in clue.evidence[1]
    assert clue.after == pytest.approx(clue.seconds - 0.9, rel=0.01)


def test_epoch_starts_of_workers_that_stay_are_no_restart() -> None:
    found = evidence(_epochs(input_iter=0.01, input_first=0.08, input_wait=0.095, wall=0.2))
    (clue,) = clues(found, workers(found.chosen), machine())
    assert clue.cause == "input.startup"
    assert clue.report_from == pytest.approx(0.1)


def test_one_start_of_workers_is_no_restart() -> None:
    lines = steps(100, **WAITS)
    lines[0].worker_starts, lines[0].epochs, lines[0].input_iter = 2, 1, 0.05
    found = evidence(lines)
    assert clues(found, workers(found.chosen), machine())[0].cause == "input.workers"


# ---------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("now", "getitem", "cores", "advised"),
    [
        (1, 0.9, 8.0, 6),  # a batch 0.18 s, the loop 0.04 s: 5.2 workers
        (2, 0.9, 8.0, 6),
        (2, 0.9, 4.0, 4),  # six would keep up, four fit
        (1, 0.25, 8.0, 2),
    ],
)
def test_the_number_of_workers_follows_from_the_stages_and_the_cores(
    now: int, getitem: float, cores: float, advised: int
) -> None:
    # each worker makes five batches a second of its line
    fields = {"getitem": getitem, "thread_cpu": getitem, "cpu": getitem, "wall": getitem}
    clue = _clue({}, fields | {"cores": int(cores)}, machine(machine=8, usable=8.0), now)
    assert clue.cause == "input.workers"
    assert clue.facts["workers"] == advised
    assert clue.facts["now"] == now


def test_where_the_needed_workers_do_not_fit_a_part_of_the_wait_stays() -> None:
    fits = _clue({}, BUSY | {"getitem": 0.95}, machine(machine=64, usable=64.0))
    tight = _clue({}, BUSY | {"fetches": 1, "cores": 4}, machine(machine=4, usable=4.0))
    assert fits.after == 0
    assert tight.cause == "input.workers"
    assert tight.after is not None
    assert 0 < tight.after < tight.seconds


def test_a_loop_that_only_waits_needs_a_bounded_number_of_workers() -> None:
    clue = _clue({"input_wait": 0.1}, BUSY)
    assert (clue.facts["needed"], clue.facts["workers"]) == (295, 8)


@pytest.mark.parametrize(
    ("bytes_read", "kind"), [(40 * 4 << 20, "bandwidth"), (40 * 4 << 10, "latency")]
)
def test_storage_is_bandwidth_when_much_is_read_for_a_sample_else_latency(
    bytes_read: int, kind: str
) -> None:
    clue = _clue({}, {"thread_cpu": 0.05, "read_calls_bytes": bytes_read})
    assert clue.facts["kind"] == kind
    assert kind in clue.evidence[2]


def test_the_evidence_names_the_function_and_the_users_line() -> None:
    clue = _clue({}, BUSY)
    assert clue.where is not None
    assert (clue.where.file, clue.where.line) == (TRAIN, 12)
    assert any("Image.resize (PIL/Image.py) 100.0 %" in line for line in clue.evidence)
    assert LOADING.frames[1].line == 12


# ---------------------------------------------------------------------------------- no finding


def test_a_loop_that_never_waits_gives_no_clue() -> None:
    found = evidence(steps(100, samples=seen(("1", 0.1))))
    assert clues(found, workers(found.chosen), machine()) == []


def test_where_batches_lie_ready_the_wait_is_the_price_of_any_worker() -> None:
    rested = BUSY | {"getitem": 0.7, "thread_cpu": 0.7, "cpu": 0.7}
    price = _clue({"input_wait": 0.007, "ready": 3}, rested)
    fault = _clue({"input_wait": 0.007, "ready": 0}, rested)
    assert (price.report_from, fault.report_from) == (pytest.approx(0.1), pytest.approx(0.05))


def test_batches_that_lie_ready_behind_a_late_one_acquit_no_worker_that_never_rests() -> None:
    assert _clue({"input_wait": 0.007, "ready": 3}, BUSY).report_from == pytest.approx(0.05)


def test_few_dense_tensors_are_no_fault_of_the_hand_over_and_many_are() -> None:
    fields = {"rebuild": 0.05}
    few = _clue(fields, {"weighed": 1, "tensors": 2, "tensor_bytes": 1 << 20,
                         "storage_bytes": 1 << 20})  # fmt: skip
    many = _clue(fields, {"weighed": 1, "tensors": 900, "tensor_bytes": 1 << 20,
                          "storage_bytes": 1 << 20})  # fmt: skip
    views = _clue(fields, {"weighed": 1, "tensors": 2, "tensor_bytes": 1 << 20,
                           "storage_bytes": 9 << 20})  # fmt: skip
    assert few.report_from > many.report_from == views.report_from
    assert "views of bigger tensors" in views.evidence[2]


# ---------------------------------------------------------------------------------- in the loop

DECODE = stack(
    "5", (f"{SITE}/PIL/Image.py", "open"), (TRAIN, "train", 33, "img = Image.open(p)"), MAIN
)
FETCH = stack(
    "6",
    ("/usr/lib/python3.12/socket.py", "SocketIO.readinto"),
    (TRAIN, "get", 21, "x = read()"),
    MAIN,
)
GET = stack("6", ("/usr/lib/python3.12/queue.py", "Queue.get"), (TRAIN, "train", 31, ""), MAIN)


def test_samples_prepared_in_the_loop_itself_are_main_process_work() -> None:
    found = evidence(steps(100, cpu=0.1, samples=seen(("1", 0.06), ("5", 0.04))), DECODE)
    (clue,) = clues(found, None, machine())
    assert clue.cause == "input.main-process"
    assert clue.seconds == pytest.approx(4.0)
    assert clue.where is not None
    assert clue.where.line == 33


@pytest.mark.parametrize(
    ("used", "cause", "confidence"),
    [(None, "input.workers", "low"), (1.2, "input.workers", "medium"),
     (7.8, "input.decode", "medium")],
)  # fmt: skip
def test_a_queue_that_is_no_dataloaders_is_a_producer_that_was_not_seen(
    used: float | None, cause: str, confidence: str
) -> None:
    found = evidence(steps(100, samples=seen(("1", 0.06), ("6", 0.04))), GET)
    (clue,) = clues(found, None, machine(job=used))
    assert (clue.cause, clue.confidence) == (cause, confidence)
    assert "workers" not in clue.facts  # no number can be advised


def test_a_thread_that_prefetches_from_a_loader_hides_nothing_of_its_workers() -> None:
    found = evidence(steps(100, samples=seen(("1", 0.06), ("6", 0.04))), GET)
    (clue,) = clues(found, workers(found.chosen, 2), machine())
    assert (clue.cause, clue.confidence) == ("input.workers", "high")
    assert clue.seconds == pytest.approx(4.0)
    assert clue.facts["now"] == 2


def test_a_loop_in_a_socket_waits_for_storage_whatever_the_samples_say_about_its_core() -> None:
    smeared = {"6": (1, 0.06, 0.03, 0.0)}  # the CPU time of 50 ms around the sample
    found = evidence(steps(100, cpu=0.04, samples=seen(("1", 0.04)) | smeared), FETCH)
    (clue,) = clues(found, None, machine())
    assert (clue.cause, clue.seconds) == ("input.storage", pytest.approx(6.0))
    assert "off its core for 6 s of that" in clue.evidence[1]


@pytest.mark.parametrize(
    ("cpu", "delay", "cause"),
    [
        (0.1, 0.0, "input.main-process"),  # it decodes
        (0.045, 0.05, "input.main-process"),  # it wants to, and gets no core
        (0.045, 0.0, "input.storage"),  # it waits for what it reads
    ],
)
def test_work_on_samples_in_the_loop_is_storages_where_the_thread_is_off_its_core(
    cpu: float, delay: float, cause: str
) -> None:
    lines = steps(100, cpu=cpu, run_delay=delay, samples=seen(("1", 0.04), ("5", 0.06)))
    assert [c.cause for c in clues(evidence(lines, DECODE), None, machine())] == [cause]


# ---------------------------------------------------------------------------------- the sampler

TORCH_LOADER = f"{SITE}/torch/utils/data/dataloader.py"
CHOOSE = stack(
    "7", (TRAIN, "Budgeted.__iter__", 37, "for i in sorted(left):"),
    (TORCH_LOADER, "_BaseDataLoaderIter._next_index"),
    (TORCH_LOADER, "_MultiProcessingDataLoaderIter._try_put_index"), MAIN, phase="input",
)  # fmt: skip
IDLE: dict[str, Any] = {"getitem": 0.01, "thread_cpu": 0.01, "cpu": 0.01, "waiting": 0.99}


def test_a_sampler_that_computes_in_the_training_thread_is_no_fault_of_the_workers() -> None:
    lines = steps(100, **(WAITS | {"ready": 4}), samples=seen(("1", 0.04), ("7", 0.055)))
    found = evidence(lines, CHOOSE)
    (clue,) = clues(found, workers(found.chosen, 2, **IDLE), machine())
    assert (clue.cause, clue.seconds) == ("input.main-process", pytest.approx(6.0))
    assert clue.where is not None
    assert clue.where.line == 37
    (remedy,) = for_cause(clue.cause, clue.facts)
    assert remedy.id == "cheaper-sampler"


def test_a_sampler_that_is_a_small_part_of_the_wait_is_not_named() -> None:
    waiting = seen(("1", 0.04), ("7", 0.01), ("2", 0.05))
    found = evidence(steps(100, **WAITS, samples=waiting), CHOOSE)
    (clue,) = clues(found, workers(found.chosen, 2), machine())
    assert clue.cause == "input.workers"


def test_workers_that_wait_for_a_lock_are_not_told_to_be_more() -> None:
    lock = stack(
        "1", ("/usr/lib/python3.12/multiprocessing/synchronize.py", "SemLock.__enter__"),
        (TRAIN, "Container.__getitem__", 29, "with self.lock:"), phase="getitem", pid=201,
    )  # fmt: skip
    found = evidence(steps(100, **WAITS))
    load = workers(found.chosen, 2, stacks=(lock,), thread_cpu=0.01, cpu=0.01)
    (clue,) = clues(found, load, machine())
    assert clue.cause == "input.storage"
    assert "100.0 % of the time they wait for a lock" in clue.evidence[2]
    assert "more workers" not in clue.evidence[2]
    assert for_cause(clue.cause, clue.facts)[0].id == "one-handle-a-worker"


# ---------------------------------------------------------------------------------- the start


def _start(first: float, cpu: float, number: int = 100) -> list[Clue]:
    lines = steps(number + 1, samples=seen(("1", 0.1)))
    lines[0].input_first, lines[0].input_cpu, lines[0].wall = first, cpu, first + 0.1
    found = process(lines)
    return clues(gather(found, choose(found, warmup=1)), None, machine())


@pytest.mark.parametrize(
    ("first", "cpu", "named"),
    [
        (8.0, 7.0, True),  # the process itself decodes its data set
        (2.0, 2.0, False),  # too short for a word
        (8.0, 0.1, False),  # workers that import their modules
        (30.0, 0.1, True),  # but not for half a minute
    ],
)
def test_a_long_first_batch_is_named_once_when_it_is_a_good_part_of_what_was_seen(
    first: float, cpu: float, named: bool
) -> None:
    found = _start(first, cpu)
    assert [c.cause for c in found] == ["input.startup"] * named
    if named:
        assert found[0].seconds == pytest.approx(first)


def test_a_first_batch_that_a_long_run_makes_up_for_is_no_finding() -> None:
    assert _start(8.0, 7.0, number=900) == []
