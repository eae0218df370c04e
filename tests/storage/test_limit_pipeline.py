"""The shared connection to Redis: replies of concurrent calls, lost connections, silent servers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import redis
from django.conf import settings
from redis.asyncio.connection import parse_url

from limits.pipeline import Pipeline


def run(test: Callable[[Pipeline], Awaitable[None]]) -> None:
    """Run a test with a pipeline to the Redis of the tests."""

    async def main() -> None:
        await test(Pipeline(parse_url(settings.REDIS_URL), seconds=5))

    asyncio.run(main())


def test_each_call_gets_its_own_reply(database: None) -> None:
    async def test(pipeline: Pipeline) -> None:
        texts = [b"\r\n$x" * number * number for number in range(100)]
        assert await asyncio.gather(*(pipeline.call(b"ECHO", text) for text in texts)) == texts

    run(test)


def test_every_kind_of_reply_is_parsed(database: None) -> None:
    async def test(pipeline: Pipeline) -> None:
        assert await pipeline.call(b"PING") == b"PONG"
        assert await pipeline.call(b"DEL", b"unknown") == 0
        assert await pipeline.call(b"GET", b"unknown") is None
        with pytest.raises(redis.ResponseError, match="unknown command"):
            await pipeline.call(b"NONSENSE")
        with pytest.raises(redis.exceptions.NoScriptError):
            await pipeline.call(b"EVALSHA", b"0" * 40, b"0")

    run(test)


def test_a_cancelled_call_does_not_disturb_the_others(database: None) -> None:
    async def test(pipeline: Pipeline) -> None:
        await pipeline.call(b"PING")
        cancelled = asyncio.create_task(pipeline.call(b"ECHO", b"1"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await pipeline.call(b"ECHO", b"2") == b"2"

    run(test)


def test_the_call_after_a_lost_connection_opens_another(database: None) -> None:
    async def test(pipeline: Pipeline) -> None:
        killed = await pipeline.call(b"CLIENT", b"ID")
        with redis.Redis.from_url(settings.REDIS_URL) as other:
            other.client_kill_filter(_id=str(killed))
        # Redis may have executed it, so it is not sent again.
        with pytest.raises(redis.ConnectionError):
            await pipeline.call(b"CLIENT", b"ID")
        assert await pipeline.call(b"CLIENT", b"ID") != killed

    run(test)


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A server that accepts connections and answers nothing."""

    async def read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def test_a_silent_server_is_abandoned(database: None) -> None:
    async def main() -> None:
        async with silent_server() as port:
            pipeline = Pipeline({"host": "127.0.0.1", "port": port}, seconds=0.2)
            with pytest.raises(redis.TimeoutError):
                await pipeline.call(b"PING")

    asyncio.run(main())


def test_an_unreachable_server_is_reported(database: None) -> None:
    async def main() -> None:
        async with silent_server() as port:
            pass
        with pytest.raises(redis.ConnectionError):
            await Pipeline({"host": "127.0.0.1", "port": port}, seconds=2).call(b"PING")

    asyncio.run(main())
