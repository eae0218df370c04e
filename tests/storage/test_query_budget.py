"""The number of statements of a turn does not depend on the number of turns before it."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from conversations.items import AssistantMessage, InputMessage
from conversations.models import Item, Section
from core.http.pagination import PageRequest
from responses.models import Response, Status
from responses.requests.context import RequestContext, read_context
from responses.runs import store
from responses.runs.input_items import list_input_items
from responses.runs.rows import item_rows
from responses.runs.store import Change, ResponseUpdate
from responses.schema import parse_create
from tenants import directory, scope
from tests.support.api import Caller
from tests.support.stored_runs import prepare

pytestmark = pytest.mark.slow
TURNS = 200
CONTROL = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")


def add_turn(caller: Caller, number: int, previous: str | None) -> str:
    """Store a finished response with one input and one output message."""
    request: dict[str, Any] = {"input": f"question {number}"}
    if previous is not None:
        request["previous_response_id"] = previous
    begun, created = prepare(caller, **request)
    who = begun.who
    part = {"type": "output_text", "text": f"answer {number}", "annotations": [], "logprobs": []}
    body = {"id": f"msg_{who.response_id}", "type": "message", "status": "completed", "role": "assistant"}
    answer = item_rows({**body, "content": [part]}, who, Section.OUTPUT, 0)
    end = ResponseUpdate(
        response_id=who.response_id, lease_token=1, status=Status.COMPLETED.value, ended_at=who.created_at
    )
    assert store.apply([created]) == [None]
    assert store.apply([Change(team_id=who.team_id, insert=answer, update=end)]) == [None]
    return who.response_id


def chain(caller: Caller, length: int) -> list[str]:
    """Store a chain of this many responses and return their ids."""
    ids: list[str] = []
    for number in range(length):
        ids.append(add_turn(caller, number, ids[-1] if ids else None))
    return ids


def read(caller: Caller, previous: str | None) -> tuple[RequestContext, list[str]]:
    """Read the context of a new turn. Return it with the executed statements, except those of transactions."""
    request = {"model": "scripted", "input": "Hi"} | ({"previous_response_id": previous} if previous else {})
    principal = directory.principal(caller.secret)
    with CaptureQueriesContext(connection) as captured:
        context = read_context(principal=principal, body=parse_create(request))
    return context, [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(CONTROL)]


def test_turn_200_takes_at_most_two_statements_more_than_turn_1(database: None, caller: Caller) -> None:
    ids = chain(caller, TURNS)
    (first, at_first), (tenth, at_tenth), (last, at_last) = (read(caller, one) for one in (None, ids[8], ids[-1]))
    assert len(at_last) <= len(at_first) + 2
    assert len(at_last) == len(at_tenth)
    assert [len(context.items) for context in (first, tenth, last)] == [1, 19, 2 * TURNS + 1]


def test_a_chain_is_read_in_order(database: None, caller: Caller) -> None:
    context, _ = read(caller, chain(caller, 3)[-1])
    parts = [item.parts()[0] for item in context.items if isinstance(item, InputMessage | AssistantMessage)]
    assert [getattr(part, "text", None) for part in parts] == [
        *("question 0", "answer 0", "question 1", "answer 1", "question 2", "answer 2"),
        "Hi",
    ]


def test_a_chain_copies_no_items(database: None, caller: Caller) -> None:
    ids = chain(caller, 5)
    with scope.team(caller.team.pk):
        assert Item.objects.count() == 2 * len(ids)
        assert Response.objects.count() == len(ids)


def test_a_fork_shares_the_items_before_it(database: None, caller: Caller) -> None:
    ids = chain(caller, 2)
    fork = add_turn(caller, 7, ids[0])
    context, _ = read(caller, fork)
    assert len(context.items) == 5


def test_a_page_of_input_items_takes_one_statement(database: None, caller: Caller) -> None:
    ids = chain(caller, 30)
    with scope.team(caller.team.pk), CaptureQueriesContext(connection) as captured:
        response = Response.objects.get(pk=ids[-1])
        page = list_input_items(response=response, page=PageRequest(limit=5))
    assert [item["role"] for item in page.rows] == ["user", *(2 * ["assistant", "user"])]
    statements = [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(CONTROL)]
    assert sum("RECURSIVE" in sql for sql in statements) == 1


def test_reading_a_chain_costs_only_its_items(database: None, caller: Caller) -> None:
    """Other responses of the team are not read."""
    ids = chain(caller, 20)
    before = rows_looked_at(caller, ids[-1])
    chain(caller, 60)
    assert rows_looked_at(caller, ids[-1]) <= before * 1.5


def rows_looked_at(caller: Caller, previous: str) -> int:
    """Return the number of rows read by all nodes of the plan, with sequential scans disabled."""
    _, statements = read(caller, previous)
    (select,) = (sql for sql in statements if "RECURSIVE" in sql)
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        for way in ("seqscan", "hashjoin", "mergejoin"):
            cursor.execute(f"SET LOCAL enable_{way} = off")
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + select.replace("%", "%%"), [])
        ((plan,),) = cursor.fetchall()
    return rows_touched(plan[0]["Plan"])


def rows_touched(node: dict[str, Any]) -> int:
    """Return rows times loops, summed over the whole plan."""
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return int(own) + sum(rows_touched(child) for child in node.get("Plans", ()))
