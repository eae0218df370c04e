"""Random operations on conversations, compared with plain lists: order, positions, and which items still exist."""

from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conversations import access, selectors, services
from conversations.items import InputItem, ItemReference, from_wire
from conversations.models import Conversation, Item, Placement
from core.errors import BadRequest
from core.http.pagination import Order, PageRequest
from tenants import directory, scope
from tenants.principal import Principal
from tests.support.api import Caller
from tests.support.sampling import SEED, sized

KINDS = ("create", "append", "append", "append", "refer", "delete item", "delete item", "fork", "delete")
# Indexes of conversations and items wrap around when there are fewer of them.
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), max_size=25)


def message(text: str) -> InputItem:
    part = {"type": "input_text", "text": text}
    return from_wire({"type": "message", "role": "user", "content": [part]})


@dataclass
class World:
    """The conversations of a team, with the expected item ids in order."""

    who: Principal
    lists: dict[str, list[str]] = field(default_factory=dict)

    def do(self, kind: str, which: int, where: int) -> None:
        """Do one step. A step without a target creates a conversation instead."""
        names = list(self.lists)
        one = names[which % len(names)] if names else ""
        items = self.lists.get(one, [])
        item = items[where % len(items)] if items else ""
        match kind:
            case "append" if one:
                self._append(one, [message(str(n)) for n in range(where % 3 + 1)])
            case "refer" if item:
                self._refer(names[where % len(names)], item)
            case "delete item" if item:
                services.delete_item(team_id=self.who.team_id, actor=self.who.actor, conversation_id=one, item_id=item)
                items.remove(item)
            case "fork" if item:
                fork = services.fork_conversation(
                    team_id=self.who.team_id, key_id=self.who.key_id, conversation_id=one, after=item
                )
                self.lists[fork.pk] = items[: items.index(item) + 1]
            case "delete" if one:
                self.delete(one)
            case _:
                made = services.create_conversation(principal=self.who, items=[], metadata={})
                self.lists[made.pk] = []
                self._append(made.pk, [message(kind)] * (which % 3))

    def _append(self, one: str, items: list[InputItem]) -> None:
        added = services.append_items(principal=self.who, conversation_id=one, items=items)
        self.lists[one] += [body["id"] for body in added]

    def _refer(self, one: str, item: str) -> None:
        try:
            self._append(one, [ItemReference(id=item)])
        except BadRequest:
            assert item in self.lists[one]
        else:
            assert self.lists[one].count(item) == 1

    def delete(self, one: str) -> None:
        """Delete a conversation."""
        services.delete_conversation(team_id=self.who.team_id, actor=self.who.actor, conversation_id=one)
        del self.lists[one]

    def check(self) -> None:
        """Assert that exactly the expected items are stored, in both orders."""
        for one, expected in self.lists.items():
            assert self._pages(one, Order.ASC) == expected
            assert self._pages(one, Order.DESC) == expected[::-1]
        with scope.team(self.who.team_id):
            kept = list(Item.objects.values_list("id", flat=True))
            assert sorted(kept) == sorted({item for items in self.lists.values() for item in items})
            assert Placement.objects.count() == sum(map(len, self.lists.values()))
            assert set(Conversation.objects.values_list("pk", flat=True)) == set(self.lists)

    def _pages(self, one: str, order: Order) -> list[str]:
        """Return the ids of all pages."""
        found: list[str] = []
        with scope.team(self.who.team_id):
            conversation = access.get_conversation(principal=self.who, conversation_id=one)
            while True:
                request = PageRequest(order=order, limit=2, after=found[-1] if found else None)
                page = selectors.list_items(conversation=conversation, page=request)
                found += [place.item.id for place in page.rows]
                if not page.has_more:
                    return found


@pytest.mark.slow
@given(steps=STEPS)
@hypothesis.seed(SEED)
@settings(max_examples=sized(8, full=200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_conversations_behave_like_plain_lists(
    database: None, caller: Caller, steps: list[tuple[str, int, int]]
) -> None:
    world = World(directory.principal(caller.secret))
    for step in steps:
        world.do(*step)
    world.check()
    for one in list(world.lists):
        world.delete(one)
    world.check()
