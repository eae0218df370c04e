"""Check items before they enter a conversation.

A response will read them later, but only the client that adds them can still correct them.
"""

from collections.abc import Sequence
from typing import Any

from conversations.items import InputItem
from conversations.signals import items_offered
from responses.requests.encrypted_content import reject_foreign_content
from responses.schema.tools import added_tools
from responses.schema.updates import check_updates


def connect() -> None:
    """Connect the checks to the signal that conversations send before they add items."""
    items_offered.connect(_check, dispatch_uid="responses.requests.conversation_items")


def _check(*, items: Sequence[InputItem], team_id: str, **_: Any) -> None:
    reject_foreign_content(items, team_id=team_id, param="items")
    check_updates(items, param="items")
    added_tools(items, param="items")
