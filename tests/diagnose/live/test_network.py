"""NCCL's variables against the machine: which of them explain exposed collectives, which do not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.live import records

from brim.diagnose.live import network
from brim.diagnose.live.account import shared_findings
from brim.diagnose.live.clues import Clue
from brim.hardware.fabric import Fabric, Interface, Port
from brim.hardware.nccl import described
from brim.record.devices import HostSample
from brim.record.run import Run, RunInfo

SLOW = Interface(name="eth0", up=True, gb_s=1.0, physical=True)
FAST = Interface(name="ens8", up=True, gb_s=100.0, physical=True)
BRIDGE = Interface(name="docker0", up=False, gb_s=None, physical=False)
IB = Port(name="mlx5_0:1", active=True, gb_s=400.0, infiniband=True)
ROCE = Port(name="mlx5_2:1", active=True, gb_s=100.0, infiniband=False)
DOWN = Port(name="mlx5_1:1", active=False, gb_s=10.0, infiniband=True)


def _job(ports: tuple[Port, ...] = (), *, ranks: int = 16, local: int = 8, **fields: Any) -> Any:
    variables = fields.pop("variables", {})
    return network.Job(
        variables=described([(f"NCCL_{n}", v, "environment") for n, v in variables.items()]),
        fabric=Fabric(interfaces=(SLOW, FAST, BRIDGE), ports=ports),
        ranks=ranks,
        local_ranks=local,
        cores=32,
        **fields,
    )


def _faults(*args: Any, **fields: Any) -> dict[str, str]:
    return dict(network.faults(_job(*args, **fields)))


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("eth0", "NCCL_SOCKET_IFNAME=eth0 takes eth0 (1 Gbit/s); ens8 is up with 100 Gbit/s"),
        ("=eth0", "NCCL_SOCKET_IFNAME==eth0 takes eth0 (1 Gbit/s); ens8 is up with 100 Gbit/s"),
        ("^ens", "NCCL_SOCKET_IFNAME=^ens takes eth0 (1 Gbit/s); ens8 is up with 100 Gbit/s"),
        ("docker", "NCCL_SOCKET_IFNAME=docker matches no interface that is up (eth0, ens8)"),
        ("ib0", "NCCL_SOCKET_IFNAME=ib0 matches no interface that is up (eth0, ens8)"),
    ],
)
def test_a_wrong_interface_is_shown_beside_the_right_one(asked: str, line: str) -> None:
    assert _faults(variables={"SOCKET_IFNAME": asked}) == {"NCCL_SOCKET_IFNAME": line}


@pytest.mark.parametrize("asked", ["ens8", "=ens8", "e", "^docker,lo", ""])
def test_an_interface_that_is_the_fastest_or_lets_nccl_choose_is_no_fault(asked: str) -> None:
    assert _faults(variables={"SOCKET_IFNAME": asked}) == {}


def test_inside_one_host_no_interface_matters() -> None:
    variables = {"SOCKET_IFNAME": "eth0", "IB_DISABLE": "1", "SOCKET_NTHREADS": "16"}
    assert _faults((IB,), ranks=8, variables=variables) == {}


@pytest.mark.parametrize(
    ("variables", "name"),
    [({"IB_DISABLE": "1"}, "NCCL_IB_DISABLE"), ({"NET": "Socket"}, "NCCL_NET")],
)
def test_tcp_that_was_asked_for_beside_infiniband_is_named(
    variables: dict[str, str], name: str
) -> None:
    found = _faults((IB, DOWN), variables=variables)
    assert list(found) == [name]
    assert found[name].endswith("over TCP; InfiniBand is up on mlx5_0:1")
    assert _faults((DOWN,), variables=variables) == {}  # nothing better is there


def test_tcp_beside_infiniband_is_seen_in_the_adapters_counters_without_any_variable() -> None:
    found = _faults((IB,), tcp_bytes_s=2e9, rdma_bytes_s=1e6)
    assert list(found) == [""]
    assert found[""].startswith("1.9 GiB/s leave over TCP and 976.6 KiB/s over InfiniBand")
    assert "over RoCE" in _faults((ROCE,), tcp_bytes_s=2e9, rdma_bytes_s=0.0)[""]


@pytest.mark.parametrize(("tcp", "rdma"), [(2e9, 3e9), (1e6, 0.0), (None, 0.0), (2e9, None)])
def test_traffic_over_rdma_little_traffic_or_an_unknown_one_is_no_fault(
    tcp: float | None, rdma: float | None
) -> None:
    assert _faults((IB,), tcp_bytes_s=tcp, rdma_bytes_s=rdma) == {}


@pytest.mark.parametrize(
    ("variables", "name"),
    [({"P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE"), ({"P2P_LEVEL": "LOC"}, "NCCL_P2P_LEVEL")],
)
def test_peers_that_may_not_copy_to_each_other_are_named(
    variables: dict[str, str], name: str
) -> None:
    found = _faults(ranks=8, variables=variables, joined=True)[name]
    assert found.endswith("through host memory; these devices reach each other directly")
    assert _faults(ranks=8, local=1, variables=variables) == {}


def test_p2p_left_as_it_is_is_no_fault() -> None:
    assert _faults(ranks=8, variables={"P2P_DISABLE": "0", "P2P_LEVEL": "NVL"}) == {}


def test_more_socket_threads_than_cores_are_counted_over_the_hosts_ranks() -> None:
    found = _faults(variables={"SOCKET_NTHREADS": "8"})
    assert found == {
        "NCCL_SOCKET_NTHREADS": "NCCL_SOCKET_NTHREADS=8 makes 64 threads on 32 usable cores"
    }
    assert _faults(variables={"SOCKET_NTHREADS": "4"}) == {}


@pytest.mark.parametrize(("asked", "fault"), [("Tree", 1), ("tree", 1), ("Ring,Tree", 0), ("", 0)])
def test_tree_alone_is_a_fault_and_a_list_with_ring_is_none(asked: str, fault: int) -> None:
    assert len(_faults(ranks=8, variables={"ALGO": asked})) == fault


# ---------------------------------------------------------------------------------- in a run


def _run(tmp_path: Path, *, device: dict[str, Any] | None, world: int = 2) -> tuple[Run, list[Any]]:
    env = {"NCCL_ALGO": "Tree", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    evidence = records.evidence(records.steps(10), device=device, env=env, world=world)
    file = "/etc/nccl.conf"
    defined = [["NCCL_ALGO", "Ring", f"{file}:1"], ["NCCL_DEBUG", "INFO", f"{file}:2"]]
    host = {"usable": 8, "fabric": asdict(Fabric(interfaces=(FAST,))), "nccl": defined}
    run = Run(folder=tmp_path, info=RunInfo(host=host), processes=[evidence.process])
    return run, [evidence]


def test_a_run_on_devices_has_its_variables_with_class_and_origin(tmp_path: Path) -> None:
    run, evidences = _run(tmp_path, device={"name": "H200"})
    seen = network.job(run, evidences, [])
    assert seen is not None
    assert (seen.ranks, seen.local_ranks, seen.hosts) == (2, 2, 1)
    assert network.notes(seen) == [
        "NCCL_ALGO=Tree (for debugging, environment): forces the algorithm; since 2.24 a "
        "collective that has no valid one fails",
        "NCCL_DEBUG=INFO (system configuration, /etc/nccl.conf:2): logs much; fine for a diagnosis",
        "NCCL_ALGO=Ring (for debugging, /etc/nccl.conf:1): overridden by an earlier source",
    ]


@pytest.mark.parametrize(("device", "world"), [(None, 2), ({"name": "H200"}, 1)])
def test_without_a_device_or_a_second_rank_nccl_is_not_in_the_job(
    tmp_path: Path, device: dict[str, Any] | None, world: int
) -> None:
    run, evidences = _run(tmp_path, device=device, world=world)
    assert network.job(run, evidences, []) is None


def test_means_over_the_window_leave_out_what_was_not_read(tmp_path: Path) -> None:
    run, evidences = _run(tmp_path, device={"name": "H200"})
    rows = [{"net_tx_bytes_s": 1e9, "rdma_tx_bytes_s": 0.0}, {"net_tx_bytes_s": 3e9}]
    samples = [HostSample(t=0.0, mono=0.0, interval_s=1.0, **row) for row in rows]
    seen = network.job(run, evidences, samples)
    assert seen is not None
    assert (seen.tcp_bytes_s, seen.rdma_bytes_s) == (2e9, 0.0)


def test_a_variable_stands_in_the_finding_only_where_collectives_cost_time() -> None:
    job = _job(ranks=8, variables={"ALGO": "Tree"})
    measured = Clue(cause="comm.exposed", seconds=2.0, evidence=("exposed 2 s of 10 s",))
    clues = [measured, *network.clues(job)]
    (finding,) = shared_findings(clues, {"comm.exposed": 0.2})
    assert finding.share == 0.2
    assert finding.evidence[0] == "exposed 2 s of 10 s"
    assert finding.evidence[1].startswith("NCCL_ALGO=Tree alone")
    assert "take NCCL_ALGO out of the environment" in finding.remedies[0].summary
    assert shared_findings(clues, {"comm.exposed": 0.04}) == []
