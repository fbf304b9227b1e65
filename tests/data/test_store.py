"""Pictures come from under their root and from nowhere else."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.pictures import encode, jpeg, picture

from brim.data import web
from brim.data.header import HEAD
from brim.data.quarantine import BadSample
from brim.data.store import Stamp, Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(jpeg(40, 60))
    (tmp_path / "secret.jpg").write_bytes(jpeg(40, 60))
    return folder


def refused(store: Store, ref: str) -> str:
    for ask in (store.read, store.header):
        with pytest.raises(BadSample) as caught:
            ask(ref)
    return caught.value.reason


def test_a_file_under_the_root_is_read_by_relative_and_absolute_path(root: Path) -> None:
    store = Store(root=str(root))
    for ref in ("a.jpg", "sub/../a.jpg", str(root / "a.jpg")):
        assert store.read(ref) == (root / "a.jpg").read_bytes()
        header, stamp = store.header(ref)
        assert header.upright() == (40, 60)
        assert stamp == store.stamp(ref)
        assert stamp.size == (root / "a.jpg").stat().st_size


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("", "an empty path"),
        ("a\0.jpg", "NUL"),
        ("nope.jpg", "file not found"),
        ("C:\\img\\a.jpg", "backslashes"),
        ("*.jpg", "file not found"),
        (".", "a folder"),
        ("sub", "a folder"),
        ("../secret.jpg", "outside the image root"),
        ("sub/../../secret.jpg", "outside the image root"),
        ("/etc/passwd", "outside the image root"),
        ("/dev/zero", "outside the image root"),
        ("x" * 5000, "too long"),
        ("file:///etc/passwd", "file:// is not accepted"),
        ("ftp://example.org/a.jpg", "ftp:// is not accepted"),
        ("s3://bucket/a.jpg", "s3:// is not accepted"),
        ("http://example.org/a.jpg", "the network is off"),
        ("data:image/png;base64,@@@", "bad base64"),
        ("data:image/png,abc", "without ';base64,'"),
    ],
)
def test_what_is_refused_and_why(root: Path, ref: str, words: str) -> None:
    assert words in refused(Store(root=str(root)), ref)


def test_symbolic_links_may_point_inside_but_not_outside(root: Path, tmp_path: Path) -> None:
    (root / "in.jpg").symlink_to(root / "a.jpg")
    (root / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "door").symlink_to(tmp_path)
    store = Store(root=str(root))
    assert store.read("in.jpg") == store.read("a.jpg")
    assert "outside" in refused(store, "out.jpg")
    assert "outside" in refused(store, "door/secret.jpg")


def test_a_pipe_in_the_folder_is_refused_without_waiting_for_a_writer(root: Path) -> None:
    os.mkfifo(root / "pipe.jpg")
    assert "a device" in refused(Store(root=str(root)), "pipe.jpg")


def test_a_file_above_the_limit_is_not_read(root: Path) -> None:
    store = Store(root=str(root), max_bytes=100)
    assert "the limit is 100" in refused(store, "a.jpg")
    long = "data:image/png;base64," + "A" * 200
    assert "the limit is 100" in refused(store, long)


def test_a_header_beyond_the_first_bytes_is_found(root: Path) -> None:
    data = jpeg(40, 60)
    padding = b"\xff\xe2" + (60_000).to_bytes(2, "big") + bytes(59_998)
    (root / "late.jpg").write_bytes(data[:2] + padding + data[2:])
    assert HEAD < 60_000
    assert Store(root=str(root)).header("late.jpg")[0].upright() == (40, 60)


def test_bytes_and_data_urls_need_no_file(root: Path) -> None:
    store, data = Store(root=str(root)), encode(picture(8, 9), "PNG")
    url = "data:image/png;base64," + base64.b64encode(data).decode()
    for ref in (data, url):
        assert store.read(ref) == data
        assert store.header(ref)[0].upright() == (8, 9)
        assert store.stamp(ref) == Stamp(0, 0)


def test_a_vanished_file_has_no_stamp(root: Path) -> None:
    assert Store(root=str(root)).stamp("gone.jpg") is None


def test_an_fsspec_root_is_read_and_not_left(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/set/a.jpg", jpeg(40, 60))
    memory.pipe_file("/other/b.jpg", jpeg(40, 60))
    store = Store(root="memory://set")
    assert store.header("a.jpg")[0].upright() == (40, 60)
    assert store.read("memory://set/a.jpg") == jpeg(40, 60)
    assert "not found" in refused(store, "none.jpg")
    assert "outside" in refused(store, "../other/b.jpg")
    assert "not accepted" in refused(store, "memory://other/b.jpg")
    assert "not accepted" in refused(store, "file:///etc/passwd")


@given(st.text(max_size=60))
def test_no_path_whatever_gets_out_of_the_root(ref: str) -> None:
    folder = Path(__file__).parent / "nothing-here"
    try:
        Store(root=str(folder)).read(ref)
    except BadSample:
        pass
    else:
        pytest.fail(f"{ref!r} was read")


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
            return
        body = b"" if self.path == "/404" else bytes(1000)
        self.send_response(404 if self.path == "/404" else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    httpd = HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{httpd.server_port}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def fetch(url: str, hosts: tuple[str, ...] = ("localhost",), limit: int = 5000) -> bytes:
    return web.fetch(url, allow_hosts=hosts, max_bytes=limit, timeout_s=5)


def test_the_own_network_is_refused_even_where_its_name_is_allowed(server: str) -> None:
    with pytest.raises(BadSample, match="own network"):
        fetch(server)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "172.16.0.1", "::1", "fe80::1%lo",
     "::ffff:127.0.0.1", "0.0.0.0", "fd00::1"],
)  # fmt: skip
def test_addresses_of_the_own_network(address: str) -> None:
    with pytest.raises(BadSample):
        web.check_public(address)


def test_a_public_address_passes() -> None:
    web.check_public("93.184.216.34")
    web.check_public("::ffff:93.184.216.34")


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's server lives on the loopback address, which is never public."""
    monkeypatch.setattr(web, "check_public", lambda address: None)


@pytest.mark.usefixtures("public")
def test_an_allowed_host_is_fetched_within_its_limits(server: str) -> None:
    assert fetch(server) == bytes(1000)
    with pytest.raises(BadSample, match="more than 100 bytes"):
        fetch(server, limit=100)
    with pytest.raises(BadSample, match="answered 404"):
        fetch(f"{server}/404")


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://example.org/a", "example.org is not in"),
        ("file:///etc/passwd", "answered 302"),
        ("ftp://localhost/a", "ftp:// is not accepted"),
    ],
)
def test_a_redirect_is_asked_again(server: str, target: str, words: str) -> None:
    with pytest.raises(BadSample, match=words):
        fetch(f"{server}/to?{target}")


@pytest.mark.usefixtures("public")
def test_a_redirect_to_an_allowed_page_is_followed(server: str) -> None:
    assert fetch(f"{server}/to?{server}/page") == bytes(1000)
