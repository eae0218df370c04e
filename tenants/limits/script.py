"""The script that checks and reserves limits, and the clients that run it."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import redis
import redis.asyncio
import redis.retry
from django.conf import settings
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tenants.limits.pipeline import Pipeline

SOURCE = Path(__file__).with_name("script.lua").read_text()
SHA = hashlib.sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()
# Not less: the event loop of a busy process may be late by a second.
_TIMEOUT_SECONDS = 2.0
_CONNECTIONS = 8
# One retry is enough to reopen a connection that the server has closed while it was idle.
_RETRIES = 1
Reply = list[str]


def state_keys(team_id: str) -> list[str]:
    """Return the keys of a team's state. The braces keep all keys of a team on one node of a cluster."""
    return [f"{{{team_id}}}:limits", f"{{{team_id}}}:limits:settled", f"{{{team_id}}}:limits:rebuilding"]


def _decoded(reply: Any) -> Reply:
    words: Reply = reply.decode().split(" ")
    return words


def _call(keys: Sequence[str], document: Mapping[str, Any]) -> list[Any]:
    return [len(keys), *keys, orjson.dumps(document)]


_by_loop: "dict[asyncio.AbstractEventLoop, redis.asyncio.Redis]" = {}


def loop_client() -> Any:
    """Return the client of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        # Tests and short-lived commands close their loops; production processes have one.
        for closed in [known for known in _by_loop if known.is_closed()]:
            del _by_loop[closed]
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            settings.REDIS_URL,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), _RETRIES),
        )
        _by_loop[loop] = redis.asyncio.Redis(connection_pool=pool)
    return _by_loop[loop]


def client() -> Any:
    """Return the client for code without an event loop, shared by all threads."""
    return _client(settings.REDIS_URL)


@cache
def _client(url: str) -> Any:
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        retry=redis.retry.Retry(NoBackoff(), _RETRIES),
    )


_pipelines: dict[asyncio.AbstractEventLoop, Pipeline] = {}


def _pipeline() -> Pipeline:
    loop = asyncio.get_running_loop()
    if loop not in _pipelines:
        for closed in [known for known in _pipelines if known.is_closed()]:
            del _pipelines[closed]
        _pipelines[loop] = Pipeline(parse_url(settings.REDIS_URL), seconds=_TIMEOUT_SECONDS)
    return _pipelines[loop]


async def arun(keys: Sequence[str], document: Mapping[str, Any]) -> Reply:
    """Run the script on the event loop. Raises `redis.RedisError`."""
    if settings.REDIS_URL.startswith("redis://"):
        call = [b"%d" % len(keys), *(key.encode() for key in keys), orjson.dumps(document)]
        try:
            return _decoded(await _pipeline().call(b"EVALSHA", SHA.encode(), *call))
        except redis.exceptions.NoScriptError:
            return _decoded(await _pipeline().call(b"EVAL", SOURCE.encode(), *call))
    # TLS and sockets of the file system are left to the library.
    slower = _call(keys, document)
    try:
        return _decoded(await loop_client().evalsha(SHA, *slower))
    except redis.exceptions.NoScriptError:
        return _decoded(await loop_client().eval(SOURCE, *slower))


def run(keys: Sequence[str], document: Mapping[str, Any]) -> Reply:
    """Run the script, for code without an event loop. Raises `redis.RedisError`."""
    call = _call(keys, document)
    try:
        return _decoded(client().evalsha(SHA, *call))
    except redis.exceptions.NoScriptError:
        return _decoded(client().eval(SOURCE, *call))
