"""The lock of a conversation: owner, expiry and release; and the cost of reading a conversation's context."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from conversations import selectors as conversation_selectors
from conversations import services
from conversations.items import Compaction, from_wire
from conversations.models import Placement, Section
from core.clock import now
from core.errors import ConversationLocked
from core.ids import new_id
from engine.compaction.items import CompactionContent
from responses.lifecycle import conversation_runs, sweeper
from responses.models import ConversationLock, Response
from responses.requests.context import RequestContext, read_context
from responses.requests.encrypted_content import TeamCipher
from responses.runs import conversation_lock, store
from responses.runs.conversation_lock import ConversationAppend, DeadLockOwner
from responses.runs.store import Change, LockGuard, ResponseUpdate
from responses.schema import parse_create
from tenants import directory, scope
from tenants.principal import Principal
from tests.support.api import Caller
from tests.support.stored_runs import prepare
from tests.support.waiting import eventually

CONTROL = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")


@pytest.fixture
def principal(database: None, caller: Caller) -> Principal:
    """The principal that writes."""
    return directory.principal(caller.secret)


@pytest.fixture
def conversation_id(principal: Principal) -> str:
    """An empty conversation."""
    return services.create_conversation(principal=principal, items=[], metadata={}).pk


def acquire_lock(principal: Principal, conversation_id: str, response_id: str) -> None:
    with scope.team(principal.team_id):
        conversation_lock.acquire(team_id=principal.team_id, conversation_id=conversation_id, response_id=response_id)


def owner(principal: Principal, conversation_id: str) -> str | None:
    with scope.team(principal.team_id):
        return conversation_lock.find_owner(conversation_id=conversation_id)


def store_response(caller: Caller, conversation_id: str, response_id: str | None = None) -> Change:
    """Return the change that stores a response of the conversation."""
    begun, change = prepare(caller)
    row = next(row for row in change.insert if row.table is Response)
    row.values["conversation_id"] = conversation_id
    lock = LockGuard(response_id=response_id or begun.who.response_id, conversation_id=conversation_id)
    return Change(team_id=change.team_id, insert=change.insert, lock=lock)


def expire_lease(principal: Principal, response_id: str) -> None:
    """Expire the lease of a response."""
    with scope.team(principal.team_id):
        Response.objects.filter(pk=response_id).update(lease_until=now() - timedelta(seconds=1))


def store_locked_response(principal: Principal, caller: Caller, conversation_id: str) -> str:
    """Store a running response that has locked the conversation."""
    change = store_response(caller, conversation_id)
    assert change.lock is not None
    acquire_lock(principal, conversation_id, change.lock.response_id)
    assert store.apply([change]) == [None]
    return change.lock.response_id


# -- locks -------------------------------------------------------------------------------------------------------------


def test_a_locked_conversation_cannot_be_locked_again(principal: Principal, conversation_id: str) -> None:
    acquire_lock(principal, conversation_id, "resp_1")
    with pytest.raises(ConversationLocked):
        acquire_lock(principal, conversation_id, "resp_2")
    assert owner(principal, conversation_id) == "resp_1"


def test_a_lock_without_a_response_expires(principal: Principal, conversation_id: str) -> None:
    acquire_lock(principal, conversation_id, "resp_1")
    with scope.team(principal.team_id):
        ConversationLock.objects.update(until=now() - timedelta(seconds=1))
    acquire_lock(principal, conversation_id, "resp_2")
    assert owner(principal, conversation_id) == "resp_2"


def test_a_response_that_lost_its_lock_is_not_stored(
    principal: Principal, caller: Caller, conversation_id: str
) -> None:
    late = store_response(caller, conversation_id)
    acquire_lock(principal, conversation_id, "resp_2")
    (lost,) = store.apply([late])
    assert isinstance(lost, store.LeaseLost)
    with scope.team(principal.team_id):
        assert not Response.objects.exists()


def test_the_lock_of_a_stored_response_is_not_released(
    principal: Principal, caller: Caller, conversation_id: str
) -> None:
    response_id = store_locked_response(principal, caller, conversation_id)
    conversation_lock.release(team_id=principal.team_id, conversation_id=conversation_id, response_id=response_id)
    assert owner(principal, conversation_id) == response_id


def test_a_client_that_disconnects_while_locking_releases_the_lock(principal: Principal, conversation_id: str) -> None:
    body = parse_create({"model": "m", "input": "Hi", "conversation": conversation_id})
    loop = asyncio.new_event_loop()

    async def ask() -> None:
        async with conversation_runs.release_on_failure(principal=principal, body=body, response_id="resp_2"):
            await conversation_runs.lock_and_read(principal=principal, body=body, response_id="resp_2")

    asking = loop.create_task(ask())
    with ThreadPoolExecutor(1) as other:
        with scope.team(principal.team_id):
            acquire_lock(principal, conversation_id, "resp_1")
            asked = other.submit(loop.run_until_complete, asyncio.wait([asking]))
            eventually(lambda: waiting_sessions() == 1)
            loop.call_soon_threadsafe(asking.cancel)
            transaction.set_rollback(True)
        asked.result()
    loop.close()
    assert asking.cancelled()
    assert owner(principal, conversation_id) is None


def waiting_sessions() -> int:
    """Return the number of sessions that wait for a lock of this one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
        )
        return int(cursor.fetchone()[0])


