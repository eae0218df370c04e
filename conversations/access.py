"""Access to conversations and files of the caller's team.

An unknown id, another team's id and the id of an expired file all raise the same `NotFound`, so that a response never
reveals that an id exists elsewhere.
"""

from conversations import selectors
from conversations.files import storage
from conversations.models import Conversation, File, Placement
from tenants.principal import Principal


def get_conversation(*, principal: Principal, conversation_id: str, lock: bool = False) -> Conversation:
    """Return a conversation of the caller's team. Raises `NotFound`. Callers that change its items pass `lock`."""
    # Filtered by team in addition to row-level security, because the caller's scope may include other teams.
    team_id = principal.team_id
    found = selectors.find_conversation(team_id=team_id, conversation_id=conversation_id, lock=lock)
    if found is None:
        raise selectors.unknown_conversation(conversation_id)
    return found


def get_placement(*, conversation: Conversation, item_id: str) -> Placement:
    """Return the placement of an item in a conversation; raises `NotFound`."""
    found = selectors.find_placement(conversation=conversation, item_id=item_id)
    if found is None:
        raise selectors.unknown_item(item_id)
    return found


def get_file(*, principal: Principal, file_id: str) -> File:
    """Return a file of the caller's team; raises `NotFound`."""
    file = storage.find_file(team_id=principal.team_id, file_id=file_id)
    if file is None:
        raise storage.unknown_file(file_id)
    return file
