"""Two ranks on the CPU: reduced once per step, with the gradients of reducing each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.observe.inject.cured import RunCured

from brim.record.applied import read_applied

# Two processes over gloo; four micro-batches a step, and a last step of three: an epoch's end.
DDP = """
import json, os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COUNTS = {counts}

def main(rank, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method="file://" + folder + "/meet", rank=rank,
                            world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4){options})
    reductions = []
    def reduce(state, bucket):
        reductions.append(bucket.buffer().numel())
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda f: f.value()[0])
    model.register_comm_hook(None, reduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    norms = []
    for count in COUNTS:
        for _ in range(count):
            (model(torch.randn(4, 8)).square().mean() / count).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    weights = model.module.weight.detach()
    print(json.dumps(dict(rank=rank, norms=norms, reductions=len(reductions),
                          weights=weights.flatten().tolist())), file=open(
                              folder + "/out%d.json" % rank, "w"))
    dist.destroy_process_group()

if __name__ == "__main__":
    import tempfile
    folder = tempfile.mkdtemp(dir=os.getcwd())
    mp.spawn(main, (folder,), nprocs=2)
    print(open(folder + "/out0.json").read().strip())
    assert json.load(open(folder + "/out1.json"))["weights"] == json.load(
        open(folder + "/out0.json"))["weights"], "the ranks have drifted apart"
"""


def _run(cured: RunCured, settings: dict[str, Any], **fields: str) -> Any:
    return cured(DDP.format(**{"counts": "[4, 4, 4, 4, 4, 3]", "options": "", **fields}), settings)


def test_four_micro_batches_are_reduced_once_and_a_short_step_is_still_right(
    cured: RunCured, tmp_path: Path
) -> None:
    plain = _run(cured, {})
    found = _run(cured, {"ddp.no_sync": True, "ddp.bucket_cap_mb": 50})
    assert (plain.code, found.code) == (0, 0), found.stderr
    assert plain.said["reductions"] == 23
    # two steps to learn that there are four, then one each; the short one is averaged by hand
    assert found.said["reductions"] == 4 + 4 + 1 + 1 + 1
    for rank in (0, 1):
        states = read_applied(tmp_path / "runs" / f"applied.rank{rank}.jsonl").knobs
        assert {k.id: (k.state, k.was) for k in states.values()} == {
            "ddp.no_sync": ("applied", "4 times per step"), "ddp.bucket_cap_mb": ("applied", 25),
        }  # fmt: skip
    assert found.said["norms"] == pytest.approx(plain.said["norms"], rel=1e-5)
    assert found.said["weights"] == pytest.approx(plain.said["weights"], rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "reductions", "reason"),
    [
        ({"counts": "[1] * 8"}, 8, "once per step already"),
        ({"counts": "[2, 3, 2, 3, 2, 3]"}, 15, "changes"),
        ({"options": ", static_graph=True"}, 23, "static_graph"),
    ],
    ids=["once", "changing", "static"],
)
def test_jobs_in_which_it_would_do_nothing_or_harm_are_left_alone(
    cured: RunCured, fields: dict[str, str], reductions: int, reason: str
) -> None:
    found = _run(cured, {"ddp.no_sync": True}, **fields)
    assert found.code == 0, found.stderr
    assert found.knobs["ddp.no_sync"].state == "unavailable"
    assert reason in found.knobs["ddp.no_sync"].reason
    assert found.said["reductions"] == reductions
