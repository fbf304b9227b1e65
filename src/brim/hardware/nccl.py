"""NCCL's variables as found: which, from where, of which class, and what each can cost.

NCCL's guide knows two classes.  *System configuration* describes the machine and may stay in
scripts.  *Debugging* variables are "not to be used in production nor retained in scripts": copied
from a forum they cost speed, crash or hang.  brim sets none of either; it shows what it finds.

NCCL reads the environment first, then ``NCCL_CONF_FILE`` (or ``~/.nccl.conf``), then
``/etc/nccl.conf``; the first definition of a name wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["system", "debugging", "unknown"]

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclVariable:
    """One definition."""

    name: str
    value: str
    kind: Kind
    """The class by NCCL's guide; ``unknown`` for names that it does not list."""
    origin: str
    """``environment``, or ``FILE:LINE``."""
    effective: bool
    """False when an earlier source defines the same name."""
    note: str = ""
    """What to know about it; empty when there is nothing to say."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SYSTEM = _names(
    """
    SOCKET_IFNAME SOCKET_FAMILY SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC
    SOCKET_POLL_TIMEOUT_MSEC SOCKET_NTHREADS NSOCKS_PERTHREAD CROSS_NIC IB_HCA IB_TIMEOUT
    IB_RETRY_CNT IB_GID_INDEX IB_ADDR_FAMILY IB_ADDR_RANGE IB_ROCE_VERSION_NUM IB_SL IB_TC
    IB_FIFO_TC IB_RETURN_ASYNC_EVENTS OOB_NET_ENABLE OOB_NET_IFNAME UID_STAGGER_THRESHOLD
    UID_STAGGER_RATE NET NET_PLUGIN TUNER_PLUGIN PROFILER_PLUGIN ENV_PLUGIN IGNORE_CPU_AFFINITY
    CONF_FILE DEBUG DEBUG_FILE DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS
    COLLNET_ENABLE COLLNET_NODE_THRESHOLD CTA_POLICY NETDEVS_POLICY TOPO_FILE TOPO_DUMP_FILE
    SET_THREAD_NAME HOSTID COMM_ID
    """
)
DEBUGGING = _names(
    """
    P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE SHM_DISABLE BUFFSIZE NTHREADS MAX_NCHANNELS
    MIN_NCHANNELS CHECKS_DISABLE CHECK_POINTERS LAUNCH_MODE IB_DISABLE IB_AR_THRESHOLD
    IB_QPS_PER_CONNECTION IB_SPLIT_DATA_ON_QPS IB_CUDA_SUPPORT IB_PCI_RELAXED_ORDERING
    IB_ADAPTIVE_ROUTING IB_ECE_ENABLE MEM_SYNC_DOMAIN CUMEM_ENABLE CUMEM_HOST_ENABLE
    NET_GDR_LEVEL NET_GDR_READ NET_SHARED_BUFFERS NET_SHARED_COMMS SINGLE_RING_THRESHOLD
    LL_THRESHOLD TREE_THRESHOLD ALGO PROTO NVB_DISABLE PXN_DISABLE P2P_PXN_LEVEL RUNTIME_CONNECT
    GRAPH_REGISTER LOCAL_REGISTER LEGACY_CUDA_REGISTER WIN_ENABLE SET_STACK_SIZE
    GRAPH_MIXING_SUPPORT DMABUF_ENABLE P2P_NET_CHUNKSIZE P2P_LL_THRESHOLD
    ALLOC_P2P_NET_LL_BUFFERS COMM_BLOCKING CGA_CLUSTER_SIZE MAX_CTAS MIN_CTAS NVLS_ENABLE
    IB_MERGE_NICS MNNVL_ENABLE RAS_ENABLE RAS_ADDR RAS_TIMEOUT_FACTOR LAUNCH_ORDER_IMPLICIT
    LAUNCH_RACE_FATAL IPC_USE_ABSTRACT_SOCKET SYM_CTAS SYM_KERNEL
    """
)

_NOTES = {
    "ALGO": "forces the algorithm; since 2.24 a collective that has no valid one fails",
    "PROTO": "forces the protocol; LL128 where it is not supported corrupts data",
    "NVLS_ENABLE": "0 gives up in-switch reduction; meant for multicast that does not start",
    "P2P_DISABLE": "1 sends every copy between devices through host memory",
    "P2P_LEVEL": "LOC sends every copy between devices through host memory",
    "SHM_DISABLE": "1 sends traffic inside the node over the network",
    "IB_DISABLE": "1 leaves InfiniBand and RoCE unused: traffic between nodes goes over TCP",
    "MIN_CTAS": "more SMs for collectives are fewer for the model; small messages get slower",
    "MAX_CTAS": "fewer SMs for collectives leave more to the model; measure both",
    "MIN_NCHANNELS": "more channels take SMs from the model",
    "CUMEM_ENABLE": "a workaround; 0 switches buffer registration off",
    "SOCKET_NTHREADS": "takes CPU time from the loader; no effect on InfiniBand and NVLink",
    "NSOCKS_PERTHREAD": "takes CPU time from the loader; no effect on InfiniBand and NVLink",
    "LAUNCH_MODE": "a debugging aid of old versions",
    "CHECK_POINTERS": "1 checks every pointer of every call",
}


def variables(env: Mapping[str, str] | None = None, *, root: Path = ROOT) -> list[NcclVariable]:
    """Every ``NCCL_*`` definition, effective ones first, each group by name.

    ``env`` is the job's environment (default: this process's); files are read below ``root``.
    """
    env = os.environ if env is None else env
    return described([*_environment(env), *file_definitions(env, root=root)])


Definition = tuple[str, str, str]
"""Name, value, origin."""


def file_definitions(env: Mapping[str, str], *, root: Path = ROOT) -> list[Definition]:
    """What NCCL's files define, in the order in which NCCL reads them."""
    return [found for path in _files(env) for found in _conf(path, root)]


