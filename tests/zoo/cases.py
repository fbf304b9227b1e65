"""The real reports behind the scripts, and the verdict that is right for each of their arms."""

from __future__ import annotations

from case import Arm, Case, Pair
from styles import STYLES

NO_CORE_LEFT = (
    "the fixed arm's two workers just keep up on two free cores; where the cores are shared with "
    "others they do not, and then decoding is what the time goes to"
)

HEALTHY = Arm(name="fixed", cause=None)
KEEPS_UP = Arm(name="fixed", cause=None, also=("input.decode",), because=NO_CORE_LEFT)


def _exposed(name: str) -> Arm:
    return Arm(
        name=name,
        cause=None,
        also=("comm.exposed",),
        because="two ranks on two cores: the reduction that is left has no core to hide on",
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
            KEEPS_UP,
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
            KEEPS_UP,
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
            HEALTHY,
            Arm(name="faulty-spawn", cause="input.worker-restart"),
            Arm(name="fixed-spawn", cause=None),
        ),
        pairs=(
            Pair(faulty="faulty", fixed="fixed", slowdown=1.8, steps=(2, 6)),
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
    Case(
        id="Z068-shards",
        script="stream_shards.py",
        source="webdataset/webdataset#392",
        why="one shard over two workers: the second has nothing to read, a core is free",
        arms=(Arm(name="faulty", cause="input.workers"), KEEPS_UP),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(10, 60)),),
    ),
    Case(
        id="Z124-processor",
        script="processor_in_step.py",
        source="salesforce/BLIP#140",
        why="the processor runs between two steps, in the training thread, though workers exist",
        arms=(
            Arm(name="faulty", cause="input.main-process"),
            Arm(
                name="fixed",
                cause=None,
                also=("input.workers", "input.decode"),
                because="one worker just keeps up on a free core, not on a shared one",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(5, 45)),),
    ),
    Case(
        id="Z100-generator",
        script="own_batches.py",
        source="",
        why="a generator of the user's own loads images in the training thread",
        arms=(
            Arm(name="faulty", cause="input.main-process"),
            Arm(
                name="fixed",
                cause=None,
                also=("input.workers", "input.decode"),
                because="one helper process just keeps up on a free core, not on a shared one",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(5, 45)),),
    ),
    Case(
        id="Z016-numpy",
        script="whiten_numpy.py",
        source="transferable-samplers/transferable-samplers#12",
        why="NumPy's BLAS starts sixteen threads in each worker",
        arms=(
            Arm(
                name="faulty",
                cause="input.oversubscription",
                environment={"OPENBLAS_NUM_THREADS": "16"},
            ),
            Arm(
                name="fixed",
                cause="input.decode",
                also=("input.workers",),
                because="equal arithmetic: both cores stay busy with samples; a core is partly "
                "free while the loop waits",
                environment={"OPENBLAS_NUM_THREADS": "1"},
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 45)),),
    ),
    Case(
        id="Z043-store",
        script="object_store.py",
        source="horovod/horovod#824",
        why="each object comes from a far store after 50 ms: latency, which more workers hide",
        arms=(
            Arm(name="faulty", cause="input.storage"),
            Arm(
                name="many",
                cause=None,
                also=("input.storage",),
                because="twelve workers hide most of the latency; what "
                "is left of it depends on the cores",
            ),
            HEALTHY,
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=2.0, steps=(5, 45)),),
    ),
    Case(
        id="Z044-disk",
        script="tar_disk.py",
        source="mlfoundations/open_clip#899",
        why="shards stream from a disk of 12 MB/s",
        arms=(
            Arm(name="faulty", cause="input.storage"),
            Arm(
                name="fixed",
                cause=None,
                also=("input.workers", "input.decode", "input.handoff", "input.main-process"),
                because="with no disk to wait for, a step of some 20 ms waits for copies of 3 MB",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=2.0, steps=(5, 45)),),
    ),
    Case(
        id="Z009-index",
        script="big_index.py",
        source="visionml/pytracking#374",
        why="a long list is pickled to a spawned worker before every epoch",
        arms=(
            Arm(name="faulty", cause="input.worker-restart"),
            Arm(
                name="fixed",
                cause=None,
                also=("input.startup",),
                because="the list is still pickled once, a third of so short a run",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(2, 6)),),
    ),
    Case(
        id="Z019-taskset",
        script="classify_photos.py",
        source="Unity-Technologies/ml-agents#4471",
        why="two workers share the one core that the job may use; the machine has more",
        arms=(Arm(name="bound", cause="input.cpu-limit", prefix=("taskset", "-c", "0")),),
    ),
    Case(
        id="Z019-bound",
        script="bound_rank.py",
        source="Unity-Technologies/ml-agents#4471",
        why="the script binds itself, and so its workers, to one core",
        arms=(Arm(name="faulty", cause="input.cpu-limit"), KEEPS_UP),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 45)),),
    ),
    Case(
        id="Z047-objects",
        script="scene_objects.py",
        source="pytorch/pytorch#123439",
        why="384 small tensors a batch go through pickle and shared memory one by one",
        arms=(Arm(name="faulty", cause="input.handoff"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=3.0, steps=(5, 45)),),
    ),
    Case(
        id="Z048-frames",
        script="clip_frames.py",
        source="embeddings-benchmark/mteb#4747",
        why="a batch of views drags the whole decoded clips through shared memory",
        arms=(
            Arm(name="faulty", cause="input.handoff"),
            Arm(
                name="fixed",
                cause=None,
                also=("input.workers",),
                because="the worker still copies a whole clip for a sample",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 45)),),
    ),
    Case(
        id="Z054-video",
        script="video_sampling.py",
        source="QwenLM/Qwen3-VL#131",
        why="all 48 frames are decoded, eight are used, and both cores are busy with it",
        arms=(
            Arm(name="faulty", cause="input.decode"),
            Arm(
                name="fixed",
                cause="input.decode",
                also=("input.workers", None),
                because="a sixth of the work: what is left depends on the cores",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=2.5, steps=(5, 30)),),
    ),
    Case(
        id="Z057-processor",
        script="large_images.py",
        source="huggingface/transformers#34272",
        why="the image processor works on large images in float, on both cores",
        arms=(
            Arm(name="faulty", cause="input.decode"),
            Arm(
                name="fixed",
                cause="input.decode",
                also=("input.workers",),
                because="decoding the photographs is left; a core is partly free",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=2.0, steps=(5, 30)),),
    ),
    Case(
        id="Z091-blocks",
        script="compressed_blocks.py",
        source="huggingface/datasets#1755",
        why="samples drawn at random from compressed blocks: each unpacks 63 others",
        arms=(Arm(name="faulty", cause="input.decode"), KEEPS_UP),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 45)),),
    ),
    Case(
        id="Z091-annotations",
        script="annotations.py",
        source="",
        why="each sample parses the whole file of annotations",
        arms=(Arm(name="faulty", cause="input.decode"), KEEPS_UP),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 45)),),
    ),
    Case(
        id="Z109-sampler",
        script="grouped_lengths.py",
        source="huggingface/transformers#10909",
        why="every sample is loaded before the first batch: by the sampler, or by a cache",
        arms=(
            Arm(name="faulty", cause="input.startup"),
            Arm(name="cached", cause="input.startup"),
            HEALTHY,
        ),
    ),
    # -------------------------------------------------------------------------- host
    Case(
        id="Z026-limit",
        script="compiled_block.py",
        source="pytorch/torchtitan#2823",
        why="a guard on an integer or a string that changes each step: all steps compile anew",
        arms=(
            Arm(name="faulty", cause="host.recompile"),
            HEALTHY,
            Arm(name="again", cause="host.recompile"),
        ),
        pairs=(
            Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(5, 45)),
            Pair(faulty="again", fixed="fixed", slowdown=1.3, steps=(5, 45)),
        ),
    ),
    Case(
        id="Z065-buffer",
        script="replay_buffer.py",
        source="marin-community/marin#9224",
        why="the oldest generation of the collector scans 2 million records again and again",
        arms=(
            Arm(name="faulty", cause="host.gc"),
            Arm(
                name="fixed",
                cause=None,
                also=("host.gc",),
                because="freezing hides the buffer; the loop's own cycles are still collected",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.1, steps=(5, 45)),),
    ),
    Case(
        id="Z001-collect",
        script="replay_buffer.py",
        source="huggingface/peft#2894",
        why="gc.collect() after every step, with many objects alive",
        arms=(
            Arm(name="collect", cause="memory.cache-flush"),
            Arm(name="collect-rarely", cause=None),
        ),
        pairs=(Pair(faulty="collect", fixed="collect-rarely", slowdown=1.5, steps=(5, 45)),),
    ),
    Case(
        id="Z112-thread",
        script="side_thread.py",
        source="",
        why="a thread of pure Python beside the loop takes the interpreter lock",
        arms=(
            Arm(name="faulty", cause="host.gil"),
            Arm(name="progress", cause="host.gil"),
            HEALTHY,
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(10, 110)),),
    ),
    Case(
        id="Z132-field",
        script="radiance_field.py",
        source="yenchenlin/nerf-pytorch#42",
        why="anomaly mode, a tracer or a profiler was left on",
        arms=(
            Arm(name="careful", cause="host.debug-mode"),
            Arm(name="covered", cause="host.debug-mode"),
            Arm(name="profiled", cause="host.debug-mode"),
            HEALTHY,
        ),
        pairs=(
            Pair(faulty="careful", fixed="fixed", slowdown=1.2, steps=(50, 450)),
            Pair(faulty="covered", fixed="fixed", slowdown=1.2, steps=(50, 450)),
            Pair(faulty="profiled", fixed="fixed", slowdown=1.05, steps=(50, 450)),
        ),
    ),
    Case(
        id="Z050-saves",
        script="save_often.py",
        source="NVIDIA/Megatron-LM#651",
        why="a synchronous save every five steps",
        arms=(
            Arm(name="saves", cause="host.periodic"),
            Arm(name="saves-fixed", cause=None),
        ),
        pairs=(Pair(faulty="saves", fixed="saves-fixed", slowdown=1.1, steps=(9, 39)),),
    ),
    Case(
        id="Z052-validates",
        script="save_often.py",
        source="deepset-ai/FARM#68",
        why="validation every twelve steps turns all logits into Python lists",
        arms=(
            Arm(name="validates", cause="host.periodic"),
            Arm(name="validates-fixed", cause=None),
            Arm(name="pictures", cause="host.periodic"),
        ),
        pairs=(Pair(faulty="validates", fixed="validates-fixed", slowdown=1.2, steps=(11, 59)),),
    ),
    Case(
        id="Z108-tracker",
        script="tracked.py",
        source="wandb/wandb#950",
        why="histograms of all gradients and an fsync for each, every step",
        arms=(Arm(name="faulty", cause="host.periodic"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(5, 65)),),
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
    Case(
        id="Z087-packing",
        script="instruct_packed.py",
        source="niznik-dev/cruijff_kit#378",
        why="the recipe says packing, the data set never sees it: rows are padded to the maximum",
        arms=(Arm(name="faulty", cause="compute.padding"), HEALTHY),
        # a row holds one text of 114 tokens on average, or 384 tokens of such texts
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=2.0, steps=(5, 40), work=384 / 114),),
    ),
    Case(
        id="Z130-window",
        script="grouped_window.py",
        source="haotian-liu/LLaVA#988",
        why="lengths are grouped inside one batch only, which groups nothing",
        arms=(
            Arm(name="faulty", cause="compute.padding"),
            Arm(
                name="fixed",
                cause=None,
                also=("compute.padding",),
                because="groups by length keep a few per cent of padding",
            ),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.3, steps=(8, 64)),),
    ),
    Case(
        id="Z062-thrifty",
        script="thrifty.py",
        source="",
        why="activations are recomputed though memory is free",
        arms=(
            Arm(name="faulty", cause="compute.recompute"),
            HEALTHY,
            Arm(name="hub", cause="compute.recompute"),
            Arm(name="hub-fixed", cause=None),
        ),
        pairs=(
            Pair(faulty="faulty", fixed="fixed", slowdown=1.1, steps=(5, 45)),
            Pair(faulty="hub", fixed="hub-fixed", slowdown=1.1, steps=(5, 45)),
        ),
    ),
    # -------------------------------------------------------------------------- comm
    Case(
        id="Z119-buckets",
        script="ddp_layers.py",
        source="fairscale#327",
        why="one reduction for each of 600 small tensors",
        ranks=2,
        arms=(
            Arm(name="faulty", cause="comm.too-many"),
            _exposed("fixed"),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(10, 90)),),
    ),
    Case(
        id="Z033-accumulate",
        script="ddp_layers.py",
        source="",
        why="gradients are reduced in each of eight micro-batches",
        ranks=2,
        arms=(
            Arm(name="each", cause="comm.too-many"),
            _exposed("last"),
        ),
        pairs=(Pair(faulty="each", fixed="last", slowdown=1.3, steps=(5, 35)),),
    ),
    Case(
        id="Z129-lengths",
        script="ddp_lengths.py",
        source="huggingface/transformers#47340",
        why="the longer sequence of the two makes the other rank wait, now here, now there",
        ranks=2,
        arms=(
            Arm(name="faulty", cause="comm.straggler-data"),
            _exposed("fixed"),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.15, steps=(5, 55)),),
    ),
    Case(
        id="Z040-images",
        script="ddp_lengths.py",
        source="ByteDance-Seed/VeOmni#1074",
        why="equal text, very different numbers of patches",
        ranks=2,
        arms=(
            Arm(name="images", cause="comm.straggler-data"),
            _exposed("images-fixed"),
        ),
        pairs=(Pair(faulty="images", fixed="images-fixed", slowdown=1.15, steps=(5, 55)),),
    ),
    Case(
        id="Z092-stream",
        script="ddp_stream.py",
        source="huggingface/accelerate#158",
        why="each rank decodes the whole stream and drops the other's half; both cores are full",
        ranks=2,
        arms=(
            Arm(name="faulty", cause="input.decode"),
            Arm(name="fixed", cause="input.decode"),
        ),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.4, steps=(5, 35)),),
    ),
    # ------------------------------------------------------- left on, materialised, sent singly
    Case(
        id="Z132-profiler",
        script="traced_steps.py",
        source="",
        why="torch's profiler runs for six of ten steps and writes a trace each time",
        arms=(Arm(name="faulty", cause="host.debug-mode"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.5, steps=(20, 120)),),
    ),
    Case(
        id="Z061-eager",
        script="long_texts.py",
        source="verl-project/verl#4670",
        why="attention scores of 1,024 × 1,024 are written to memory and read back",
        arms=(Arm(name="faulty", cause="compute.attention"), HEALTHY),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(3, 23)),),
    ),
    Case(
        id="Z119-by-hand",
        script="ranks_by_hand.py",
        source="pytorch/pytorch#118421",
        why="240 small gradients are reduced one by one",
        ranks=2,
        arms=(Arm(name="faulty", cause="comm.too-many"), _exposed("fixed")),
        pairs=(Pair(faulty="faulty", fixed="fixed", slowdown=1.2, steps=(10, 60)),),
    ),
    Case(
        id="Z032-searching",
        script="ddp_unused.py",
        source="m2lines/Samudra#630",
        why="looking for unused parameters walks the graph, which costs little here",
        ranks=2,
        arms=(_exposed("searching"),),
    ),
    Case(
        id="Z118-skips",
        script="loss_scaling.py",
        source="NVIDIA/apex#318",
        why="a third of the optimizer's steps are skipped by loss scaling: no time is lost to it",
        arms=(Arm(name="skips", cause=None),),
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
    Case(
        id="H05-odd",
        script="healthy_odd.py",
        source="pytorch/pytorch#101291, mittagessen/kraken#505",
        why="two optimizers; none; one that is not fused but cheap; small recurrent steps; work "
        "that varies",
        arms=tuple(
            Arm(name=name, cause=None)
            for name in ("adversarial", "by-hand", "plain", "recurrent", "varied")
        ),
    ),
    *STYLES,
)
