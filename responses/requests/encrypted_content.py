"""Reasoning and compacted conversations on their way through clients: sealed for their team when they leave, checked
and opened when they come back."""

from collections.abc import Iterable
from dataclasses import asdict, fields

import orjson

from conversations.items import Compaction, InputItem, Reasoning
from kernel.crypto import InvalidToken, content_cipher
from responses.engine.chat.reasoning import ReasoningContent
from responses.engine.compaction.items import CompactionContent, unverified_content

_REASONING = "reasoning"
_COMPACTION = "compaction"


class TeamCipher:
    """The engine's `ReasoningCipher` for one team."""

    def __init__(self, team_id: str) -> None:
        self._team_id = team_id

    def encrypt(self, content: ReasoningContent) -> str:
        """The thought as `encrypted_content`."""
        held = {name: value for name, value in asdict(content).items() if value}
        return content_cipher().encrypt(orjson.dumps(held), team_id=self._team_id, purpose=_REASONING)

    def decrypt(self, token: str) -> ReasoningContent | None:
        """The thought, or None for what this server has not sealed for this team."""
        try:
            held = orjson.loads(content_cipher().decrypt(token, team_id=self._team_id, purpose=_REASONING))
        except InvalidToken:
            return None
        # Other versions of the platform may have sealed more, or less.
        return ReasoningContent(
            **{field.name: held[field.name] for field in fields(ReasoningContent) if field.name in held}
        )

    def encrypt_compaction(self, compacted: CompactionContent) -> str:
        """What a compaction item holds, as its `encrypted_content`."""
        held = {"summary": compacted.summary, "kept": [*compacted.kept]}
        return content_cipher().encrypt(orjson.dumps(held), team_id=self._team_id, purpose=_COMPACTION)

    def decrypt_compaction(self, token: str) -> CompactionContent | None:
        """What was compacted, or None for what this server has not sealed for this team."""
        try:
            held = orjson.loads(content_cipher().decrypt(token, team_id=self._team_id, purpose=_COMPACTION))
        except InvalidToken:
            return None
        return CompactionContent(summary=held["summary"], kept=held["kept"])


def reject_foreign_content(items: Iterable[InputItem], *, team_id: str, param: str = "input") -> None:
    """Refuse what comes sealed and was not sealed here for this team: no model could read it."""
    seal = TeamCipher(team_id)
    for item in items:
        match item:
            case Reasoning(encrypted_content=str(token)) if token and seal.decrypt(token) is None:
                raise unverified_content(item.id, param=param)
            case Compaction(encrypted_content=token) if seal.decrypt_compaction(token) is None:
                raise unverified_content(item.id, param=param)
