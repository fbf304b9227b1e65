"""Two ranks on the CPU: reduced once per step, with the gradients of reducing each time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.observe.inject.cured import Cured, RunCured

# Two processes over gloo; four micro-batches a step, and a last step of three: an epoch's end.
DDP = """
import json, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 4){options})
reductions = []
def reduce(state, bucket):
    reductions.append(bucket.buffer().numel())
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
    return work.get_future().then(lambda f: f.value()[0])
model.register_comm_hook(None, reduce)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
norms = []
for count in {counts}:
    for _ in range(count):
        (model(torch.randn(4, 8)).square().mean() / count).backward()
    norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
    optimizer.step()
    optimizer.zero_grad()
weights = model.module.weight.detach().flatten().tolist()
print(json.dumps(dict(norms=norms, reductions=len(reductions), weights=weights)))
dist.destroy_process_group()
"""


def _run(cured: RunCured, settings: dict[str, Any], *, fresh: bool = False, **fields: str) -> Cured:
    code = DDP.format(**{"counts": "[4, 4, 4, 4, 4, 3]", "options": "", **fields})
    found = cured(code, settings, ranks=2, fresh=fresh)
    assert found.code == 0, found.stderr
    (_, first), (_, second) = found.ranks
    assert first["weights"] == second["weights"], "the ranks have drifted apart"
    return found


def test_four_micro_batches_are_reduced_once_and_a_short_step_is_still_right(
    cured: RunCured,
) -> None:
    plain = _run(cured, {})
    found = _run(cured, {"ddp.no_sync": True, "ddp.bucket_cap_mb": 50}, fresh=True)
    assert plain.said["reductions"] == 23
    # two steps to learn that there are four, then one each; the short one is averaged by hand
    assert found.said["reductions"] == 4 + 4 + 1 + 1 + 1
    for knobs, _ in found.ranks:
        assert {k.id: (k.state, k.was) for k in knobs.values()} == {
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
    assert found.knobs["ddp.no_sync"].state == "unavailable"
    assert reason in found.knobs["ddp.no_sync"].reason
    assert found.said["reductions"] == reductions
