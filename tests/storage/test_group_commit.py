"""Group commit: many changes in few transactions, each with its own outcome."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection
from typing_extensions import override

from core.db.db_threads import in_db_thread
from core.db.group_commit import ChangeTooLarge, GroupCommit
from core.db.statement_pipeline import ConnectionLost, Statement
from core.json.large_work import LARGE_BYTES, note_size
from engine.events.compression import compress
from responses.models import EventBatch, Response
from responses.runs import store
from responses.runs.rows import Row, new_row
from responses.runs.store import Change, LeaseLost, MarkedWriter, ResponseUpdate, submit_new, writer
from tenants import scope
from tests.support.api import Caller, MakeCaller
from tests.support.stored_runs import Begun, abegin, begin, prepare, response_of

pytestmark = pytest.mark.usefixtures("database")
MANY = 60


def events(begun: Begun, number: int) -> Row:
    """Return one batch of the response's log."""
    who = begun.who
    return new_row(
        EventBatch,
        team_id=who.team_id,
        response_id=who.response_id,
        first_sequence=number,
        last_sequence=number,
        created_at=who.created_at,
        compressed=compress(b"event %d" % number),
    )


def change(begun: Begun, number: int, *, token: int | None = None) -> Change:
    """Return a change that appends to the log, and with a token also updates the response."""
    who = begun.who
    update = None
    if token is not None:
        update = ResponseUpdate(response_id=who.response_id, lease_token=token, status="in_progress", turns=number)
    return Change(team_id=who.team_id, insert=[events(begun, number)], update=update)


def stored_batches(*begun: Begun) -> list[tuple[int, int]]:
    """Return number and transaction of the batches after the opening, by number."""
    with scope.team(*{one.who.team_id for one in begun}), connection.cursor() as cursor:
        ids = [one.who.response_id for one in begun]
        cursor.execute(
            "SELECT first_sequence, xmin::text::bigint FROM responses_eventbatch "
            "WHERE response_id = ANY (%s) AND first_sequence > 0 ORDER BY first_sequence, response_id",
            [ids],
        )
        return list(cursor.fetchall())


async def outcomes_of(*futures: "asyncio.Future[None]") -> list[Any]:
    """Return the outcome of each change."""
    return await asyncio.gather(*futures, return_exceptions=True)


