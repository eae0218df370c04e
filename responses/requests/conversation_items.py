"""Check items before they are added to a conversation.

The items are checked now and not when a response reads them, because only the client that adds them can correct them.
"""

from collections.abc import Sequence

from conversations.items import InputItem
from responses.requests.encrypted_content import reject_foreign_content
from responses.schema.options import check_updates
from responses.schema.tools import added_tools


def check(items: Sequence[InputItem], team_id: str) -> None:
    """Raise the API error of the first item that no response of the team could read."""
    reject_foreign_content(items, team_id=team_id, param="items")
    check_updates(items, param="items")
    added_tools(items, param="items")
