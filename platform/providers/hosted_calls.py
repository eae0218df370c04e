"""Conversion of hosted calls into function calls with outputs, the format that upstreams understand.

An item of a hosted call contains its result, so it becomes both a call and an output. Each tool defines its conversion
in its module `history`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conversations.items import HostedCall, StoredItem


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCall:
    """Call of a function, with JSON arguments. A call that has not been made yet has no output.

    `image` is the data URL of an image that the model sees after the output.
    """

    id: str
    name: str
    arguments: str
    output: str | None = None
    image: str | None = None


HISTORY: dict[type, Callable[[Any], PastCall | None]] = {}
"""Functions that convert items, by class of item. The tools are added when the application starts."""


def past_call(item: StoredItem) -> PastCall | None:
    """Return a hosted call or approval request as a function call; None for any other item.

    The result is also None for a search whose item has no results, because the client has omitted them or an upstream
    has searched: a model would conclude that the search found nothing.
    """
    convert = HISTORY.get(type(item))
    return convert(item) if convert is not None else None


def upstream_call_ids(items: Sequence[StoredItem]) -> dict[str, str]:
    """Return the ids that upstreams gave to hosted calls and approval requests, by the ids of their items."""
    return {
        item.id: item.upstream_call_id
        for item in items
        if isinstance(item, HostedCall) and item.id is not None and item.upstream_call_id
    }
