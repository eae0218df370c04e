"""HTTP server of the web processes: uvicorn, or daphne."""

import asyncio
import gc
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvloop
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from typing_extensions import override

from server.env import LARGEST_PORT
from server.metrics import metrics_server

# Twisted's default of 50 makes simultaneous connects wait for a second, until the kernel repeats the handshake.
_BACKLOG = 2048
# libuv accepts one connection per listener in each iteration of the event loop, and iterations of an overloaded process
# take 100 to 300 ms: connections would wait in the kernel, where nothing can refuse them, until clients give up. Each
# listener costs 1.5 us per new connection and process.
_ACCEPTS_PER_ITERATION = 32
_STOP_SECONDS = 5
_GC_THRESHOLDS = (20_000, 10, 10)
# A fifth of Python's default. While a thread computes, the event loop waits this long for the interpreter lock. A
# thread with a query waits this long after each step of the query.
_SWITCH_SECONDS = 0.001


def serve(
    server: str, *, host: str, port: int, processes: int, metrics_port: int = 0, listening: Callable[[], None]
) -> None:
    """Serve until a signal arrives, then finish or hand over the active work (`server.web.shutdown`).

    `listening` is called once, when the start can no longer be refused.
    """
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    allow_many_sockets()
    listener, metrics_listener = _listen(host, port), metrics_server.listen(metrics_port)
    listening()
    # Imported late: these modules need the app registry. Before the fork, so that the processes share their memory.
    from core.admission.overload import admission
    from core.compute import pool
    from core.db.db_threads import pool_load
    from core.process_name import process_name
    from core.telemetry import metrics as platform_metrics
    from core.telemetry import tracing
    from core.work import heartbeats, presence
    from responses.lifecycle import dead_processes
    from responses.runs.runner import live_runs
    from server.asgi import application
    from server.metrics import process_metrics
    from server.web import warm_up, web_processes

    pool.configure(processes=settings.COMPUTE_PROCESSES, refuses=True, observe=platform_metrics.count_computation)
    warm_up.load_modules(with_urls=True)
    freeze_startup_objects()
    if processes > 1:
        metrics = process_metrics.ProcessMetrics(processes)
        number = web_processes.fork(processes)
        if number is None:
            return
        metrics.start(number)
    metrics_server.register()
    metrics_server.serve(metrics_listener, of_system=True)
    tracing.start("web")
    # Used until the server installs its own handler. uvicorn sends itself the signal again at the end.
    signal.signal(signal.SIGTERM, _exit)

    def facts() -> dict[str, Any]:
        lag_ms = admission.longest_lag_ms
        return {"server": server, "runs": live_runs(), "lag_ms": lag_ms, "pool": pool_load()}

    heartbeats.start("web", name=process_name(), facts=facts)
    presence.start(dead_processes.release)
    {"daphne": _daphne, "uvicorn": _uvicorn}[server](listener, application)


def _exit(*_: object) -> None:
    sys.exit(0)


def _listen(host: str, port: int) -> socket.socket:
    if port > LARGEST_PORT:
        raise ImproperlyConfigured(f"The port must be below 65536, not {port}.")
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)
    listener.listen(_BACKLOG)
    listener.settimeout(0)
    return listener


def _daphne(listener: socket.socket, application: Any) -> None:
    # Must come first: daphne installs Twisted's asyncio reactor on import, before anything imports `reactor`.
    from server.web.daphne_http import DaphneServer  # isort: skip
    from server.web import shutdown
    from server.web.warm_up import connect

    DaphneServer(
        application=application,
        after_start=connect,
        before_stop=shutdown.finish,
        shut_down=shutdown.begin,
        endpoints=[f"fd:fileno={listener.fileno()}"],
        signal_handlers=True,
        http_timeout=None,
        websocket_handshake_timeout=10,
        websocket_max_message_size=settings.MAX_BODY_BYTES,
        websocket_max_frame_size=settings.MAX_BODY_BYTES,
        application_close_timeout=_STOP_SECONDS,
        verbosity=0,
        server_name="platform",
    ).run()


def allow_many_sockets() -> None:
    """Raise the soft limit of open files to the hard limit."""
    # A stream uses two sockets, and many systems have a soft limit of 1,024 files for each process.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def freeze_startup_objects() -> None:
    """Enable garbage collection for objects that are created from now on, and shorten the turns of threads."""
    # Modules and settings live as long as the process; scanning them again and again causes pauses. The objects of a
    # request hold no cycles, so collections only look at requests that are still active: with the default thresholds
    # they take 0.10 to 0.14 ms per stream (5 to 7 % of its CPU at concurrency 64). With these, throughput is the
    # same as with 50,000/50/50 within the noise; the few cycles that libraries leave are collected earlier.
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.collect()
    gc.freeze()
    gc.enable()


def _uvicorn(listener: socket.socket, application: Any) -> None:
    import uvicorn

    from server.web import shutdown
    from server.web.request_heads import KEEP_ALIVE_SECONDS
    from server.web.uvicorn_http import LimitedHttpProtocol
    from server.web.uvicorn_websocket import LimitedSocketProtocol
    from server.web.warm_up import connect

    class UvicornServer(uvicorn.Server):
        @override
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            self._loop = asyncio.get_running_loop()
            # Not awaited: probes get an answer meanwhile.
            self._connecting = asyncio.create_task(connect())

        @override
        async def shutdown(self, sockets: Any = None) -> None:
            await shutdown.finish()
            await super().shutdown(sockets)

        @override
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            stop = partial(super().handle_exit, sig, frame)
            if sig == signal.SIGTERM and self.started:
                # The server continues to serve meanwhile; a second signal shortens the shutdown.
                self._loop.call_soon_threadsafe(shutdown.begin, stop)
            else:
                stop()

    options = uvicorn.Config(
        application,
        http=LimitedHttpProtocol,
        ws=LimitedSocketProtocol,
        backlog=_BACKLOG,
        ws_max_size=settings.MAX_BODY_BYTES,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # Addresses that a key allows are those of the peer, as on daphne. By default uvicorn trusts X-Forwarded-For
        # of every client on this machine.
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    UvicornServer(options).run([listener, *(listener.dup() for _ in range(_ACCEPTS_PER_ITERATION - 1))])
