"""How the web process listens: daphne with a few measured corrections, or uvicorn."""

import asyncio
import gc
import resource
from typing import Any

import uvloop
from django.conf import settings
from typing_extensions import override

_BACKLOG = 2048
_STOP_SECONDS = 5


def serve(server: str, *, host: str, port: int) -> None:
    """Serve until a signal. Whatever runs at the end gets its stored terminal state before the process goes."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    allow_many_sockets()
    _tell_of_itself(server)
    {"daphne": _daphne, "uvicorn": _uvicorn}[server](host, port)


def _tell_of_itself(server: str) -> None:
    from kernel import heartbeats
    from responses.runs.runner import PROCESS, live_runs

    heartbeats.start("web", name=PROCESS, facts=lambda: {"server": server, "runs": live_runs()})


def _daphne(host: str, port: int) -> None:
    # The first of these installs Twisted's reactor on an asyncio loop of its own.
    from config.daphne_bodies import Server  # isort: skip
    from twisted.internet import reactor

    from config.asgi import application, is_upload

    settle()
    # Its default backlog of 50 makes simultaneous connects wait for a second.
    endpoint = f"tcp:port={port}:interface={host.replace(':', chr(92) + ':')}:backlog={_BACKLOG}"
    instance = Server(
        application=application,
        is_upload=is_upload,
        most_bytes=_most_bytes,
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
    # Twisted's annotations take the module for the interface that it implements, `self` and all.
    _ = reactor.addSystemEventTrigger("before", "shutdown", lambda: _as_deferred(_stop()))  # type: ignore[arg-type]
    instance.run()
    if instance.abort_start:
        msg = "the port is in use"
        raise OSError(98, msg)


def _most_bytes(path: bytes) -> int:
    """The limit of a body, before anybody has looked at the request."""
    return settings.MAX_UPLOAD_BODY_BYTES if path.startswith(b"/v1/files") else settings.MAX_BODY_BYTES


def allow_many_sockets() -> None:
    """A stream holds two sockets, and many systems allow a process 1,024 until it asks for more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _stop() -> None:
    """Give every run its stored end, then close the connections to upstreams."""
    from responses.providers.clients import close_clients
    from responses.runs.runner import cancel_all

    await cancel_all()
    await close_clients()


def settle() -> None:
    """What start-up left lives as long as the process: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


def _as_deferred(work: Any) -> Any:
    from twisted.internet.defer import Deferred

    return Deferred.fromFuture(asyncio.ensure_future(work))


def _uvicorn(host: str, port: int) -> None:
    import uvicorn

    from config.asgi import application

    class Server(uvicorn.Server):
        @override
        async def shutdown(self, sockets: Any = None) -> None:
            await _stop()
            await super().shutdown(sockets)

    settle()
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        backlog=_BACKLOG,
        ws_max_size=settings.MAX_BODY_BYTES,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    Server(config).run()