def described(definitions: Iterable[Definition]) -> list[NcclVariable]:
    """The same as :func:`variables` for definitions that were read before, first ones first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, value, origin in definitions:
        found.setdefault(name, []).append((value, origin))
    every = [
        _describe(name, value, origin, effective=rank == 0)
        for name, sources in found.items()
        for rank, (value, origin) in enumerate(sources)
    ]
    return sorted(every, key=lambda v: (not v.effective, v.name))


def kind_of(name: str) -> Kind:
    """The class of ``NCCL_…`` by the guide."""
    short = name.removeprefix("NCCL_")
    if short in SYSTEM:
        return "system"
    return "debugging" if short in DEBUGGING else "unknown"


def _environment(env: Mapping[str, str]) -> Iterator[Definition]:
    return ((n, v, "environment") for n, v in env.items() if n.startswith("NCCL_"))


def _files(env: Mapping[str, str]) -> Iterator[str]:
    if env.get("NCCL_CONF_FILE"):
        yield env["NCCL_CONF_FILE"]
    elif env.get("HOME"):
        yield f"{env['HOME']}/.nccl.conf"
    yield "/etc/nccl.conf"


def _conf(path: str, root: Path) -> Iterator[Definition]:
    """``NAME=VALUE`` lines; ``#`` starts a comment line, spaces around a name do not count."""
    try:
        text = (root / path.lstrip("/")).read_text(errors="replace")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if equals and name.strip().startswith("NCCL_"):
            yield name.strip(), value, f"{path}:{number}"


def _describe(name: str, value: str, origin: str, *, effective: bool) -> NcclVariable:
    kind = kind_of(name)
    note = _note(name.removeprefix("NCCL_"), value)
    if not effective:
        note = "overridden by an earlier source"
    elif not note and kind == "debugging":
        note = "for debugging: remove it when the reason for it is gone"
    elif not note and kind == "unknown":
        note = "not in NCCL's guide: a misspelling, a plugin's, or an undocumented one"
    return NcclVariable(
        name=name, value=value, kind=kind, origin=origin, effective=effective, note=note
    )


def _note(short: str, value: str) -> str:
    if short == "BUFFSIZE" and value.strip() == "4194304":
        return "4194304 is the default: this does nothing"
    if short == "DEBUG" and value.strip().upper() in {"INFO", "TRACE"}:
        return "logs much; fine for a diagnosis"
    if short == "SOCKET_IFNAME" and value and value[0] not in "=^":
        return "matches every interface that starts so; =NAME takes exactly one"
    if short == "IB_HCA" and value and value[0] not in "=^":
        return "mlx5_1 also matches mlx5_10 to mlx5_19; =NAME takes exactly one"
    if short == "P2P_LEVEL" and value.strip().upper() not in {"LOC", "0"}:
        return ""
    if short in {"NVLS_ENABLE", "CUMEM_ENABLE"} and value.strip() != "0":
        return ""
    if short in _ONLY_WHEN_ON and value.strip() == "0":
        return "0 is the default: this does nothing"
    return _NOTES.get(short, "")


_ONLY_WHEN_ON = frozenset({"P2P_DISABLE", "SHM_DISABLE", "IB_DISABLE", "CHECK_POINTERS"})
