"""The door for files: one enters with the principal that asks for it, or not at all.

An unknown id, another team's id and that of a file which has expired get the same answer.
"""

from conversations import files
from conversations.models import File
from tenants.principal import Principal


def get_file(*, principal: Principal, file_id: str) -> File:
    """A file of the caller's team, or the 404 of an unknown id."""
    file = files.find_file(team_id=principal.team_id, file_id=file_id)
    if file is None:
        raise files.unknown_file(file_id)
    return file
