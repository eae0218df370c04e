"""Followers of background runs: notified when the log grows, served by one reader, released at every end."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from pytest_django import Settings

from core.db.db_threads import in_db_thread
from core.work.notifications import Notifier, loop_notifications
from responses.lifecycle import cancel
from responses.models import EventBatch, Response
from responses.runs import follow
from responses.runs.event_log import LogMessage
from responses.runs.identity import RequestInfo, channel_of
from responses.runs.runner import LiveRun
from tenants import directory, scope
from tenants.principal import Principal
from tests.support.api import Caller
from tests.support.chunks import chunk
from tests.support.scripted import ScriptedModel
from tests.support.statements import captured_statements
from tests.support.stored_runs import Begun, abegin, body_of, log_of

DELTAS = 30
REQUEST = RequestInfo(request_id="req_test", client_request_id="")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A background run in this process whose model waits at gates."""

    begun: Begun
    live: LiveRun
    model: ScriptedModel
    gates: list[asyncio.Event]

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self.begun.who.response_id


@pytest.fixture
def principal(database: None, caller: Caller) -> Principal:
    """The principal that follows."""
    return directory.principal(caller.secret)


@asynccontextmanager
async def running_response(caller: Caller, *, gates: int = 1, background: bool = True) -> AsyncIterator[Running]:
    """A run that sends one word, and another word after each gate."""
    begun = await abegin(caller, background=background)
    events = [asyncio.Event() for _ in range(gates)]
    pieces = [piece for number, gate in enumerate(events) for piece in (gate, chunk(content=f" {number}"))]
    model = ScriptedModel([chunk(content="Hel"), *pieces, chunk(finish="stop")])
    live = begun.live(model)
    live.start()
    try:
        yield Running(begun=begun, live=live, model=model, gates=events)
    finally:
        live.cancel()
        await live.finished()


async def follow_to_end(principal: Principal, run: Running, *, after: int = -1) -> bytes:
    """Return all bytes that a follower receives."""
    frames = await follow.follow(principal=principal, response_id=run.response_id, after=after, obfuscation=True)
    return b"".join([data async for data in frames])


def numbers(raw: bytes) -> list[int]:
    """Return the numbers of the events in these bytes."""
    return [int(number) for number in re.findall(rb'"sequence_number":(\d+)', raw)]


async def read_until(frames: AsyncIterator[bytes], words: bytes) -> None:
    """Read until these words were received."""
    async with asyncio.timeout(60):
        while words not in await anext(frames):
            pass