def test_a_dead_run_is_ended_before_its_conversation_is_locked_again(
    principal: Principal, caller: Caller, conversation_id: str
) -> None:
    response_id = store_locked_response(principal, caller, conversation_id)
    with pytest.raises(ConversationLocked):
        acquire_lock(principal, conversation_id, "resp_2")
    expire_lease(principal, response_id)
    with pytest.raises(DeadLockOwner):
        acquire_lock(principal, conversation_id, "resp_2")
    sweeper.end_dead_run(response_id=response_id)
    acquire_lock(principal, conversation_id, "resp_2")
    with scope.team(principal.team_id):
        assert Response.objects.get(pk=response_id).status == "failed"


def test_a_request_ends_the_dead_run_that_locks_its_conversation(
    principal: Principal, caller: Caller, conversation_id: str
) -> None:
    expire_lease(principal, store_locked_response(principal, caller, conversation_id))
    body = parse_create({"model": "m", "input": "Hi", "conversation": conversation_id})
    context = asyncio.run(conversation_runs.lock_and_read(principal=principal, body=body, response_id="resp_2"))
    assert context.conversation_id == conversation_id
    assert owner(principal, conversation_id) == "resp_2"


def test_a_queued_background_run_keeps_its_lock(principal: Principal, caller: Caller, conversation_id: str) -> None:
    response_id = store_locked_response(principal, caller, conversation_id)
    with scope.team(principal.team_id):
        Response.objects.filter(pk=response_id).update(background=True, lease_until=None)
    with pytest.raises(ConversationLocked):
        acquire_lock(principal, conversation_id, "resp_2")
    expire_lease(principal, response_id)
    with pytest.raises(ConversationLocked):
        acquire_lock(principal, conversation_id, "resp_2")


def test_locks_of_responses_that_were_never_stored_are_deleted(principal: Principal, caller: Caller) -> None:
    names = [services.create_conversation(principal=principal, items=[], metadata={}).pk for _ in range(2)]
    acquire_lock(principal, names[0], "resp_never_made")
    response_id = store_locked_response(principal, caller, names[1])
    with scope.team(principal.team_id):
        ConversationLock.objects.update(until=now() - timedelta(days=1))
    assert conversation_lock.delete_stale_locks() >= 1
    assert [owner(principal, name) for name in names] == [None, response_id]


