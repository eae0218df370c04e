"""Encrypted content: reasoning and compactions that clients keep between requests.

The content is encrypted for the team when it is sent to the client, and checked and decrypted when it is sent back.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, fields

import orjson

from conversations.items import Compaction, InputItem, Reasoning
from core.crypto import InvalidToken, content_cipher
from engine.compaction.items import CompactionContent, unverified_content
from engine.converter.segments import ReasoningContent

_REASONING = "reasoning"
_COMPACTION = "compaction"
ITEM_TYPES = (_REASONING, _COMPACTION)
"""Types of items that have encrypted content, which are also the purposes of the ciphers."""


class TeamCipher:
    """Implementation of the engine's ciphers for one team."""

    def __init__(self, team_id: str) -> None:
        self._team_id = team_id

    def encrypt(self, content: ReasoningContent) -> str:
        """Return the `encrypted_content` of reasoning."""
        held = {name: value for name, value in asdict(content).items() if value}
        return content_cipher().encrypt(orjson.dumps(held), team_id=self._team_id, purpose=_REASONING)

    def decrypt(self, token: str) -> ReasoningContent | None:
        """Return the reasoning, or None if this server did not encrypt it for this team."""
        try:
            held = orjson.loads(content_cipher().decrypt(token, team_id=self._team_id, purpose=_REASONING))
        except InvalidToken:
            return None
        # Another version of the platform may have encrypted more or fewer fields.
        return ReasoningContent(
            **{field.name: held[field.name] for field in fields(ReasoningContent) if field.name in held}
        )

    def encrypt_compaction(self, compacted: CompactionContent) -> str:
        """Return the `encrypted_content` of a compaction item."""
        held = {"summary": compacted.summary, "kept": [*compacted.kept]}
        return content_cipher().encrypt(orjson.dumps(held), team_id=self._team_id, purpose=_COMPACTION)

    def decrypt_compaction(self, token: str) -> CompactionContent | None:
        """Return the content of a compaction item, or None if this server did not encrypt it for this team."""
        try:
            held = orjson.loads(content_cipher().decrypt(token, team_id=self._team_id, purpose=_COMPACTION))
        except InvalidToken:
            return None
        return CompactionContent(summary=held["summary"], kept=held["kept"])


def rotate(token: str, *, team_id: str) -> str | None:
    """Encrypt the content of a stored item again; return None if the first key has encrypted it.

    Raises `InvalidToken` if this server did not encrypt it for this team.
    """
    for purpose in ITEM_TYPES:
        with suppress(InvalidToken):
            return content_cipher().rotate(token, team_id=team_id, purpose=purpose)
    raise InvalidToken


def reject_foreign_content(items: Iterable[InputItem], *, team_id: str, param: str = "input") -> None:
    """Raise a 400 for encrypted content that this server did not encrypt for this team."""
    # Rejected now, because no model could read it, and the client would not learn why context is missing.
    cipher = TeamCipher(team_id)
    for item in items:
        match item:
            case Reasoning(encrypted_content=str(token)) if token and cipher.decrypt(token) is None:
                raise unverified_content(item.id, param=param)
            case Compaction(encrypted_content=token) if cipher.decrypt_compaction(token) is None:
                raise unverified_content(item.id, param=param)
