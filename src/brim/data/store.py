# ruff: noqa: PTH118, PTH114, PTH116 - os.path: a million untrusted strings, some of which Path would alter
"""Where pictures are read from, and where never.

A reference in a data set is text by a stranger.  It names a regular file under ``root``, a
``data:`` URL, or (only from hosts that the configuration names) something on the network.
Symbolic links, ``..``, devices, ``file://`` and addresses inside the own network do not get out.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from brim.data.chat import Ref
from brim.data.header import HEAD, Header, fast_header, read_header
from brim.data.quarantine import BadSample
from brim.data.web import fetch


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file is replaced; (0, 0) for what cannot change by itself."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Reads the pictures of one source."""

    root: str
    """A folder, or an fsspec URL (``s3://bucket/images``)."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts whose http(s) URLs may be fetched; none by default."""
    max_bytes: int = 64 << 20
    """Largest file that is read."""
    timeout_s: float = 20.0
    """For one fetch from the network, all in all."""
    _real_root: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        remote = "://" in self.root
        real = self.root.rstrip("/") if remote else os.path.realpath(self.root)
        object.__setattr__(self, "_real_root", real)

    def read(self, ref: Ref) -> bytes:
        """The bytes of a picture.  Raises BadSample."""
        if isinstance(ref, bytes):
            return ref
        if self._is_local(ref):
            return _guarded(ref, lambda: self._read_file(self._path(ref), self.max_bytes))
        return self._read_remote(ref, None)

    def video(self, ref: Ref) -> str | bytes | BinaryIO:
        """A video file to open: its local path, a stream of a remote one, or bytes.

        Raises BadSample.  A stream reads what is asked for, not the whole file.
        """
        if isinstance(ref, bytes):
            return ref
        if self._is_local(ref):
            return str(_guarded(ref, lambda: self._checked(self._path(ref))))
        if ref.startswith(("data:", "http:", "https:")):
            return self._read_remote(ref, None)
        stream: BinaryIO = _guarded(ref, lambda: _open_fsspec(self._remote(ref)))
        return stream

    def header(self, ref: Ref) -> tuple[Header, Stamp]:
        """The header and the stamp of a picture, reading as little as tells it."""
        if isinstance(ref, bytes):
            return read_header(ref), Stamp(0, 0)
        if self._is_local(ref):
            return _guarded(ref, lambda: self._local_header(ref))
        head = self._read_remote(ref, HEAD)
        found = fast_header(head)
        if found is None:
            found = read_header(self._read_remote(ref, None) if len(head) == HEAD else head)
        return found, Stamp(0, 0)

    def stamp(self, ref: Ref) -> Stamp | None:
        """The stamp alone: None when there is no such file (any more)."""
        if isinstance(ref, bytes) or not self._is_local(ref):
            return Stamp(0, 0)
        try:
            status = os.stat(self._path(ref))
        except (OSError, ValueError, BadSample):
            return None
        return Stamp(status.st_size, status.st_mtime_ns)

    def _is_local(self, ref: str) -> bool:
        return "://" not in self._real_root and "://" not in ref and not ref.startswith("data:")

    def _path(self, ref: str) -> str:
        """The real path, which lies under the root."""
        if not ref:
            raise BadSample("image.path", "an empty path")
        if "\0" in ref:
            raise BadSample("image.path", "a NUL character in the path")
        folder, name = os.path.split(os.path.join(self._real_root, ref))
        if name in ("", ".", ".."):
            raise BadSample("image.path", "a folder, not a file")
        path = os.path.join(_real_folder(folder), name)
        if os.path.islink(path):
            path = os.path.realpath(path)
        if not path.startswith(self._real_root + os.sep):
            raise BadSample("image.path", f"outside the image root {self._real_root}")
        return path

    def _local_header(self, ref: str) -> tuple[Header, Stamp]:
        fd, status = _open(self._path(ref), self.max_bytes)
        try:
            head = os.pread(fd, HEAD, 0)
            header = fast_header(head)
            if header is None:
                header = read_header(os.pread(fd, self.max_bytes, 0) if len(head) == HEAD else head)
        finally:
            os.close(fd)
        return header, Stamp(status.st_size, status.st_mtime_ns)

    @staticmethod
    def _checked(path: str) -> str:
        """A regular file's path; its size is no matter, for it is not read whole."""
        fd, _ = _open(path, 1 << 62)
        os.close(fd)
        return path

    @staticmethod
    def _read_file(path: str, limit: int) -> bytes:
        fd, status = _open(path, limit)
        try:
            return os.pread(fd, status.st_size, 0)
        finally:
            os.close(fd)

    def _read_remote(self, ref: str, head: int | None) -> bytes:
        scheme, _, _ = ref.partition(":")
        if ref.startswith("data:"):
            return _data_url(ref, self.max_bytes)
        if scheme in ("http", "https") and "://" in ref:
            return fetch(
                ref,
                allow_hosts=self.allow_hosts,
                max_bytes=self.max_bytes,
                timeout_s=self.timeout_s,
            )
        url = self._remote(ref)
        return _guarded(ref, lambda: _read_fsspec(url, head or self.max_bytes + 1, self.max_bytes))

    def _remote(self, ref: str) -> str:
        """The URL of a file under a root that is one."""
        url = ref if "://" in ref else f"{self._real_root}/{ref}"
        if "://" not in self._real_root or not url.startswith(self._real_root + "/"):
            raise BadSample("image.url", f"{ref.partition(':')[0]}:// is not accepted")
        if ".." in url.split("/"):
            raise BadSample("image.path", f"outside the image root {self._real_root}")
        return url


