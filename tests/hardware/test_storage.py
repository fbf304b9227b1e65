"""The storage of a folder, from a mount table laid out by the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.errors import InputError
from brim.hardware.storage import storage_of


def _root(tmp_path: Path, *lines: str) -> Path:
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    return root


BASE = "20 1 254:0 / / rw - ext4 /dev/sda1 rw"


def test_the_longest_mount_point_wins(tmp_path: Path) -> None:
    data = tmp_path / "data" / "train"
    data.mkdir(parents=True)
    root = _root(
        tmp_path,
        BASE,
        f"30 20 0:50 / {tmp_path}/data rw - nfs4 filer:/export rw",
        f"31 20 0:51 / {tmp_path}/dat rw - tmpfs tmpfs rw",
    )
    found = storage_of(data, root=root)
    assert (found.kind, found.file_system, found.source) == ("network", "nfs4", "filer:/export")
    assert "hide its latency, not its bandwidth" in found.remark
    assert 0 <= found.free_bytes <= found.total_bytes


@pytest.mark.parametrize(
    ("file_system", "kind"),
    [("fuse.gcsfuse", "network"), ("lustre", "network"), ("tmpfs", "memory"),
     ("overlay", "overlay"), ("xfs", "local")],
)  # fmt: skip
def test_kinds_of_file_systems(file_system: str, kind: str, tmp_path: Path) -> None:
    root = _root(tmp_path, f"20 1 0:9 / / rw - {file_system} src rw")
    assert storage_of(tmp_path, root=root).kind == kind


@pytest.mark.parametrize(("flag", "value"), [("1\n", True), ("0\n", False), (None, None)])
def test_a_spinning_disk_is_known_by_the_kernels_flag(
    flag: str | None, value: bool | None, tmp_path: Path
) -> None:
    root = _root(tmp_path, BASE)
    queue = root / "sys/dev/block/254:0/queue"
    queue.mkdir(parents=True)
    if flag is not None:
        (queue / "rotational").write_text(flag)
    assert storage_of(tmp_path, root=root).rotational is value


def test_a_virtual_disk_is_not_called_spinning_whatever_its_flag_says(tmp_path: Path) -> None:
    root = _root(tmp_path, BASE.replace("/dev/sda1", "/dev/vda1"))
    queue = root / "sys/dev/block/254:0/queue"
    queue.mkdir(parents=True)
    (queue / "rotational").write_text("1\n")
    assert storage_of(tmp_path, root=root).rotational is None


def test_a_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    escaped = str(data).replace(" ", "\\040")
    root = _root(tmp_path, BASE, f"30 20 0:50 / {escaped} rw - xfs /dev/sdb1 rw")
    assert storage_of(data, root=root).mount == data


def test_a_login_in_a_servers_name_is_not_shown(tmp_path: Path) -> None:
    root = _root(tmp_path, "20 1 0:9 / / rw - cifs //me:secret@nas/share rw")
    assert storage_of(tmp_path, root=root).source == "//nas/share"


def test_a_folder_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        storage_of(tmp_path / "absent")


def test_without_a_mount_table_the_kind_is_unknown_not_local(tmp_path: Path) -> None:
    assert storage_of(tmp_path, root=tmp_path / "empty").kind == "unknown"


def test_on_this_machine_the_mount_is_a_parent_of_the_folder(tmp_path: Path) -> None:
    found = storage_of(tmp_path)
    assert found.folder.is_relative_to(found.mount) and found.total_bytes > 0
