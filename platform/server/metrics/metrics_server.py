"""The metrics of a process: under `/metrics` for authorized clients, and on a port of their own."""

import logging
import platform
import secrets
import socket
import threading
from argparse import ArgumentParser
from collections.abc import Iterable
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from prometheus_client.registry import Collector
from typing_extensions import override

from core.telemetry import metrics
from server.env import LARGEST_PORT
from server.metrics import process_metrics
from server.metrics.system_metrics import DiskMetrics, PoolMetrics, SystemMetrics
from server.safety import NotReady

logger = logging.getLogger(__name__)
_BACKLOG = 16
_IDLE_SECONDS = 10.0
_system = SystemMetrics()


def register() -> None:
    """Register the metrics that every process reports about itself."""
    metrics.BUILD.info({"version": settings.VERSION, "python": platform.python_version()})
    REGISTRY.register(PoolMetrics())
    REGISTRY.register(DiskMetrics())


def add_port_argument(parser: ArgumentParser) -> None:
    """Add the option of a command for the port of its metrics."""
    parser.add_argument(
        "--metrics-port", type=int, default=settings.METRICS_PORT, help="port of the metrics (default: METRICS_PORT)"
    )


def exposition(*, of_system: bool) -> bytes:
    """Return the metrics of this process, or of all web processes on its port, in Prometheus' text format.

    With `of_system`, include the metrics of the whole installation.
    """
    others: Iterable[Collector] = (_system,) if of_system else ()
    return generate_latest(process_metrics.registry(*others))


def has_token(authorization: str) -> bool:
    """Return true if a request carries `METRICS_TOKEN`."""
    return secrets.compare_digest(authorization.encode(), f"Bearer {settings.METRICS_TOKEN}".encode())


def is_local(address: str, *, is_forwarded: bool) -> bool:
    """Return true if a request comes from this machine, and not through a proxy on it."""
    try:
        return ip_address(address).is_loopback and not is_forwarded
    except ValueError:
        return False


def listen(port: int) -> socket.socket | None:
    """Open the port of the metrics on `METRICS_HOST`; None for port 0. Raises `NotReady`."""
    if not port:
        return None
    if port > LARGEST_PORT:
        # `getaddrinfo` would take the remainder of a division by 65536.
        raise ImproperlyConfigured(f"The port of the metrics (METRICS_PORT) must be below 65536, not {port}.")
    host = settings.METRICS_HOST
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise NotReady(f"Cannot listen on {host}:{port} (METRICS_PORT): {error.strerror}.") from error
    listener.listen(_BACKLOG)
    # Several processes may accept connections from this socket. If another process was faster, `accept` must not block.
    listener.settimeout(0)
    return listener


def serve(listener: socket.socket | None, *, of_system: bool = False) -> None:
    """Serve `/metrics` on a port of its own from a thread."""
    if listener is not None:
        server = _Server(listener, of_system=of_system)
        threading.Thread(target=server.serve_forever, name="metrics-port", daemon=True).start()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, *, of_system: bool) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self._of_system = of_system
        self.set_app(self._answer)

    def _answer(self, environ: dict[str, Any], start: Any) -> list[bytes]:
        status, content_type, body = "200 OK", CONTENT_TYPE_LATEST, b""
        if environ["PATH_INFO"] != "/metrics":
            status, content_type, body = "404 Not Found", "text/plain", b"The metrics are at /metrics.\n"
        elif settings.METRICS_TOKEN and not has_token(environ.get("HTTP_AUTHORIZATION", "")):
            status, content_type, body = "401 Unauthorized", "text/plain", b"METRICS_TOKEN is required.\n"
        else:
            body = exposition(of_system=self._of_system)
        start(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_SECONDS

    @override
    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)