async def until(look: Callable[[], bool]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(60):
        while not look():
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_followers_need_no_reads_while_messages_arrive(caller: Caller, principal: Principal) -> None:
    async with running_response(caller, gates=DELTAS) as run:
        followers = [asyncio.create_task(follow_to_end(principal, run)) for _ in range(300)]
        await until(lambda: getattr(follow._Tail._open.get(run.response_id), "_followers", 0) == 300)
        async with captured_statements() as statements:
            for gate in run.gates:
                gate.set()
                await asyncio.sleep(0.02)
            raws = await asyncio.gather(*followers)
    reads = [sql for sql in statements if "eventbatch" in sql]
    # Messages contain the new events. The log is read only after a pause of a second, once for all followers.
    assert len(reads) < DELTAS
    assert len(set(raws)) == 1
    assert numbers(raws[0]) == await in_db_thread(lambda: log_numbers(run))


def log_numbers(run: Running) -> list[int]:
    """Return the numbers of the events in the log."""
    return [event["sequence_number"] for event in log_of(run.begun)]


async def test_following_from_a_later_number_waits_for_its_event(caller: Caller, principal: Principal) -> None:
    async with running_response(caller) as run:
        beyond = asyncio.create_task(follow_to_end(principal, run, after=6))
        far_beyond = asyncio.create_task(follow_to_end(principal, run, after=999))
        run.gates[0].set()
        raw = await beyond
        last = (await in_db_thread(lambda: log_numbers(run)))[-1]
        assert numbers(raw) == list(range(7, last + 1))
        assert await far_beyond == b"data: [DONE]\n\n"


@pytest.mark.slow
async def test_a_run_without_followers_stores_its_deltas_together(caller: Caller, principal: Principal) -> None:
    async with running_response(caller, gates=DELTAS) as run:
        for gate in run.gates:
            gate.set()
            await asyncio.sleep(0.01)
        await run.live.finished()
    # The first events, those until the end of the turn, and the end; more only where the model's words take long.
    assert len(await in_db_thread(lambda: batches_of(run))) < DELTAS / 3


@pytest.mark.slow
@pytest.mark.parametrize("is_small", [True, False])
async def test_a_follower_of_a_new_response_begins_with_its_first_events(
    caller: Caller, principal: Principal, *, is_small: bool
) -> None:
    begun = await abegin(caller, background=True)
    live = begun.live(ScriptedModel([chunk(content="Hel"), chunk(finish="stop")]))
    # Until the process receives notifications, followers poll several times a second.
    notifications, connected = loop_notifications(), asyncio.Event()
    with notifications.listening("any", connected):
        while not notifications.is_connected:
            await connected.wait()
            connected.clear()
    async with captured_statements() as statements:
        opening = begun.opening if is_small else b""
        frames = follow.follow_new(principal=principal, response_id=begun.who.response_id, opening=opening)
        first = await anext(frames)
        assert first == begun.opening
        live.start()
        rest = b"".join([data async for data in frames])
    assert rest.endswith(b"data: [DONE]\n\n")
    stored = await in_db_thread(lambda: [event["sequence_number"] for event in log_of(begun)])
    assert numbers(first + rest) == stored
    # Once when the messages are subscribed to; the rest comes with them. Unknown first events are read before.
    assert len([sql for sql in statements if "eventbatch" in sql]) <= 2 + (not is_small)


@pytest.mark.parametrize("background", [True, False])
async def test_a_follower_of_a_running_response_receives_each_delta_soon(
    caller: Caller, principal: Principal, *, background: bool
) -> None:
    async with running_response(caller, gates=3, background=background) as run:
        frames = await follow.follow(principal=principal, response_id=run.response_id, after=-1, obfuscation=True)
        # Far below EVENT_LOG_SECONDS, after which the deltas of a run without followers are stored.
        async with asyncio.timeout(60):
            await read_until(frames, b"Hel")
            for number, gate in enumerate(run.gates):
                gate.set()
                await read_until(frames, b'" %d"' % number)


@pytest.mark.slow
async def test_lost_repeated_and_unknown_messages_change_nothing_for_a_follower(
    caller: Caller, principal: Principal
) -> None:
    async with running_response(caller, gates=3) as run:
        following = asyncio.create_task(follow_to_end(principal, run))
        await until(lambda: run.response_id in follow._Tail._open and follow._Tail._open[run.response_id].length > 2)
        channel = Notifier(channel_of(run.response_id))
        first, *_ = await in_db_thread(lambda: batches_of(run))
        channel.notify(LogMessage(first_sequence=0, ends_run=False, compressed=bytes(first.compressed)).encode())
        channel.notify(LogMessage(first_sequence=999, ends_run=True, compressed=bytes(first.compressed)).encode())
        channel.notify(b"from another version")
        for gate in run.gates:
            gate.set()
            await asyncio.sleep(0.05)
        raw = await following
        assert numbers(raw) == await in_db_thread(lambda: log_numbers(run))
        assert raw.endswith(b"data: [DONE]\n\n")


def batches_of(run: Running) -> list[EventBatch]:
    """Return the rows of the log."""
    with scope.team(run.begun.who.team_id):
        return list(EventBatch.objects.filter(response_id=run.response_id).order_by("first_sequence"))


@pytest.mark.slow
async def test_followers_of_a_deleted_run_stop_waiting(caller: Caller, principal: Principal) -> None:
    async with running_response(caller) as run:
        frames = await follow.follow(principal=principal, response_id=run.response_id, after=-1, obfuscation=True)
        await read_until(frames, b"Hel")
        await in_db_thread(lambda: delete(run))
        await read_until(frames, b"[DONE]")
    assert run.live.end is not None


def delete(run: Running) -> None:
    """Delete the row, as another process would."""
    with scope.team(run.begun.who.team_id):
        Response.objects.filter(pk=run.response_id).delete()


@pytest.mark.slow
async def test_followers_and_cancellation_work_without_redis(
    caller: Caller, principal: Principal, settings: Settings
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    async with running_response(caller) as run:
        follower = asyncio.create_task(follow_to_end(principal, run))
        await until(lambda: bool(run.model.opened))
        await in_db_thread(lambda: cancel_elsewhere(principal, run))
        async with asyncio.timeout(1.5):
            await run.live.finished()
        assert run.model.opened[0].is_closed
        assert (await follower).endswith(b"data: [DONE]\n\n")
    assert (await in_db_thread(lambda: body_of(run.begun)))["status"] == "cancelled"


def cancel_elsewhere(principal: Principal, run: Running) -> bool:
    """Cancel the run as another process would."""
    return cancel.cancel_run(
        team_id=principal.team_id, actor=principal.actor, response_id=run.response_id, request=REQUEST
    )
