"""The queue of batches: teams take turns, regardless of the number of their batches."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from core.clock import now
from gateway.batches import queue
from responses.lifecycle import dead_processes
from responses.models.batches import OPEN_BATCHES, Batch, BatchLine, BatchStatus, LineState
from tenants import scope
from tests.support.api import Caller, MakeCaller


@pytest.fixture
def rolled_back(database: None) -> Iterator[None]:
    """A transaction that sees every team and is rolled back."""
    with transaction.atomic(), scope.every_team():
        # Hide the rows of other tests.
        Batch.objects.filter(status__in=OPEN_BATCHES).update(
            status=BatchStatus.VALIDATING, lease_until=now() + timedelta(hours=1)
        )
        yield
        transaction.set_rollback(True)


def create_batches(caller: Caller, number: int, **columns: Any) -> list[str]:
    """Create batches of this caller, oldest first."""
    at = now()
    rows = [
        Batch(
            team=caller.team,
            api_key=caller.key,
            created_at=at + timedelta(seconds=index),
            expires_at=at + timedelta(days=1),
            endpoint="/v1/responses",
            completion_window="24h",
            input_file_id="file_1",
            **columns,
        )
        for index in range(number)
    ]
    return [batch.pk for batch in Batch.objects.bulk_create(rows)]


def create_started(caller: Caller, number: int) -> list[str]:
    """Create batches in progress, each with one line."""
    made = create_batches(caller, number, status=BatchStatus.IN_PROGRESS, total=1)
    lines = [BatchLine(team=caller.team, batch_id=pk, position=0, custom_id="a", body="{}") for pk in made]
    BatchLine.objects.bulk_create(lines)
    return made


def claim_all(most: int) -> set[str]:
    """Return the batches that a worker claims now."""
    return {job.id for job in queue.claim_batches(limit=most, own=[])}


def test_teams_take_turns_with_their_oldest_batch_first(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    first, second = create_batches(many, 5), create_batches(few, 1)
    assert claim_all(2) == {first[0], second[0]}


def test_a_team_with_active_batches_waits_for_other_teams(rolled_back: None, make_caller: MakeCaller) -> None:
    many, late = make_caller(), make_caller()
    first = create_batches(many, 5)
    assert claim_all(2) == set(first[:2])
    second = create_batches(late, 2)
    assert claim_all(1) == {second[0]}
    assert claim_all(1) == {second[1]}
    assert claim_all(9) == set(first[2:])


@pytest.mark.slow
def test_many_batches_of_one_team_do_not_delay_batches_of_others(rolled_back: None, make_caller: MakeCaller) -> None:
    many, late = make_caller(), make_caller()
    create_started(many, queue._MAX_BATCHES + 1)
    (second,) = create_started(late, 1)
    assert second in {line.batch_id for line in queue.claim_lines(slots=4, own=[])}


def test_batches_with_failing_files_leave_workers_free(rolled_back: None, make_caller: MakeCaller) -> None:
    failing, other = make_caller(), make_caller()
    first = create_batches(failing, 2)
    [job, again] = queue.claim_batches(limit=2, own=[])
    assert {job.id, again.id} == set(first)
    for _ in range(2):
        [*waiting] = create_batches(other, 1)
        for claimed in (job, again):
            queue.postpone(claimed, reason="No space left on device")
        assert claim_all(2) == set(waiting)


def test_pauses_grow_with_each_failure_up_to_ten_minutes(rolled_back: None, make_caller: MakeCaller) -> None:
    caller = make_caller()
    [batch_id] = create_batches(caller, 1)
    pauses = []
    for _ in range(10):
        Batch.objects.filter(pk=batch_id).update(files_retry_at=None)
        [job] = queue.claim_batches(limit=1, own=[])
        before = now()
        queue.postpone(job, reason="No space left on device")
        retry_at = Batch.objects.get(pk=batch_id).files_retry_at
        assert retry_at is not None
        pauses.append(round((retry_at - before).total_seconds()))
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]


def abandon(batch_id: str, *, attempts: int, lines: int, caller: Caller, first: int = 1) -> None:
    """Add lines whose workers have died this many times."""
    columns = {"state": LineState.RUNNING, "attempt": attempts, "lease_until": now() - timedelta(minutes=5)}
    BatchLine.objects.bulk_create(
        BatchLine(team=caller.team, batch_id=batch_id, position=first + n, custom_id=f"{n}", body="{}", **columns)
        for n in range(lines)
    )


def test_a_worker_runs_only_one_suspected_line(rolled_back: None, make_caller: MakeCaller) -> None:
    caller, other = make_caller(), make_caller()
    (batch_id,), (other_id,) = create_started(caller, 1), create_started(other, 1)
    abandon(batch_id, attempts=3, lines=4, caller=caller)
    abandon(other_id, attempts=3, lines=4, caller=other)
    first = queue.claim_lines(slots=20, own=[])
    # One suspected line, and both lines that no worker has started.
    assert sorted(line.attempt for line in first) == [1, 1, 4]
    assert queue.claim_lines(slots=20, own=first) == []
    # Another worker takes a suspected line as well, as it would not crash together with the first worker.
    assert [line.attempt for line in queue.claim_lines(slots=20, own=[])] == [4]
    left = [line for line in first if not line.is_suspect]
    assert [line.attempt for line in queue.claim_lines(slots=20, own=left)] == [4]


def test_lines_of_a_dead_process_are_found_without_a_join(rolled_back: None, make_caller: MakeCaller) -> None:
    """Statistics are old while a batch of 50,000 lines is new, so that a join may compare every pair of them."""
    (batch_id,) = create_started(make_caller(), 1)
    with scope.every_team():
        lines = BatchLine.objects.filter(batch_id=batch_id)
        lines.update(state=LineState.RUNNING, lease_owner="worker:1:deadbeef", lease_until=now() + timedelta(minutes=1))
        with CaptureQueriesContext(connection) as queries:
            assert dead_processes.release(["deadbeef"]) >= lines.count()
        assert not lines.filter(lease_until__gt=now()).exists()
        updates = [query["sql"] for query in queries if query["sql"].startswith('UPDATE "responses_batchline"')]
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {updates[0]}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Join" not in plan, plan
    assert "Nested Loop" not in plan, plan


def test_lines_of_few_crashed_workers_run_concurrently(rolled_back: None, make_caller: MakeCaller) -> None:
    caller = make_caller()
    (batch_id,) = create_started(caller, 1)
    abandon(batch_id, attempts=2, lines=4, caller=caller)
    assert sorted(line.attempt for line in queue.claim_lines(slots=20, own=[])) == [1, 3, 3, 3, 3]


def test_a_line_that_crashed_five_workers_fails_although_another_is_suspected(
    rolled_back: None, make_caller: MakeCaller
) -> None:
    caller = make_caller()
    (batch_id,) = create_started(caller, 1)
    abandon(batch_id, attempts=4, lines=1, caller=caller)
    suspects = queue.claim_lines(slots=20, own=[])
    abandon(batch_id, attempts=5, lines=1, caller=caller, first=9)
    assert queue.claim_lines(slots=20, own=suspects) == []
    failed = BatchLine.objects.get(batch=batch_id, position=9)
    assert (failed.state, failed.status_code, failed.body) == (LineState.FAILED, 500, "")
    assert "stopped unexpectedly" in failed.answer
