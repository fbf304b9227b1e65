"""NCCL variables: where NCCL looks, in which order, and what is said about each."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.hardware.nccl import DEBUGGING, SYSTEM, variables


def _conf(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_only_nccl_names_are_taken_from_an_environment_with_secrets(tmp_path: Path) -> None:
    env = {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_secret", "TORCH_NCCL_BLOCKING_WAIT": "1"}
    found = variables(env, root=tmp_path)
    assert [(v.name, v.value, v.kind, v.origin) for v in found] == [
        ("NCCL_DEBUG", "WARN", "system", "environment")
    ]


def test_the_environment_wins_over_the_users_file_and_that_over_etc(tmp_path: Path) -> None:
    _conf(tmp_path, "/home/u/.nccl.conf", "# mine\nNCCL_ALGO=Ring\nNCCL_PROTO=Simple\n")
    _conf(tmp_path, "/etc/nccl.conf", "NCCL_PROTO=LL128\nNCCL_IB_HCA==mlx5_0:1\n")
    env = {"NCCL_ALGO": "Tree", "HOME": "/home/u"}
    found = variables(env, root=tmp_path)
    effective = {v.name: (v.value, v.origin) for v in found if v.effective}
    assert effective == {
        "NCCL_ALGO": ("Tree", "environment"),
        "NCCL_IB_HCA": ("=mlx5_0:1", "/etc/nccl.conf:2"),
        "NCCL_PROTO": ("Simple", "/home/u/.nccl.conf:3"),
    }
    lost = {(v.name, v.value): v.note for v in found if not v.effective}
    assert set(lost) == {("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL128")}
    assert set(lost.values()) == {"overridden by an earlier source"}


def test_nccl_conf_file_replaces_the_file_in_the_home_folder(tmp_path: Path) -> None:
    _conf(tmp_path, "/home/u/.nccl.conf", "NCCL_ALGO=Ring\n")
    _conf(tmp_path, "/opt/nccl.conf", "NCCL_NVLS_ENABLE=0\n")
    env = {"HOME": "/home/u", "NCCL_CONF_FILE": "/opt/nccl.conf"}
    found = {v.name: v for v in variables(env, root=tmp_path)}
    assert set(found) == {"NCCL_CONF_FILE", "NCCL_NVLS_ENABLE"}
    assert found["NCCL_NVLS_ENABLE"].kind == "debugging"
    assert found["NCCL_NVLS_ENABLE"].origin == "/opt/nccl.conf:1"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCL_BUFFSIZE", "4194304", "the default"),
        ("NCCL_ALGO", "Tree", "fails"),
        ("NCCL_SOCKET_IFNAME", "eth0", "=NAME takes exactly one"),
        ("NCCL_IB_HCA", "mlx5_1", "mlx5_10"),
        ("NCCL_NVLS_ENABLE", "0", "in-switch reduction"),
        ("NCCL_P2P_DISABLE", "0", "does nothing"),
        ("NCCL_MIN_NCHANELS", "8", "misspelling"),
        ("NCCL_CGA_CLUSTER_SIZE", "2", "for debugging"),
    ],
)
def test_what_is_said_about_a_variable_people_copy(
    name: str, value: str, said: str, tmp_path: Path
) -> None:
    (found,) = variables({name: value}, root=tmp_path)
    assert said in found.note


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_SOCKET_IFNAME", "=eth0"), ("NCCL_IB_HCA", "^mlx5_2"), ("NCCL_CROSS_NIC", "0")],
)
def test_a_plain_system_setting_gets_no_remark(name: str, value: str, tmp_path: Path) -> None:
    (found,) = variables({name: value}, root=tmp_path)
    assert found.kind == "system" and found.note == ""


def test_no_name_is_of_both_classes() -> None:
    assert not SYSTEM & DEBUGGING
