"""Diagnoses as brim makes them, for tests of everything that reads one."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from tests.report import example_tables

from brim.record.findings import Diagnosis, Entry, Finding, Remedy, Where, Window, check

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE steps; --",
    "[bold red]markup[/bold red] :skull:",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "line\u2028and\u2029paragraph\r\nbreak\ttab",
    "\u202egnp.exe\u202c and \u200bzero",
    "{{ 7 * 7 }} {% raw %} ${7*7} <!-- ]]>",
    "数据加载器/训练.py",
)


def _workers() -> Remedy:
    return Remedy(
        id="workers",
        summary="Use 7 loader workers: one sample costs 41 ms of CPU and 8 cores are usable",
        lossless=True,
        settings={
            "torch": "DataLoader(..., num_workers=7, persistent_workers=True)",
            "hf-trainer": "TrainingArguments(dataloader_num_workers=7)",
            "lightning": "DataLoader(..., num_workers=7)",
            "ms-swift": "--dataloader_num_workers 7",
            "llama-factory": "dataloader_num_workers: 7",
            "brim": "[loader]\nworkers = 7",
        },
        memory="0.4 GiB of host memory per worker",
    )


def input_bound() -> Diagnosis:
    """A Hugging Face run whose loader cannot keep up."""
    findings = [
        Finding(
            cause="input.workers",
            share=0.463,
            gain=(1.42, 1.86),
            confidence="high",
            evidence=[
                "the training thread waited 1.9 s of 4.1 s in 20 steps, with an empty queue",
                "2 workers were busy 97 % of the time; 6 of 8 usable cores idled",
                "a sample costs 41 ms: 22 ms decode (PIL.JpegImageFile.load), 17 ms processor",
            ],
            where=Where(file="train.py", line=41, function="build_dataloader"),
            remedies=[
                _workers(),
                Remedy(
                    id="resize-early",
                    summary="Decode at a reduced size: photographs are 8.3 times larger than used",
                    lossless=False,
                    settings={"torch": "image.draft('RGB', (896, 896))"},
                ),
            ],
        ),
        Finding(
            cause="host.sync",
            share=0.071,
            gain=(1.02, 1.08),
            confidence="medium",
            evidence=["loss.item() ran 20 times and drained the queue for 14 ms each"],
            where=Where(file="/home/u/project/callbacks.py", line=112, function="on_step_end"),
            remedies=[
                Remedy(
                    id="log-less",
                    summary="Read the loss when it is logged, not on every step",
                    lossless=True,
                    settings={
                        "torch": "if step % 50 == 0:\n    log(loss.item())",
                        "hf-trainer": "TrainingArguments(logging_steps=50)",
                    },
                )
            ],
        ),
    ]
    account = [
        Entry(part="useful", cause="compute", share=0.402),
        Entry(part="busy-not-computing", cause="transfer.pageable", share=0.031),
        Entry(part="idle", cause="input.workers", share=0.463),
        Entry(part="idle", cause="host.sync", share=0.071),
        Entry(part="unknown", cause="unknown", share=0.033),
    ]
    return check(
        Diagnosis(
            verdict="The device waits for the loader 46 % of the time: 2 workers are too few.",
            window=Window(
                steps=20,
                wall_s=4.1,
                ranks=1,
                chosen="from step 6 on, when step time varied less than 5 % over 4 steps",
            ),
            account=account,
            findings=findings,
            device="NVIDIA H200",
            frameworks=["hf-trainer", "torch"],
            metrics={
                "step_s": 0.205,
                "samples_per_s": 39.0,
                "tokens_per_s": 42_130.0,
                "gpu_util": 0.89,
                "tensor_active": 0.214,
                "overhead": 0.004,
            },
            notes=["MFU is not given: the model's FLOPs were not counted (forward failed twice)."],
            details={"steps": steps(20, 0.205, seed=1)},
        )
    )


def steps(n: int, median_s: float, *, seed: int, rank: int = 0) -> list[dict[str, Any]]:
    """Step times around a median, 2 % noise."""
    noise = random.Random(seed)
    return [
        {
            "rank": rank,
            "name": f"step {6 + i}",
            "start_us": i * median_s * 1e6,
            "wall_us": median_s * 1e6 * noise.gauss(1.0, 0.02),
        }
        for i in range(n)
    ]


def healthy() -> Diagnosis:
    """A GPU-bound run with its FLOPs counted."""
    return check(
        Diagnosis(
            verdict="Healthy: the device is busy 98.1 % of the time and no cause takes 5 %.",
            window=Window(steps=20, wall_s=13.4, ranks=1, chosen="steps 6 to 25, steady"),
            account=[
                Entry(part="useful", cause="compute", share=0.502),
                Entry(part="busy-lost", cause="compute", share=0.431),
                Entry(part="busy-lost", cause="compute.unfused", share=0.048),
                Entry(part="idle", cause="host.launch", share=0.012),
                Entry(part="unknown", cause="unknown", share=0.007),
            ],
            findings=[],
            device="NVIDIA H200",
            frameworks=["brim"],
            metrics={
                "step_s": 0.67,
                "samples_per_s": 11.9,
                "tokens_per_s": 14_200.0,
                "mfu": 0.502,
                "gpu_util": 0.98,
                "sm_active": 0.91,
                "tensor_active": 0.443,
                "overhead": 0.002,
            },
        )
    )


def comm_bound() -> Diagnosis:
    """A trace of 8 ranks that wait for their gathers, and for rank 5."""
    account = [
        Entry(part="useful", cause="compute", share=0.64),
        Entry(part="busy-not-computing", cause="comm.exposed", share=0.26),
        Entry(part="busy-not-computing", cause="comm.straggler-data", share=0.06),
        Entry(part="idle", cause="input.workers", share=0.028),
        Entry(part="idle", cause="host.launch", share=0.012),
    ]
    findings = [
        Finding(
            cause="comm.exposed",
            share=0.26,
            gain=(1.11, 1.35),
            confidence="high",
            evidence=[
                "all-gathers take 138 ms of a 412 ms step and 136 ms of it are not hidden",
                "after the last rank's arrival they reach 51 GB/s of bus bandwidth (PCIe)",
            ],
            remedies=[
                Remedy(
                    id="prefetch",
                    summary="Gather the next layer's parameters while this one computes",
                    lossless=True,
                    settings={
                        "torch": "FullyShardedDataParallel(..., forward_prefetch=True)",
                        "hf-trainer": "fsdp_config={'forward_prefetch': True}",
                    },
                    memory="one more layer's parameters, 0.2 GiB",
                )
            ],
        ),
        Finding(
            cause="comm.straggler-data",
            share=0.06,
            gain=(1.03, 1.06),
            confidence="medium",
            evidence=["rank 5 came last in 61 of 75 collectives; it had 1.31 times the tokens"],
        ),
    ]
    return check(
        Diagnosis(
            verdict="Collectives are not hidden: 8 ranks wait 26 % of the time for all-gathers.",
            window=Window(steps=3, wall_s=1.236, ranks=8, chosen="all steps of the trace"),
            account=account,
            findings=findings,
            device="NVIDIA A100-SXM4-80GB",
            metrics={"step_s": 0.412},
            notes=["rank 3: the trace ends inside its last event; what is whole was read"],
            details=example_tables.details(),
        )
    )


def hostile_tables() -> dict[str, Any]:
    """The tables of the 8 ranks with hostile text in each string."""
    everything = " ".join(HOSTILE)
    return {
        name: [
            {k: everything if isinstance(v, str) and k in _FREE_TEXT else v for k, v in row.items()}
            for row in table
        ]
        for name, table in example_tables.details().items()
    }


_FREE_TEXT = {"name", "kind", "dtype", "library", "op", "file", "device", "late_cause", "label",
              "module"}  # fmt: skip


def hostile() -> Diagnosis:
    """Every string of a diagnosis tries to break out."""
    everything = " ".join(HOSTILE)
    remedies = [
        Remedy(
            id=everything,
            summary=everything,
            lossless=False,
            settings={"torch": everything, everything: everything},
            memory=everything,
        )
    ]
    return Diagnosis(
        verdict=everything,
        window=Window(steps=3, wall_s=1.0, ranks=1, chosen=everything),
        account=[
            Entry(part="useful", cause="compute", share=0.6),
            Entry(part="idle", cause=everything, share=0.4),
        ],
        findings=[
            Finding(
                cause=everything,
                share=0.4,
                gain=(1.1, float("inf")),
                confidence="low",
                evidence=list(HOSTILE),
                where=Where(file=everything, line=1, function=everything),
                remedies=remedies,
            )
        ],
        device=everything,
        frameworks=[everything, "torch"],
        metrics={"step_s": 0.1, everything: 1.0},
        notes=list(HOSTILE),
        details=hostile_tables(),
    )


def input_cured() -> Diagnosis:
    """The input-bound run after its first remedy."""
    before = input_bound()
    after = msgspec.structs.replace(
        before,
        verdict="Healthy: the device is busy 90 % of the time and no cause takes 5 %.",
        findings=[],
        account=[
            Entry(part="useful", cause="compute", share=0.824),
            Entry(part="busy-not-computing", cause="transfer.pageable", share=0.063),
            Entry(part="idle", cause="input.workers", share=0.024),
            Entry(part="idle", cause="host.sync", share=0.041),
            Entry(part="unknown", cause="unknown", share=0.048),
        ],
        metrics={
            **before.metrics,
            "step_s": 0.104,
            "samples_per_s": 76.9,
            "tokens_per_s": 83_000.0,
        },
        details={"steps": steps(20, 0.104, seed=2)},
    )
    return check(after)


def comm_cured() -> Diagnosis:
    """The 8 ranks after half of the gathers were hidden; tables alike."""
    before = comm_bound()
    details = example_tables.details()
    for row in details["steps"]:
        row["wall_us"] *= 0.86
    for row in details["ranks"]:
        row["exposed_comm"] -= 0.1
        row["compute"] += 0.1
    for row in details["kernel_kinds"]:
        if row["kind"] == "comm":
            row["share"], row["time_us"] = row["share"] * 0.6, row["time_us"] * 0.5
    after = msgspec.structs.replace(
        before,
        account=[
            Entry(part="useful", cause="compute", share=0.74),
            Entry(part="busy-not-computing", cause="comm.exposed", share=0.14),
            Entry(part="busy-not-computing", cause="comm.straggler-data", share=0.07),
            Entry(part="idle", cause="input.workers", share=0.033),
            Entry(part="idle", cause="host.launch", share=0.017),
        ],
        metrics={"step_s": 0.412 * 0.86},
        details=details,
    )
    return check(after)