@lru_cache(maxsize=65_536)
def _real_folder(folder: str) -> str:
    """``realpath`` costs an lstat per component: once per folder, not once per picture."""
    return os.path.realpath(folder)


def _open(path: str, limit: int) -> tuple[int, os.stat_result]:
    # O_NONBLOCK: opening a FIFO must not wait for a writer
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    problem = None
    if stat.S_ISDIR(status.st_mode):
        problem = "a folder, not a file"
    elif not stat.S_ISREG(status.st_mode):
        problem = "a device, not a regular file"
    elif status.st_size > limit:
        problem = f"{status.st_size} bytes; the limit is {limit}"
    if problem:
        os.close(fd)
        raise BadSample("image.path", problem)
    return fd, status


def _guarded(ref: str, read: Callable[[], Any]) -> Any:
    """``read`` with the operating system's refusals told as bad samples."""
    try:
        return read()
    except FileNotFoundError:
        hint = " (the path has backslashes)" if "\\" in ref else ""
        raise BadSample("image.missing", f"file not found{hint}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise BadSample("image.path", "the name is too long") from None
        raise BadSample("image.unreadable", error.strerror or str(error)) from None
    except ValueError as error:
        raise BadSample("image.path", str(error)) from None


def _data_url(ref: str, limit: int) -> bytes:
    """``data:image/png;base64,…`` (RFC 2397)."""
    head, comma, body = ref.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadSample("image.data-url", "a data: URL without ';base64,'")
    if len(body) * 3 // 4 > limit:
        raise BadSample("image.data-url", f"{len(body) * 3 // 4} bytes; the limit is {limit}")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise BadSample("image.data-url", "bad base64") from None


def _read_fsspec(url: str, wanted: int, limit: int) -> bytes:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    data: bytes = fs.cat_file(path, start=0, end=wanted)
    if len(data) > limit:
        raise BadSample("image.path", f"more than {limit} bytes")
    return data


def _open_fsspec(url: str) -> BinaryIO:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    stream: BinaryIO = fs.open(path, "rb")
    return stream


def default_root(annotation: Path) -> str:
    """Pictures are named from the folder of the file that names them."""
    return str(annotation.resolve().parent)
