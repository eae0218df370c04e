"""Embeddings from the model that a team's vector stores use. Each upstream call gets a usage record."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.conf import settings

from core.errors import ApiError, Failure, ModelNotFound, RateLimited, UnsupportedValue, UpstreamError
from engine.compaction.token_estimate import tokens
from engine.turn import Usage
from providers.clients import UpstreamFailed
from providers.event_stream import read_document
from responses.models.vector_stores import VectorStore
from responses.runs import cost_bounds
from responses.runs.identity import UsageAccount
from responses.runs.usage_records import ExpectedTokens, RoutedCall
from tenants import directory
from tenants.directory import Route
from tenants.models import Team

Vector = list[float]
# Texts per upstream request. Embedding servers commonly limit the size of a batch.
_BATCH_SIZE = 64
# Added to the bytes of each text for the JSON around it. The sum is an upper limit of its tokens.
_BYTES_OF_JSON = 4
_NO_EMBEDDING_MODEL = (
    "No embedding model is configured for vector stores. An operator can set the team's embedding model in the admin, "
    "or EMBEDDING_MODEL in the server's configuration."
)
_MALFORMED_ANSWER = Failure.of(UpstreamError("The embedding model's server returned an invalid response."))


def model_for(store: VectorStore) -> str:
    """Return the embedding model of a store: the model of its vectors, or the team's model if it has no vectors yet.

    Raises UnsupportedValue if no model is configured.
    """
    return store.embedding_model or model_of_team(store.team_id)


def model_of_team(team_id: str) -> str:
    """Return the embedding model for new stores of a team. Raises UnsupportedValue if none is configured."""
    model = Team.objects.values_list("embedding_model", flat=True).get(pk=team_id) or settings.EMBEDDING_MODEL
    if not model:
        raise UnsupportedValue(_NO_EMBEDDING_MODEL)
    return model


async def embed(texts: Sequence[str], *, model: str, account: UsageAccount) -> list[Vector]:
    """Return a normalized vector for each text.

    Raises UpstreamFailed, or ModelNotFound if no upstream serves the model.
    """
    # Resolved once, so that all batches of a call go to the same upstream while it answers.
    route = directory.with_affinity(await _route(account, model), key="")
    vectors: list[Vector] = []
    for first in range(0, len(texts), _BATCH_SIZE):
        part = texts[first : first + _BATCH_SIZE]
        call = RoutedCall(
            principal=account.principal(),
            route=route,
            endpoint="embeddings",
            request_id=account.request_id,
            end_user=account.end_user,
            targets=route.targets if route.others else (),
            estimate_input=partial(tokens, *part),
        )
        try:
            size = sum(len(text.encode()) + _BYTES_OF_JSON for text in part)
            await call.reserve(
                partial(cost_bounds.of_text, size), ExpectedTokens(input=tokens(*part)), is_request=False
            )
        except ApiError as refused:
            failure = Failure.of(RateLimited(refused.message, headers=refused.headers))
            raise UpstreamFailed(failure) from refused
        vectors += await _call(call, part, account.object_id)
    return vectors


async def _route(account: UsageAccount, model: str) -> Route:
    """Return the route of the model without its fallback models: their vectors cannot be compared with its own."""
    route = await directory.aroute(account.principal(), model)
    if not route.others and route.model == model:
        return route
    targets = [target for target in route.targets if target.model == model]
    if not targets:
        raise ModelNotFound(model)
    return Route.through(targets)


async def _call(call: RoutedCall, texts: Sequence[str], object_id: str) -> list[Vector]:
    values = {"model": call.route.upstream_model, "input": list(texts), "encoding_format": "float"}
    answer: dict[str, Any] = {}

    def spent(_: str) -> tuple[str, Usage]:
        return object_id, call.input_usage(answer.get("usage"))

    async with call.recorded(spent):
        async with call.answered("/embeddings", values, read_document, begins_soon=True) as answer:
            pass
        return _vectors(answer, len(texts))


def _vectors(answer: dict[str, Any], count: int) -> list[Vector]:
    try:
        # Servers may return the vectors in any order; `index` gives the position of the text.
        entries = sorted(answer["data"], key=lambda entry: entry["index"])
        vectors = [_normalized([float(value) for value in entry["embedding"]]) for entry in entries]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UpstreamFailed(_MALFORMED_ANSWER) from error
    # One dimension per response: the columns and indexes depend on it.
    if len(vectors) != count or len({len(vector) for vector in vectors}) != 1:
        raise UpstreamFailed(_MALFORMED_ANSWER)
    return vectors


def _normalized(vector: Vector) -> Vector:
    # Vectors are stored with length 1. A zero or infinite vector has no direction and cannot be compared.
    length = math.hypot(*vector)
    if not math.isfinite(length) or not length:
        raise ValueError(length)
    return [value / length for value in vector]
