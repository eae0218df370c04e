"""Reasoning on its way through clients: sealed for their team when it leaves, checked and opened when it comes back."""

from collections.abc import Iterable
from dataclasses import asdict, fields

import orjson

from conversations.items import Compaction, InputItem, Reasoning
from kernel.crypto import InvalidToken, seals
from kernel.errors import InvalidEncryptedContent
from responses.engine.reasoning import Thought

_PURPOSE = "reasoning"


class TeamSeal:
    """The engine's `Seal` for one team."""

    def __init__(self, team_id: str) -> None:
        self._team_id = team_id

    def close(self, thought: Thought) -> str:
        """The thought as `encrypted_content`."""
        held = {name: value for name, value in asdict(thought).items() if value}
        return seals().seal(orjson.dumps(held), team_id=self._team_id, purpose=_PURPOSE)

    def open(self, token: str) -> Thought | None:
        """The thought, or None for what this server has not sealed for this team."""
        try:
            held = orjson.loads(seals().unseal(token, team_id=self._team_id, purpose=_PURPOSE))
        except InvalidToken:
            return None
        # Other versions of the platform may have sealed more, or less.
        return Thought(**{field.name: held[field.name] for field in fields(Thought) if field.name in held})


def refuse_foreign(items: Iterable[InputItem], *, team_id: str, param: str = "input") -> None:
    """Refuse what comes sealed and was not sealed here for this team: no model could read it."""
    for item in items:
        token = item.encrypted_content if isinstance(item, Reasoning | Compaction) else None
        if token and (isinstance(item, Compaction) or TeamSeal(team_id).open(token) is None):
            name = item.id or "without an id"
            message = f"The encrypted content for item {name} could not be verified."
            raise InvalidEncryptedContent(message, param=param)
