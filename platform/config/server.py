"""HTTP server of the web process: daphne, tuned by measurement, or uvicorn."""

import asyncio
import gc
import resource
from typing import Any

import uvloop
from django.conf import settings
from typing_extensions import override

# Daphne's default of 50 makes simultaneous connects wait for a second, until the kernel repeats the handshake.
_BACKLOG = 2048
_STOP_SECONDS = 5
_GC_THRESHOLDS = (50_000, 50, 50)


def serve(server: str, *, host: str, port: int) -> None:
    """Serve until a signal arrives, then store a terminal state for every active run."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    allow_many_sockets()
    # Imported late: these modules need the app registry.
    from config import warm_up
    from kernel import heartbeats
    from kernel.leases import PROCESS
    from responses.runs.runner import live_runs

    warm_up.load_modules()
    heartbeats.start("web", name=PROCESS, facts=lambda: {"server": server, "runs": live_runs()})
    {"daphne": _daphne, "uvicorn": _uvicorn}[server](host, port)


def _daphne(host: str, port: int) -> None:
    # Must come first: daphne installs Twisted's asyncio reactor on import, before anything imports `reactor`.
    from config.daphne_http import DaphneServer  # isort: skip
    from config.asgi import application
    from config.warm_up import connect

    freeze_startup_objects()
    # Colons separate the endpoint's fields, so those of an IPv6 address are escaped with a backslash, chr(92).
    endpoint = f"tcp:port={port}:interface={host.replace(':', chr(92) + ':')}:backlog={_BACKLOG}"
    instance = DaphneServer(
        application=application,
        after_start=connect,
        before_stop=_stop,
        endpoints=[endpoint],
        signal_handlers=True,
        http_timeout=None,
        websocket_handshake_timeout=10,
        websocket_max_message_size=settings.MAX_BODY_BYTES,
        websocket_max_frame_size=settings.MAX_BODY_BYTES,
        application_close_timeout=_STOP_SECONDS,
        verbosity=0,
        server_name="platform",
    )
    instance.run()
    if instance.abort_start:
        raise OSError(98, "the port is in use")


def allow_many_sockets() -> None:
    """Raise the soft limit of open files to the hard limit."""
    # A stream uses two sockets, and many systems have a soft limit of 1,024 files for each process.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


async def _stop() -> None:
    """Store the end of every run, send it to the clients, then close the connections to upstreams."""
    from responses.api import socket_streams
    from responses.providers.clients import close_clients
    from responses.runs.runner import cancel_all

    await cancel_all()
    await socket_streams.settle(_STOP_SECONDS)
    await close_clients()


def freeze_startup_objects() -> None:
    """Start garbage collection, except for the objects that exist after start-up."""
    # Modules and settings live as long as the process; scanning them again and again causes pauses. The objects of a
    # request hold no cycles, so collections only look at requests that are still active: with the default thresholds
    # they take 0.10 to 0.14 ms per stream (5 to 7 % of its CPU at concurrency 64). With these, 9,600 streams need none
    # and leave the process 1 MB larger.
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.collect()
    gc.freeze()
    gc.enable()


def _uvicorn(host: str, port: int) -> None:
    import uvicorn

    from config.asgi import application
    from config.uvicorn_http import LimitedHttpProtocol
    from config.warm_up import connect

    class UvicornServer(uvicorn.Server):
        @override
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            # Not awaited: probes get an answer meanwhile.
            self._connecting = asyncio.create_task(connect())

        @override
        async def shutdown(self, sockets: Any = None) -> None:
            await _stop()
            await super().shutdown(sockets)

    freeze_startup_objects()
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        http=LimitedHttpProtocol,
        backlog=_BACKLOG,
        ws_max_size=settings.MAX_BODY_BYTES,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    UvicornServer(config).run()
