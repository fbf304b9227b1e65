"""Fetching a picture by URL: only from hosts that the configuration names, never from inside.

The allow-list is asked again at every redirect, and the address is checked on the connected
socket, before a byte is sent: a name that resolves to the own network (or changes its mind
between check and use) gets nothing.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
import urllib.request
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from brim.data.quarantine import BadSample

MAX_REDIRECTS = 5


def fetch(url: str, *, allow_hosts: tuple[str, ...], max_bytes: int, timeout_s: float) -> bytes:
    """The body of ``url``.  Raises BadSample for every refusal and failure."""
    _check(url, allow_hosts)
    opener = urllib.request.OpenerDirector()
    for handler in (
        _Http(),
        _Https(),
        _Redirects(allow_hosts),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    end = time.monotonic() + timeout_s
    try:
        with opener.open(url, timeout=timeout_s) as response:
            return _body(response, max_bytes, end)
    except HTTPError as error:
        raise BadSample("image.url", f"the server answered {error.code}") from None
    except URLError as error:
        if isinstance(error.reason, BadSample):
            raise error.reason from None
        raise BadSample("image.url", f"cannot be fetched: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise BadSample("image.url", f"cannot be fetched: {error}") from None


def _body(response: Any, max_bytes: int, end: float) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while chunk := response.read1(1 << 16):
        total += len(chunk)
        if total > max_bytes:
            raise BadSample("image.url", f"more than {max_bytes} bytes")
        if time.monotonic() > end:
            raise BadSample("image.url", "the server is too slow")
        chunks.append(chunk)
    return b"".join(chunks)


def _check(url: str, allow_hosts: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise BadSample("image.url", f"no URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise BadSample("image.url", f"{parts.scheme}:// is not accepted")
    if not allow_hosts:
        raise BadSample("image.url", "the network is off; data.allow_hosts names the hosts allowed")
    if host not in allow_hosts:
        raise BadSample("image.url", f"the host {host} is not in data.allow_hosts")


def check_public(address: str) -> None:
    """Refuse loopback, link-local, private and reserved addresses."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    if not (mapped or ip).is_global:
        raise BadSample("image.url", f"{address} is an address of the own network")


def _connect(address: tuple[str, int], timeout: Any, source: Any = None) -> socket.socket:
    sock = socket.create_connection(address, timeout, source)
    try:
        check_public(sock.getpeername()[0])
    except BadSample as bad:
        sock.close()
        # urllib passes URLError through unchanged
        raise URLError(bad) from None
    return sock


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_guarded(http.client.HTTPConnection), request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_guarded(http.client.HTTPSConnection), request)


def _guarded(kind: type[http.client.HTTPConnection]) -> Any:
    """http.client sets ``_create_connection`` per instance: set ours after it."""

    def build(host: str, **options: Any) -> http.client.HTTPConnection:
        connection = kind(host, **options)
        connection._create_connection = _connect  # type: ignore[attr-defined]
        return connection

    return build


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MAX_REDIRECTS

    def __init__(self, allow_hosts: tuple[str, ...]) -> None:
        self.allow_hosts = allow_hosts

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check(newurl, self.allow_hosts)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
