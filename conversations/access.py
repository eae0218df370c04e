"""The door for conversations and files: an object enters with the principal that asks for it, or not at all.

An unknown id, another team's id and that of a file which has expired get the same answer.
"""

from conversations import selectors
from conversations.files import storage
from conversations.models import Conversation, File, Placement
from tenants.principal import Principal


def get_conversation(*, principal: Principal, conversation_id: str, lock: bool = False) -> Conversation:
    """A conversation of the caller's team, or the 404 of an unknown id; `lock` is for those who change its list."""
    team_id = principal.team_id
    found = selectors.find_conversation(team_id=team_id, conversation_id=conversation_id, lock=lock)
    if found is None:
        raise selectors.unknown_conversation(conversation_id)
    return found


def get_placement(*, conversation: Conversation, item_id: str) -> Placement:
    """Where an item stands in a conversation that has come in through this door, or the 404 of an unknown id."""
    found = selectors.find_placement(conversation=conversation, item_id=item_id)
    if found is None:
        raise selectors.unknown_item(item_id)
    return found


def get_file(*, principal: Principal, file_id: str) -> File:
    """A file of the caller's team, or the 404 of an unknown id."""
    file = storage.find_file(team_id=principal.team_id, file_id=file_id)
    if file is None:
        raise storage.unknown_file(file_id)
    return file