def test_a_resumed_run_appends_all_of_its_items(principal: Principal, caller: Caller, conversation_id: str) -> None:
    """The placements of the interrupted run are read from the rows, including fragments."""
    begun, _ = prepare(caller)
    response_id = store_locked_response(principal, caller, conversation_id)
    with scope.team(principal.team_id):
        response = Response.objects.get(pk=response_id)
        stored = Placement.objects.filter(owner=response_id).values_list("item_id", flat=True)
        append = ConversationAppend.of(response)
        assert append is not None
        assert [place["item_id"] for place in append.places] == list(stored)
    _, parts = append.at_end(response_id, is_failure=False, has_called_tools=False)
    end = ResponseUpdate(response_id=response_id, lease_token=1, status="completed", ended_at=begun.who.created_at)
    assert store.apply([Change(team_id=principal.team_id, update=end, extra=parts)]) == [None]
    with scope.team(principal.team_id):
        kept = Placement.objects.filter(owner=conversation_id, section=Section.ITEMS).order_by("position")
        assert [place.item_id for place in kept] == [place["item_id"] for place in append.places]
    assert owner(principal, conversation_id) is None


# -- the context -------------------------------------------------------------------------------------------------------


def message(text: str) -> Any:
    return from_wire({"type": "message", "role": "user", "content": text})


def compaction(principal: Principal, **more: Any) -> Compaction:
    sealed = TeamCipher(principal.team_id).encrypt_compaction(CompactionContent(summary="So far.", kept=()))
    return Compaction(encrypted_content=sealed, **more)


def add_items(principal: Principal, conversation_id: str, length: int) -> None:
    for start in range(0, length, 1000):
        texts = [str(number) for number in range(start, min(start + 1000, length))]
        services.append_items(
            principal=principal, conversation_id=conversation_id, items=[message(text) for text in texts]
        )


def read(principal: Principal, conversation_id: str, lock_for: str | None = None) -> RequestContext:
    body = parse_create({"model": "m", "input": "Hi", "conversation": conversation_id})
    return read_context(principal=principal, body=body, lock_for=lock_for)


def statements(work: Callable[[], object]) -> list[str]:
    """Return the executed statements, without those that begin or end transactions."""
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(CONTROL)]


@pytest.mark.slow
def test_reading_a_long_conversation_takes_no_more_statements(principal: Principal) -> None:
    counts = set()
    for length in (0, 10, 2000):
        name = services.create_conversation(principal=principal, items=[], metadata={}).pk
        add_items(principal, name, length)
        counts.add(len(statements(partial(read, principal, name, new_id("resp")))))
    assert counts == {4}


@pytest.mark.slow
def test_items_before_a_compaction_item_are_not_read(principal: Principal, conversation_id: str) -> None:
    add_items(principal, conversation_id, 3000)
    services.append_items(
        principal=principal, conversation_id=conversation_id, items=[compaction(principal), message("after")]
    )
    with scope.team(principal.team_id):
        found = conversation_selectors.context_items(team_id=principal.team_id, conversation_id=conversation_id)
        looked_at = rows_looked_at(principal, conversation_id)
    assert found is not None
    assert (len(found.texts), found.end) == (2, 3002)
    assert looked_at < 100


def rows_looked_at(principal: Principal, conversation_id: str) -> int:
    values = {"id": conversation_id, "team": principal.team_id, "end": None}
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + conversation_selectors._CONTEXT, values)
        ((plan,),) = cursor.fetchall()
    return rows_touched(plan[0]["Plan"])


def rows_touched(node: dict[str, Any]) -> int:
    """Return rows times loops, summed over the whole plan."""
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return int(own) + sum(rows_touched(child) for child in node.get("Plans", ()))


def test_a_fork_and_a_deletion_keep_the_start_of_the_context(principal: Principal, conversation_id: str) -> None:
    first, second = (compaction(principal, id=name) for name in ("cmp_1", "cmp_2"))
    items = [message("a"), first, message("b"), second, message("c")]
    services.append_items(principal=principal, conversation_id=conversation_id, items=items)
    fork = services.fork_conversation(
        team_id=principal.team_id, key_id=principal.key_id, conversation_id=conversation_id, after=None
    ).pk
    services.delete_item(
        team_id=principal.team_id,
        actor=principal.actor,
        conversation_id=conversation_id,
        item_id="cmp_2",
    )
    with scope.team(principal.team_id):
        contexts = [
            conversation_selectors.context_items(team_id=principal.team_id, conversation_id=name)
            for name in (conversation_id, fork)
        ]
    assert [len(found.texts) for found in contexts if found] == [3, 2]
