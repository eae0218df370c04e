"""Input items of chains and conversations, compared with the complete list."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from conversations.models import Item, Placement, Section
from core.errors import NotFound
from core.http.pagination import Order, PageRequest
from responses.models import Mode, Response
from responses.runs.input_items import list_input_items
from tenants import scope
from tests.support.api import Caller

pytestmark = pytest.mark.usefixtures("database")


@dataclass
class History:
    """A growing chain, and the items from which its last response was generated, oldest first."""

    caller: Caller
    last: Response | None = None
    names: list[str] = field(default_factory=list)
    _written: list[Item] = field(default_factory=list)
    _output: list[str] = field(default_factory=list)

    def item(self, name: str = "") -> Item:
        name = name or f"msg_{len(self._written)}"
        made = Item(team=self.caller.team, id=name, type="message", body={"id": name, "type": "message"})
        self._written.append(made)
        return made

    def place(self, owner: str, section: Section, items: Sequence[Item], hidden: frozenset[int] = frozenset()) -> None:
        Item.objects.bulk_create(item for item in items if item._state.adding)
        Placement.objects.bulk_create(
            Placement(
                team=self.caller.team,
                owner=owner,
                section=section,
                position=position,
                item=item,
                in_context=position not in hidden,
            )
            for position, item in enumerate(items)
        )

    def converse(self, count: int, *, end: int) -> str:
        """Create a conversation of which the next response reads the items before `end`."""
        items = [self.item() for _ in range(count)]
        self.place(name := f"conv_{count}", Section.ITEMS, items, hidden := frozenset({2}))
        self.names += [item.id for position, item in enumerate(items[:end]) if position not in hidden]
        return name

    def respond(self, inputs: Sequence[Item], outputs: Sequence[Item], **values: Any) -> None:
        """Add a response to the chain. The last output is not part of the context of the next one."""
        made = Response.objects.create(
            team=self.caller.team,
            api_key=self.caller.key,
            mode=Mode.JSON,
            previous_response_id=self.last.pk if self.last else None,
            **values,
        )
        self.place(made.pk, Section.INPUT, inputs)
        self.place(made.pk, Section.OUTPUT, outputs, frozenset({len(outputs) - 1}))
        self.names += [*self._output, *(item.id for item in inputs)]
        self._output = [item.id for item in outputs[:-1]]
        self.last = made

    def grow(self, chance: random.Random, turns: int) -> None:
        """Add responses whose inputs repeat, share and resend earlier items."""
        for _ in range(turns):
            again = chance.choice(self._written)
            inputs = [self.item() for _ in range(chance.randint(0, 3))]
            if chance.random() < 0.4:
                inputs.append(again if chance.random() < 0.5 else self.item(again.id))
            self.respond(inputs, [self.item() for _ in range(chance.randint(1, 4))])

    def expected(self) -> list[str]:
        """Return each id once, at its last position."""
        return [name for position, name in enumerate(self.names) if name not in self.names[position + 1 :]]


@pytest.fixture
def history(caller: Caller) -> Iterator[History]:
    # Conversations have fixed names, so nothing is kept.
    with scope.team(caller.team.pk):
        yield History(caller)
        transaction.set_rollback(True)


def page(history: History, **request: Any) -> tuple[list[str], bool]:
    assert history.last is not None
    found = list_input_items(response=history.last, page=PageRequest(**request))
    return [item["id"] for item in found.rows], found.has_more


@pytest.mark.slow
@pytest.mark.parametrize("in_conversation", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_pages_equal_slices_of_the_whole_list(history: History, seed: int, in_conversation: bool) -> None:
    chance = random.Random(seed)
    values = {"history_id": history.converse(9, end=7), "history_end": 7} if in_conversation else {}
    history.respond([history.item()], [history.item(), history.item()], **values)
    history.grow(chance, 12)
    for _ in range(40):
        order = chance.choice([*Order])
        whole = history.expected() if order is Order.ASC else history.expected()[::-1]
        limit, (start, stop) = chance.randint(1, 7), sorted(chance.sample(range(len(whole)), 2))
        assert page(history, order=order, limit=limit) == (whole[:limit], len(whole) > limit)
        after = whole[start + 1 :]
        assert page(history, order=order, limit=limit, after=whole[start]) == (after[:limit], len(after) > limit)
        assert page(history, order=order, limit=limit, before=whole[stop]) == (
            whole[max(0, stop - limit) : stop],
            stop > limit,
        )
        between = whole[start + 1 : stop]
        assert page(history, order=order, limit=limit, after=whole[start], before=whole[stop]) == (
            between[:limit],
            len(between) > limit,
        )
        assert page(history, order=order, limit=limit, after=whole[stop], before=whole[start]) == ([], False)


@pytest.mark.slow
def test_a_long_chain_is_read_across_the_blocks_of_its_links(history: History) -> None:
    for _ in range(150):
        history.respond([history.item()], [history.item(), history.item()])
    whole = history.expected()
    assert page(history, order=Order.ASC, limit=3) == (whole[:3], True)
    assert page(history, order=Order.ASC, limit=100, after=whole[120]) == (whole[121:221], True)
    assert page(history, order=Order.DESC, limit=100, after=whole[50]) == (whole[:50][::-1], False)


def test_a_chain_ends_at_a_deleted_response(history: History) -> None:
    history.respond([history.item()], [history.item()])
    assert history.last is not None
    first = history.last
    history.names.clear()
    history.respond([history.item()], [history.item()])
    first.delete()
    assert page(history) == (history.expected(), False)


@pytest.mark.parametrize("end", ["after", "before"])
def test_an_item_outside_of_the_input_is_rejected_as_a_cursor(history: History, end: str) -> None:
    """Neither an item of the response's own output nor one of another chain."""
    history.respond([history.item()], [own := history.item()])
    other = history.item()
    history.place("resp_other", Section.INPUT, [other])
    for name in (own.id, other.id, "msg_none"):
        with pytest.raises(NotFound):
            page(history, **{end: name})


@pytest.mark.slow
@pytest.mark.parametrize("turns", [10, 300])
def test_the_first_page_reads_a_bounded_number_of_rows(history: History, turns: int) -> None:
    for _ in range(turns):
        history.respond([history.item()], [history.item()])
    with CaptureQueriesContext(connection) as captured:
        page(history, limit=5)
    touched = 0
    with connection.cursor() as cursor:
        for way in ("seqscan", "hashjoin", "mergejoin"):
            cursor.execute(f"SET LOCAL enable_{way} = off")
        for query in captured.captured_queries:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"].replace("%", "%%"), [])
            touched += sum(_rows(plan[0]["Plan"]) for (plan,) in cursor.fetchall())
    assert touched < 1_000


def _rows(node: dict[str, Any]) -> int:
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return int(own) + sum(_rows(child) for child in node.get("Plans", ()))
