"""Helper processes start clean and end with their connection."""

from __future__ import annotations

import os

import pytest

from brim.data.helper import environment, start


def echo(connection: object, *fds: int) -> None:
    """What the helper of these tests runs."""
    from multiprocessing.connection import Connection

    assert isinstance(connection, Connection)
    while True:
        try:
            text = connection.recv()
        except EOFError:
            return
        connection.send((text, os.environ.get("CUDA_VISIBLE_DEVICES"), len(fds)))


def test_a_helper_answers_and_ends_with_its_connection() -> None:
    reader, writer = os.pipe()
    process, connection = start("tests.data.test_helper", "echo", reader)
    connection.send("hello")
    assert connection.recv() == ("hello", "", 1)
    connection.close()
    assert process.wait(timeout=10) == 0
    os.close(reader)
    os.close(writer)


def test_the_death_of_a_helper_ends_the_connection_at_once() -> None:
    process, connection = start("tests.data.test_helper", "echo")
    process.kill()
    with pytest.raises((EOFError, ConnectionResetError)):
        connection.recv()
    process.wait()


def test_choices_of_the_user_in_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2:glibc.rtld.nns=3")
    monkeypatch.setenv("MALLOC_TOP_PAD_", "5")
    found = environment()
    assert found["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=2:glibc.rtld.nns=3"
    assert found["MALLOC_TOP_PAD_"] == "5"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.nns=3")
    assert environment()["GLIBC_TUNABLES"] == "glibc.rtld.nns=3:glibc.malloc.hugetlb=1"
    assert os.environ["GLIBC_TUNABLES"] == "glibc.rtld.nns=3"  # ours is not touched


def test_a_helper_sees_no_gpu_unless_it_is_to_decode_on_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert environment(gpus=True)["CUDA_VISIBLE_DEVICES"] == "2,5"
