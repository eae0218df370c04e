"""Raw HTTP requests: heads and bodies that no HTTP client would send."""

import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from tests.support.waiting import HANGS_AFTER


@dataclass(frozen=True)
class RawResponse:
    """A response with its status, headers (names in lower case) and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        """The inner object of the error envelope."""
        return orjson.loads(self.body)["error"]


def request_head(method: str, path: str, **headers: object) -> bytes:
    """Return a request line and headers; underscores in names stand for hyphens."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


class RawConnection:
    """A TCP connection to a web process, or with `trust` a TLS connection to a proxy."""

    def __init__(self, url: str, *, trust: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=HANGS_AFTER)
        if trust is not None:
            self.socket = trust.wrap_socket(self.socket, server_hostname=parts.hostname)
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send_head(self, method: str, path: str, **headers: object) -> None:
        """Send a request line and headers; underscores in names stand for hyphens."""
        self.socket.sendall(request_head(method, path, **headers))

    def send(self, data: bytes) -> bool:
        """Send data; False if the server has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def response(self) -> RawResponse:
        """Read one response, which has a Content-Length."""
        while b"\r\n\r\n" not in self._unread:
            self._read()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        code = int(status.split()[1])
        length = int(headers.get("content-length", "0")) if code >= 200 else 0
        while len(self._unread) < length:
            self._read()
        body, self._unread = self._unread[:length], self._unread[length:]
        return RawResponse(code, headers, body)

    def rest(self) -> bytes:
        """Read until the server closes the connection."""
        while received := self.socket.recv(65536):
            self._unread += received
        return self._unread

    def _read(self) -> None:
        received = self.socket.recv(65536)
        assert received, f"the connection was closed after {self._unread[:200]!r}"
        self._unread += received

    def is_closed_within(self, seconds: float) -> bool:
        """Return true if the server closes the connection."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def trickle(self, seconds: float, *, every: float = 0.05) -> None:
        """Send one byte at a time until the server closes the connection or has responded."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and self.send(b" "):
            self.socket.settimeout(every)
            try:
                self._unread += self.socket.recv(65536)
                break
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
        self.socket.settimeout(20)
