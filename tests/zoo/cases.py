"""The real reports behind the scripts, and the verdict that is right for each of their arms."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to run a script."""

    name: str
    cause: str | None
    """The id that ``findings[0].cause`` must be; None: the run must have no finding."""
    also: tuple[str | None, ...] = ()
    """Other verdicts that are as right, with the reason in ``because``."""
    because: str = ""
    prefix: tuple[str, ...] = ()
    """What stands before the command, as ``taskset -c 0``."""
    environment: dict[str, str] = field(default_factory=dict)

    def right(self, verdict: str | None) -> bool:
        return verdict == self.cause or verdict in self.also


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A faulty arm against the arm that cures it."""

    faulty: str
    fixed: str
    slowdown: float
    """The faulty arm takes at least this many times as long for a step."""
    steps: tuple[int, int]
    """``--steps`` of a short and a long run: their difference leaves the start out."""


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    script: str
    source: str
    """Where it was reported; empty for a healthy run."""
    why: str
    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...] = ()
    ranks: int = 1
    """Above 1 the script runs under torchrun."""

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


NO_CORE_LEFT = (
    "the fixed arm's two workers just keep up on two free cores; where the cores are shared with "
    "others they do not, and then decoding is what the time goes to"
)

CASES: tuple[Case, ...] = (
    # ------------------------------------------------------------------------- input
    Case(
        id="Z099-classify",
        script="classify_photos.py",
        source="open-edge-platform/geti#5958",
        why="one worker makes a batch in more time than a step takes, and a core is free",
        arms=(
            Arm(name="faulty", cause="input.workers"),
            Arm(name="fixed", cause=None, also=("input.decode",), because=NO_CORE_LEFT),
            Arm(name="crowded", cause="input.decode"),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(10, 60)),),
    ),
    Case(
        id="Z039-trainer",
        script="sft_trainer.py",
        source="oumi-ai/oumi#646",
        why="the Trainer's default is no worker: images are loaded between two steps",
        arms=(
            Arm(name="faulty", cause="input.main-process"),
            Arm(name="fixed", cause=None, also=("input.decode",), because=NO_CORE_LEFT),
            Arm(name="large", cause="input.main-process"),
            Arm(name="large-fixed", cause="input.decode"),
        ),
        pairs=(
            Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(5, 35)),
            Pair(faulty="large", fixed="large-fixed", slowdown=1.2, steps=(5, 35)),
        ),
    ),
    Case(
        id="Z015-warp",
        script="detect_warp.py",
        source="open-mmlab/mmdetection#6867",
        why="each worker computes with 16 threads on two cores",
        arms=(
            Arm(name="faulty", cause="input.oversubscription"),
            Arm(
                name="fixed",
                cause="input.decode",
                also=("input.workers",),
                because="equal arithmetic: both cores stay busy with samples; a core is partly "
                "free while the loop waits",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(5, 45)),),
    ),
    Case(
        id="Z017-ahead",
        script="detect_warp.py",
        source="liebharc/homr#128",
        why="workers have 16 threads each, but the loader is ahead of the loop all the time",
        arms=(Arm(name="ahead", cause=None),),
    ),
    Case(
        id="Z007-epochs",
        script="epochs_small_set.py",
        source="ultralytics/yolov5#876",
        why="eight steps an epoch, and new workers load their index before each",
        arms=(
            Arm(name="faulty", cause="input.worker-restart"),
            Arm(name="fixed", cause=None),
            Arm(name="faulty-spawn", cause="input.worker-restart"),
            Arm(name="fixed-spawn", cause=None),
        ),
        pairs=(
            Pair(faulty="faulty", fixed="fixed", slowdown=1.8, steps=(2, 8)),
            Pair(faulty="faulty-spawn", fixed="fixed-spawn", slowdown=2.5, steps=(1, 5)),
        ),
    ),
    Case(
        id="Z043-share",
        script="shared_folder.py",
        source="horovod/horovod#824",
        why="all workers read from a share of 20 MB/s; more workers do not help",
        arms=(
            Arm(name="faulty", cause="input.storage"),
            Arm(name="more", cause="input.storage"),
            Arm(
                name="fixed",
                cause=None,
                also=("input.handoff", "input.decode", "input.workers"),
                because="8 MB a batch are copied through shared memory in a step of some 20 ms",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=4.0, steps=(5, 35)),),
    ),
    # ----------------------------------------------------------------------- compute
    Case(
        id="Z131-pairs",
        script="vlm_batches.py",
        source="huggingface/nanoVLM#115",
        why="random batches of log-normal lengths are padded to their longest",
        arms=(
            Arm(name="faulty", cause="compute.padding"),
            Arm(
                name="fixed",
                cause=None,
                also=("compute.padding",),
                because="groups by length keep a few per cent of padding",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(5, 40)),),
    ),
    # ----------------------------------------------------------------------- healthy
    Case(
        id="H01-trainer",
        script="healthy_trainer.py",
        source="",
        why="a worker is ahead of the Trainer",
        arms=(Arm(name="single", cause=None), Arm(name="accumulate", cause=None)),
    ),
    Case(
        id="H02-raw",
        script="healthy_raw_loop.py",
        source="",
        why="cheap samples; reading the loss each step waits for nothing on a CPU; two "
        "checkpoints in the whole run",
        arms=tuple(
            Arm(name=name, cause=None)
            for name in ("workers", "inline", "item", "checkpoints", "clipped")
        ),
    ),
    Case(
        id="H03-accelerate",
        script="healthy_accelerate.py",
        source="",
        why="an Accelerate loop, with and without accumulation",
        arms=(Arm(name="plain", cause=None), Arm(name="accumulate", cause=None)),
    ),
    Case(
        id="H04-spawn",
        script="healthy_spawn.py",
        source="",
        why="spawned workers that live as long as the run",
        arms=(Arm(name="persistent", cause=None),),
    ),
)
