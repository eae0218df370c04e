"""Vectors of texts, from the model that a team's vector stores are embedded with; each call has a row in the ledger."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from kernel.errors import Failure, UnsupportedValue
from responses.engine.chat.converter import read_usage
from responses.engine.compaction.token_estimate import tokens
from responses.engine.turn import Usage
from responses.models.vector_stores import VectorStore
from responses.providers.chat_completions import decode
from responses.providers.clients import UpstreamFailed, post, read_bytes
from responses.runs.ledger import RoutedCall
from tenants import directory
from tenants.models import Team
from tenants.principal import Principal

Vector = list[float]
_BATCH_SIZE = 64
_NO_EMBEDDING_MODEL = (
    "This server has no model that makes embeddings for vector stores: its operator has to name one as the team's "
    "embedding model in the admin, or as EMBEDDING_MODEL in the server's configuration."
)
_MALFORMED_ANSWER = Failure(
    code="server_error", message="The embedding model's server sent something that is no embedding."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAccount:
    """In whose name and for which object vectors are made: the rows of the ledger say so."""

    team_id: str
    key_id: str
    object_id: str
    request_id: str = ""

    def principal(self) -> Principal:
        """Not the key's own rights: which model embeds is the operator's decision, not the caller's."""
        return Principal(
            team_id=self.team_id,
            key_id=self.key_id,
            scopes=frozenset(),
            allowed_models=None,
            tools=frozenset(),
            expires_at=None,
            grace_seconds=None,
        )


def model_for(store: VectorStore) -> str:
    """The model of a store: that of its vectors, or the one that its team uses now. Raises the 400 of none."""
    return store.embedding_model or model_of_team(store.team_id)


def model_of_team(team_id: str) -> str:
    """The model that a team's new stores are embedded with; raises the 400 of none."""
    model = Team.objects.values_list("embedding_model", flat=True).get(pk=team_id) or settings.EMBEDDING_MODEL
    if not model:
        raise UnsupportedValue(_NO_EMBEDDING_MODEL)
    return model


async def embed(texts: Sequence[str], *, model: str, account: UsageAccount) -> list[Vector]:
    """A vector of length 1 for each text. Raises `UpstreamFailed`, or `ModelNotFound` where nothing answers for it."""
    route = await directory.aroute(account.principal(), model)
    vectors: list[Vector] = []
    for first in range(0, len(texts), _BATCH_SIZE):
        call = RoutedCall(
            principal=account.principal(), route=route, endpoint="embeddings", request_id=account.request_id
        )
        vectors += await _call(call, texts[first : first + _BATCH_SIZE], account.object_id)
    return vectors


async def _call(call: RoutedCall, texts: Sequence[str], object_id: str) -> list[Vector]:
    values = {"model": call.route.upstream_model, "input": list(texts), "encoding_format": "float"}
    outcome, usage = "failed", Usage(estimated=True)
    try:
        async with post(call.route.upstream, "/embeddings", values) as response:
            answer = decode(b"".join([piece async for piece in read_bytes(response)]))
        vectors = _vectors(answer, len(texts))
        outcome, usage = "stop", _usage(answer, texts)
    except asyncio.CancelledError:
        outcome, usage = "interrupted", Usage(input_tokens=tokens(*texts), estimated=True)
        raise
    finally:
        await asyncio.shield(call.write(object_id=object_id, outcome=outcome, usage=usage))
    return vectors


def _usage(answer: dict[str, Any], texts: Sequence[str]) -> Usage:
    said = answer.get("usage")
    if isinstance(said, dict) and said:
        return read_usage({"prompt_tokens": said.get("total_tokens"), **said})
    return Usage(input_tokens=tokens(*texts), estimated=True)


def _vectors(answer: dict[str, Any], count: int) -> list[Vector]:
    """The vectors in the order of their texts."""
    try:
        entries = sorted(answer["data"], key=lambda entry: entry["index"])
        vectors = [_normalized([float(value) for value in entry["embedding"]]) for entry in entries]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UpstreamFailed(_MALFORMED_ANSWER) from error
    if len(vectors) != count or len({len(vector) for vector in vectors}) != 1:
        raise UpstreamFailed(_MALFORMED_ANSWER)
    return vectors


def _normalized(vector: Vector) -> Vector:
    length = math.hypot(*vector)
    if not math.isfinite(length) or not length:
        raise ValueError(length)
    return [value / length for value in vector]
