"""Kinds of fault that are reported in many styles of program, in styles that no one report has."""

from __future__ import annotations

from case import Arm, Case, Pair

HEALTHY = Arm(name="fixed", cause=None)

STYLES: tuple[Case, ...] = (
    Case(
        id="S01-sampler",
        script="planned_batches.py",
        source="",
        why="workers are there, but the batch sampler sorts all texts anew for each batch",
        arms=(Arm(name="faulty", cause="input.main-process"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(5, 45)),),
    ),
    Case(
        id="S02-json",
        script="json_lines.py",
        source="",
        why="the loop itself parses JSON lines, between two micro-batches",
        arms=(Arm(name="faulty", cause="input.main-process"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 65)),),
    ),
    Case(
        id="S03-average",
        script="weight_average.py",
        source="",
        why="the model is copied in every step for an average of its weights",
        arms=(Arm(name="faulty", cause="host.periodic"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(10, 70)),),
    ),
    Case(
        id="S04-metric",
        script="retrieval.py",
        source="",
        why="a metric over the last batches is computed in NumPy after every step",
        arms=(Arm(name="faulty", cause="host.periodic"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(15, 65)),),
    ),
    Case(
        id="S05-habits",
        script="trainer_habits.py",
        source="",
        why="the Trainer previews texts, evaluates or saves every few steps",
        arms=(
            Arm(name="previews", cause="host.periodic"),
            Arm(name="evals", cause="host.periodic"),
            Arm(name="saves", cause="host.periodic"),
            HEALTHY,
        ),
        pairs=(
            Pair(faulty="previews", fixed="fixed", slowdown=1.2, steps=(5, 35)),
            Pair(faulty="evals", fixed="fixed", slowdown=1.2, steps=(5, 35)),
        ),
    ),
    Case(
        id="S06-handle",
        script="one_handle.py",
        source="",
        why="four workers read a slow disk one at a time, behind a lock",
        arms=(Arm(name="faulty", cause="input.storage"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=2.0, steps=(5, 35)),),
    ),
    Case(
        id="S07-feed",
        script="thread_feed.py",
        source="",
        why="one thread decodes photographs, in more time than a step takes",
        arms=(Arm(name="faulty", cause="input.workers"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(5, 45)),),
    ),
    Case(
        id="S08-threads",
        script="many_threads.py",
        source="",
        why="24 threads compute on two cores",
        arms=(Arm(name="faulty", cause="input.oversubscription"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(5, 45)),),
    ),
    Case(
        id="S09-instruments",
        script="left_watching.py",
        source="",
        why="torch's profiler follows every operation of a net of tiny ones, in every step",
        arms=(Arm(name="operations", cause="host.debug-mode"), HEALTHY),
        pairs=(Pair(faulty="operations", fixed="fixed", slowdown=1.4, steps=(10, 110)),),
    ),
    Case(
        id="S11-chores",
        script="ddp_chores.py",
        source="",
        why="both ranks wait for one that writes checkpoints, has a slow disk, or a slow device",
        ranks=2,
        arms=(
            Arm(name="writes", cause="host.periodic"),
            Arm(name="disk", cause="input.storage"),
            Arm(name="clock", cause="comm.straggler-device"),
            Arm(
                name="fixed",
                cause=None,
                also=("comm.exposed",),
                because="two ranks on two cores: the reduction that is left has no core to hide on",
            ),
        ),
        pairs=(
            Pair(faulty="writes", fixed="fixed", slowdown=1.2, steps=(10, 50)),
            Pair(faulty="disk", fixed="fixed", slowdown=1.5, steps=(10, 50)),
            Pair(faulty="clock", fixed="fixed", slowdown=1.5, steps=(10, 50)),
        ),
    ),
    Case(
        id="S12-service",
        script="far_service.py",
        source="",
        why="the loop waits for a service that answers after 30 ms, once a step",
        arms=(Arm(name="faulty", cause="input.storage"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(10, 60)),),
    ),
    Case(
        id="S13-guilty",
        script="looks_guilty.py",
        source="",
        why="no workers, reads of the loss, a log, collections: each costs little",
        arms=(Arm(name="chatty", cause=None),),
    ),
)
