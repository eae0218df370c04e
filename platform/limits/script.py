"""The script that checks and reserves limits, and the clients that run it."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import redis
from django.conf import settings
from redis.asyncio.connection import parse_url

from core.per_loop import PerLoop
from core.work.notifications import blocking_client
from core.work.redis_client import TIMEOUT_SECONDS, loop_client
from limits.pipeline import Pipeline

logger = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("script.lua").read_text()
SHA = hashlib.sha1(SOURCE.encode(), usedforsecurity=False).hexdigest()
_SHA = SHA.encode()
# One retry is enough to reopen a connection that the server has closed while it was idle.
_RETRIES = 1
Reply = list[str]


def state_keys(team_id: str) -> list[str]:
    """Return the keys of a team's state. The braces keep all keys of a team on one node of a cluster."""
    return [f"{{{team_id}}}:limits", f"{{{team_id}}}:limits:settled", f"{{{team_id}}}:limits:rebuilding"]


def _decoded(reply: Any) -> list[Reply]:
    """Decode the reply to a call into the replies to its requests."""
    return [line.split(" ") for line in reply.decode().split("\n")]


def client() -> Any:
    """Return the client for code without an event loop, shared by all threads."""
    return _client(settings.REDIS_URL, retries=_RETRIES)


@cache
def _client(url: str, *, retries: int) -> Any:
    return blocking_client(url, seconds=TIMEOUT_SECONDS, retries=retries)


class _Request(NamedTuple):
    """A request that has not been sent yet. `keys` are the keys of its rates. If `reply` is None, no caller waits."""

    keys: Sequence[str]
    document: bytes
    # A settlement must not be repeated: it would give back twice as many tokens.
    is_settlement: bool
    reply: "asyncio.Future[Reply] | None"


_FORGET = {"op": "forget"}


def _call(team_id: str, requests: Sequence[_Request]) -> tuple[list[str], list[bytes]]:
    """Return keys and arguments of the call that sends these requests."""
    keys = [*state_keys(team_id), *(key for request in requests for key in request.keys)]
    return keys, [request.document for request in requests]


class _Batches:
    """The calls of an event loop. All requests of a team in an iteration of the loop are sent as one call.

    Sending to Redis and waking up for its reply takes more CPU than all other parts of a call.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipeline = Pipeline(parse_url(settings.REDIS_URL), seconds=TIMEOUT_SECONDS)
        self._waiting: dict[str, list[_Request]] = {}
        # Teams whose settlements Redis may not have received: their spending is in PostgreSQL.
        self._unsettled: set[str] = set()
        self._calls: set[asyncio.Task[None]] = set()

    def add(self, team_id: str, request: _Request) -> None:
        """Send a request with the others of this iteration."""
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.setdefault(team_id, []).append(request)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for team_id, requests in waiting.items():
            call = self._loop.create_task(self._call(team_id, requests))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, team_id: str, requests: Sequence[_Request]) -> None:
        try:
            replies = await self._replies(team_id, requests)
        except Exception as error:
            # Every error has to be passed on, because callers wait for a reply.
            if any(request.is_settlement for request in requests):
                self._unsettled.add(team_id)
                logger.warning("reservations could not be settled: %s", error, extra={"team": team_id})
            for request in requests:
                if request.reply is not None and not request.reply.done():
                    request.reply.set_exception(error)
            return
        for request, reply in zip(requests, replies, strict=True):
            # The future is cancelled if the client has disconnected.
            if request.reply is not None and not request.reply.done():
                request.reply.set_result(reply)

    async def _replies(self, team_id: str, requests: Sequence[_Request]) -> list[Reply]:
        await self._forget(team_id)
        try:
            return await self._run(*_call(team_id, requests))
        except redis.ConnectionError:
            if any(request.is_settlement for request in requests):
                self._unsettled.add(team_id)
        # Redis may have executed the requests before the connection was lost. A repeated reservation replaces the one
        # with the same id, but a repeated settlement would count twice. Instead, PostgreSQL is read again.
        await self._forget(team_id)
        others = [request for request in requests if not request.is_settlement]
        replies = iter(await self._run(*_call(team_id, others)) if others else ())
        return [["unknown"] if request.is_settlement else next(replies) for request in requests]

    async def _forget(self, team_id: str) -> None:
        if team_id in self._unsettled:
            await self._run([*state_keys(team_id)], [orjson.dumps(_FORGET)])
            self._unsettled.discard(team_id)

    async def _run(self, keys: Sequence[str], documents: Sequence[bytes]) -> list[Reply]:
        if settings.REDIS_URL.startswith("redis://"):
            call = [b"%d" % len(keys), *(key.encode() for key in keys), *documents]
            try:
                return _decoded(await self._pipeline.call(b"EVALSHA", _SHA, *call))
            except redis.exceptions.NoScriptError:
                return _decoded(await self._pipeline.call(b"EVAL", SOURCE.encode(), *call))
        # TLS and sockets of the file system are left to the library.
        slower = [len(keys), *keys, *documents]
        try:
            return _decoded(await loop_client().evalsha(SHA, *slower))
        except redis.exceptions.NoScriptError:
            return _decoded(await loop_client().eval(SOURCE, *slower))


_batches = PerLoop(_Batches)


async def arun(team_id: str, keys: Sequence[str], document: Mapping[str, Any]) -> Reply:
    """Run the script on the event loop; `keys` are the keys of the rates. Raises `redis.RedisError`."""
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    _batches().add(team_id, _Request(keys, orjson.dumps(document), document["op"] == "settle", reply))
    return await reply


def send(team_id: str, keys: Sequence[str], document: Mapping[str, Any]) -> None:
    """Run the script without waiting for its reply. A failure is logged."""
    _batches().add(team_id, _Request(keys, orjson.dumps(document), document["op"] == "settle", None))


def run(team_id: str, keys: Sequence[str], document: Mapping[str, Any]) -> Reply:
    """Run the script, for code without an event loop. Raises `redis.RedisError`."""
    if document["op"] != "settle":
        return _evaluate(client(), [*state_keys(team_id), *keys], document)
    try:
        return _evaluate(_client(settings.REDIS_URL, retries=0), [*state_keys(team_id), *keys], document)
    except redis.ConnectionError:
        # See `_replies`.
        _evaluate(client(), state_keys(team_id), _FORGET)
        return ["unknown"]


def _evaluate(connection: Any, keys: Sequence[str], document: Mapping[str, Any]) -> Reply:
    call = [len(keys), *keys, orjson.dumps(document)]
    try:
        return _decoded(connection.evalsha(SHA, *call))[0]
    except redis.exceptions.NoScriptError:
        return _decoded(connection.eval(SOURCE, *call))[0]