async def test_concurrent_changes_are_committed_together_in_order(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    numbers = range(2, 2 + MANY)
    assert await outcomes_of(*(writer.submit(change(begun, number)) for number in numbers)) == [None] * MANY
    found = await in_db_thread(lambda: stored_batches(begun))
    transactions = [transaction for _, transaction in found]
    assert ([number for number, _ in found], transactions) == (list(numbers), sorted(transactions))
    assert len({*transactions}) < MANY / 4


async def test_an_invalid_change_does_not_fail_others_in_its_group(database: None, caller: Caller) -> None:
    begun = await abegin(caller)
    taken = change(begun, 0)  # the opening is already stored
    outcomes = await outcomes_of(*(writer.submit(one) for one in (change(begun, 2), taken, change(begun, 3))))
    assert (outcomes[0], outcomes[2]) == (None, None)
    assert isinstance(outcomes[1], IntegrityError)
    assert [number for number, _ in await in_db_thread(lambda: stored_batches(begun))] == [2, 3]


def test_changes_of_several_teams_share_a_transaction(database: None, make_caller: MakeCaller) -> None:
    begun = [begin(make_caller()) for _ in range(3)]
    assert store.apply([change(one, 2) for one in begun]) == [None] * 3
    found = stored_batches(*begun)
    assert ([number for number, _ in found], len({transaction for _, transaction in found})) == ([2] * 3, 1)


def test_a_change_cannot_write_into_another_team(database: None, make_caller: MakeCaller) -> None:
    mine, theirs = begin(make_caller()), begin(make_caller())
    with pytest.raises(ProgrammingError, match="row-level security"):
        store.apply([Change(team_id=mine.who.team_id, insert=[events(theirs, 2)])])
    assert stored_batches(theirs) == []


async def test_a_lost_lease_writes_nothing_but_its_group_is_committed(database: None, caller: Caller) -> None:
    lost, held = await abegin(caller), await abegin(caller)
    outcomes = await in_db_thread(lambda: store.apply([change(lost, 2, token=7), change(held, 2, token=1)]))
    assert [type(outcome) for outcome in outcomes] == [LeaseLost, type(None)]
    assert await in_db_thread(lambda: (len(stored_batches(lost)), len(stored_batches(held)))) == (0, 1)
    rows = await in_db_thread(lambda: [response_of(lost), response_of(held)])
    assert [row.turns for row in rows] == [0, 2]


async def test_a_deleted_response_accepts_no_writes(database: None, caller: Caller) -> None:
    begun = await abegin(caller)

    def delete() -> None:
        with scope.team(begun.who.team_id):
            response_of(begun).delete()

    await in_db_thread(delete)
    (outcome,) = await outcomes_of(writer.submit(change(begun, 2, token=1)))
    assert isinstance(outcome, LeaseLost)
    assert await in_db_thread(lambda: stored_batches(begun)) == []


async def test_a_lost_connection_is_replaced(database: None, caller: Caller) -> None:
    begun, made = await abegin(caller), list[MarkedWriter]()

    def committer() -> MarkedWriter:
        made.append(MarkedWriter())
        return made[-1]

    commit = GroupCommit(committer)
    await commit.submit(change(begun, 2))
    await in_db_thread(lambda: terminate(made[0].name))
    await commit.submit(change(begun, 3))
    assert [number for number, _ in await in_db_thread(lambda: stored_batches(begun))] == [2, 3]


@pytest.mark.parametrize("waits_forever", [False, True])
async def test_an_unavailable_database_is_retried_up_to_the_limit(*, waits_forever: bool) -> None:
    tries = list[int]()

    def apply(changes: Sequence[str]) -> list[Exception | None]:
        tries.append(len(changes))
        if len(tries) < 10:
            raise ConnectionLost
        return [None] * len(changes)

    commit = GroupCommit(lambda: Scripted(apply), pauses=(0.001, 0.001))
    if waits_forever:
        commit.wait_forever()
    (outcome,) = await outcomes_of(commit.submit("a"))
    assert (type(outcome), len(tries)) == ((type(None), 10) if waits_forever else (ConnectionLost, 3))


def terminate(name: str) -> None:
    """Terminate a connection as a restart of the database does; a role may do so to its own connections."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s", [name]
        )
        assert cursor.fetchone() == (True,)


async def test_a_large_change_is_committed_in_its_own_group(database: None, caller: Caller) -> None:
    begun, (_, created) = await abegin(caller), prepare(caller)
    locked, done = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold_lock() -> None:
        with scope.team(begun.who.team_id):
            Response.objects.select_for_update().get(pk=begun.who.response_id)
            loop.call_soon_threadsafe(locked.set)
            done.wait()

    holder = asyncio.ensure_future(in_db_thread(hold_lock))
    await locked.wait()
    waiting = writer.submit(change(begun, 2, token=1))
    note_size(LARGE_BYTES)
    await submit_new(created)
    assert not waiting.done()
    done.set()
    await asyncio.gather(holder, waiting)


@pytest.mark.parametrize("is_worker", [True, False])
async def test_a_group_that_exceeds_the_statement_timeout_is_divided(
    database: None, caller: Caller, *, is_worker: bool
) -> None:
    runs = [await abegin(caller) for _ in range(16)]
    commit = GroupCommit(lambda: LimitedWriter(rows=4))
    if is_worker:
        commit.wait_forever()
    outcomes = await outcomes_of(*(commit.submit(change(run, 2)) for run in runs))
    assert outcomes == [None] * 16
    assert len(await in_db_thread(lambda: stored_batches(*runs))) == 16


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_change_that_exceeds_the_statement_timeout_fails_alone(database: None, caller: Caller) -> None:
    large, *runs = [await abegin(caller) for _ in range(4)]
    commit = GroupCommit(lambda: LimitedWriter(rows=4))
    commit.wait_forever()
    too_large = Change(team_id=large.who.team_id, insert=[events(large, number) for number in range(2, 8)])
    outcomes = await outcomes_of(commit.submit(too_large), *(commit.submit(change(run, 2)) for run in runs))
    assert [type(outcome) for outcome in outcomes] == [ChangeTooLarge, type(None), type(None), type(None)]
    assert len(await in_db_thread(lambda: stored_batches(large, *runs))) == 3
    assert not isinstance(outcomes[0], OperationalError)


class LimitedWriter(MarkedWriter):
    """A writer whose transactions exceed the statement timeout if they have more than a number of rows."""

    def __init__(self, *, rows: int) -> None:
        super().__init__()
        self._rows = rows

    @override
    def start(self, changes: Sequence[Change], *_: Any, **__: Any) -> bool:
        """Leave all groups to `apply`."""
        return False

    @override
    async def apply(self, changes: Sequence[Change]) -> list[Exception | None]:
        """Exceed the statement timeout in groups with more rows."""
        if sum(len(change.insert) for change in changes) > self._rows:
            await self._run([(_TOO_LONG, ()), (_SLEEP, ())])
        return await super().apply(changes)


_TOO_LONG = Statement("SELECT set_config('statement_timeout', '50ms', true)")
_SLEEP = Statement("SELECT pg_sleep(10)")


# -- without a database ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scripted:
    """A committer that calls a function; its connection breaks before it has committed anything."""

    called: Callable[[Sequence[str]], Sequence[Exception | None]]

    def start(self, *_: Any, **__: Any) -> bool:
        """Leave all groups to `apply`."""
        return False

    async def apply(self, changes: Sequence[str]) -> Sequence[Exception | None]:
        """Return what the function returns."""
        return self.called(changes)

    async def recall(self, changes: Sequence[str]) -> None:
        """Report that nothing was committed."""


async def test_a_failed_group_is_repeated_change_by_change_in_order() -> None:
    seen: list[list[str]] = []

    def apply(changes: Any) -> list[None]:
        seen.append(list(changes))
        if "bad" in changes:
            message = "bad"
            raise ValueError(message)
        return [None] * len(changes)

    commit: GroupCommit[str] = GroupCommit(lambda: Scripted(apply))
    outcomes = await outcomes_of(*(commit.submit(name) for name in ("a", "bad", "b")))
    assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, type(None)]
    assert [name for batch in seen if len(batch) == 1 for name in batch] == ["a", "bad", "b"]


async def test_each_change_gets_its_own_outcome() -> None:
    def apply(changes: Any) -> list[Exception | None]:
        return [KeyError(name) if name.isupper() else None for name in changes]

    commit: GroupCommit[str] = GroupCommit(lambda: Scripted(apply))
    outcomes = await outcomes_of(*(commit.submit(name) for name in "aBcD"))
    assert [str(outcome) for outcome in outcomes] == ["None", "'B'", "None", "'D'"]


async def test_changes_whose_commit_is_interrupted_count_as_lost_and_the_next_is_committed() -> None:
    interruptions = [asyncio.CancelledError()]

    def apply(changes: Sequence[str]) -> list[Exception | None]:
        if interruptions:
            raise interruptions.pop()
        return [None] * len(changes)

    commit: GroupCommit[str] = GroupCommit(lambda: Scripted(apply))
    outcomes = await outcomes_of(commit.submit("a"), commit.submit("b"))
    assert [type(outcome) for outcome in outcomes] == [ConnectionLost, type(None)]


async def test_a_cancelled_caller_does_not_affect_others() -> None:
    may_commit = asyncio.Event()

    class Slow(Scripted):
        @override
        async def apply(self, changes: Sequence[str]) -> Sequence[Exception | None]:
            await may_commit.wait()
            return await super().apply(changes)

    commit: GroupCommit[str] = GroupCommit(lambda: Slow(lambda changes: [None] * len(changes)))
    gone, waiting = commit.submit("a"), commit.submit("b")

    async def wait() -> None:
        await gone

    caller = asyncio.create_task(wait())
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_commit.set()
    await waiting
    await asyncio.wait([caller])
    assert (caller.cancelled(), gone.exception()) == (True, None)
