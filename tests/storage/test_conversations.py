"""Conversations: the number of statements does not depend on their length, and concurrent writes are safe."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections
from django.test.utils import CaptureQueriesContext

from conversations import access, selectors, services
from conversations.items import AssistantMessage, InputItem, ItemReference, from_wire
from conversations.models import Conversation, Item, Placement, Section
from core.errors import ApiError
from core.http.pagination import Order, PageRequest
from tenants import directory, scope
from tenants.principal import Principal
from tests.support.api import Caller, MakeCaller

CONTROL = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")
LENGTHS = (10, 2_000)


def message(text: str) -> InputItem:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = from_wire({"type": "message", "role": "assistant", "content": [part]})
    assert isinstance(item, AssistantMessage)
    return item


def begin(principal: Principal, length: int) -> str:
    """Create a conversation with this many items and return its id."""
    made = services.create_conversation(principal=principal, items=[], metadata={})
    for start in range(0, length, 500):
        add(principal, made.pk, *map(str, range(start, min(start + 500, length))))
    return made.pk


def add(principal: Principal, conversation_id: str, *texts: str) -> list[dict[str, Any]]:
    return services.append_items(
        principal=principal, conversation_id=conversation_id, items=[message(text) for text in texts]
    )


def statements(work: Callable[[], object]) -> list[str]:
    """Return the executed statements, without those that begin or end transactions."""
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(CONTROL)]


@pytest.fixture
def principal(database: None, caller: Caller) -> Principal:
    """The principal that writes."""
    return directory.principal(caller.secret)


def page(principal: Principal, conversation_id: str, cursor: str | None) -> list[Placement]:
    with scope.team(principal.team_id):
        conversation = access.get_conversation(principal=principal, conversation_id=conversation_id)
        request = PageRequest(order=Order.ASC, limit=5, after=cursor)
        return list(selectors.list_items(conversation=conversation, page=request).rows)


def middle_item_id(principal: Principal, conversation_id: str) -> str:
    """Return the id of an item in the middle."""
    with scope.team(principal.team_id):
        places = Placement.objects.filter(owner=conversation_id).order_by("position").select_related("item")
        return places[places.count() // 2].item.id


OPERATIONS: dict[str, Callable[[Principal, str, str], object]] = {
    "a page": lambda who, one, _: page(who, one, None),
    "a page behind an item": page,
    "an append": lambda who, one, _: add(who, one, "more", "and more"),
    "a fork": lambda who, one, item: services.fork_conversation(
        team_id=who.team_id, key_id=who.key_id, conversation_id=one, after=item
    ),
    "an item's end": lambda who, one, item: services.delete_item(
        team_id=who.team_id, actor=who.actor, conversation_id=one, item_id=item
    ),
    "its end": lambda who, one, _: services.delete_conversation(
        team_id=who.team_id, actor=who.actor, conversation_id=one
    ),
}
MOST = 12


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_appending_to_a_long_conversation_takes_no_more_statements(principal: Principal, name: str) -> None:
    counts = []
    for length in LENGTHS:
        one = begin(principal, length)
        item = middle_item_id(principal, one)
        counts.append(len(statements(partial(OPERATIONS[name], principal, one, item))))
    assert counts[0] == counts[1] <= MOST


def test_a_new_conversation_with_20_items_takes_as_many_statements_as_with_one(principal: Principal) -> None:
    def create(count: int) -> None:
        items = [message(str(number)) for number in range(count)]
        services.create_conversation(principal=principal, items=items, metadata={})

    assert len(statements(lambda: create(20))) == len(statements(lambda: create(1))) <= MOST


# -- concurrent writes -------------------------------------------------------------------------------------------------


def run_concurrently(*works: Callable[[], Any]) -> list[Any]:
    """Run the calls concurrently. Return each result or API error."""

    def run(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ApiError as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(works)) as threads:
        return [future.result() for future in [threads.submit(run, work) for work in works]]


def test_concurrent_appends_lose_and_duplicate_nothing(principal: Principal) -> None:
    one = begin(principal, 0)
    run_concurrently(*(partial(add, principal, one, f"{n}a", f"{n}b") for n in range(8)))
    with scope.team(principal.team_id):
        places = Placement.objects.filter(owner=one).order_by("position").select_related("item")
        texts = [place.item.body["content"][0]["text"] for place in places]
        assert [place.position for place in places] == list(range(16))
    assert [(first[:-1], first[-1], second[-1]) for first, second in zip(texts[::2], texts[1::2], strict=True)] == [
        (second[:-1], "a", "b") for second in texts[1::2]
    ]


@pytest.mark.parametrize("attempt", range(5))
def test_an_item_deleted_while_it_is_referenced_is_kept_or_not_found(principal: Principal, attempt: int) -> None:
    one, other = begin(principal, 1), begin(principal, 0)
    item = middle_item_id(principal, one)
    gone, shared = run_concurrently(
        lambda: services.delete_item(
            team_id=principal.team_id, actor=principal.actor, conversation_id=one, item_id=item
        ),
        lambda: services.append_items(principal=principal, conversation_id=other, items=[ItemReference(id=item)]),
    )
    assert isinstance(gone, Conversation)
    with scope.team(principal.team_id):
        is_placed = Placement.objects.filter(owner=other).exists()
        assert Item.objects.filter(id=item).exists() is is_placed is not isinstance(shared, ApiError)


def test_an_append_after_the_deletion_finds_no_conversation(principal: Principal) -> None:
    one = begin(principal, 3)
    _, *added = run_concurrently(
        lambda: services.delete_conversation(team_id=principal.team_id, actor=principal.actor, conversation_id=one),
        *(lambda: add(principal, one, "late") for _ in range(4)),
    )
    assert all(isinstance(answer, list) or answer.status == 404 for answer in added)
    with scope.team(principal.team_id):
        assert not Placement.objects.filter(owner=one).exists()
        assert not Item.objects.exists()


# -- constraints -------------------------------------------------------------------------------------------------------


def test_two_items_never_have_the_same_position(principal: Principal) -> None:
    one = begin(principal, 1)
    with scope.team(principal.team_id):
        item = Item.objects.get()
    place = Placement(team_id=principal.team_id, owner=one, section=Section.ITEMS, position=0, item=item)
    with pytest.raises(IntegrityError, match="placement_position_once"), scope.team(principal.team_id):
        place.save()


def test_a_conversation_of_another_team_cannot_be_locked(principal: Principal, make_caller: MakeCaller) -> None:
    one, outsider = begin(principal, 1), directory.principal(make_caller().secret)
    with pytest.raises(ApiError) as caught:
        add(outsider, one, "Hi")
    assert caught.value.status == 404
