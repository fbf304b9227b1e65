"""Interfaces and RDMA ports from a copy of what Linux shows under /sys."""

from __future__ import annotations

from pathlib import Path

from brim.hardware.fabric import Interface, Port, fabric


def _write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def _interface(root: Path, name: str, *, state: str, speed: str, physical: bool) -> None:
    folder = f"sys/class/net/{name}"
    _write(root, **{f"{folder}/operstate": state, f"{folder}/speed": speed})
    if physical:
        (root / folder / "device").mkdir()


def test_interfaces_have_their_state_speed_and_whether_there_is_hardware(tmp_path: Path) -> None:
    _interface(tmp_path, "eth0", state="up", speed="25000", physical=True)
    _interface(tmp_path, "docker0", state="down", speed="-1", physical=False)
    _interface(tmp_path, "lo", state="unknown", speed="", physical=False)
    assert fabric(root=tmp_path).interfaces == (
        Interface(name="docker0", up=False, gb_s=None, physical=False),
        Interface(name="eth0", up=True, gb_s=25.0, physical=True),
    )


def test_ports_have_the_names_that_nccl_takes(tmp_path: Path) -> None:
    for port, state, rate, layer in (
        ("mlx5_0/ports/1", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand"),
        ("mlx5_1/ports/1", "1: DOWN", "10 Gb/sec (4X SDR)", "Ethernet"),
    ):
        folder = f"sys/class/infiniband/{port}"
        _write(tmp_path, **{f"{folder}/state": state, f"{folder}/rate": rate,
                            f"{folder}/link_layer": layer})  # fmt: skip
    found = fabric(root=tmp_path)
    assert found.ports == (
        Port(name="mlx5_0:1", active=True, gb_s=400.0, infiniband=True),
        Port(name="mlx5_1:1", active=False, gb_s=10.0, infiniband=False),
    )
    assert [port.name for port in found.rdma] == ["mlx5_0:1"]


def test_a_host_without_sys_has_no_fabric(tmp_path: Path) -> None:
    assert fabric(root=tmp_path) == fabric(root=tmp_path / "nothing")
    assert not fabric(root=tmp_path).interfaces and not fabric(root=tmp_path).ports
