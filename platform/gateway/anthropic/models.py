"""Anthropic's form of the list of models, https://platform.claude.com/docs/en/api/models/list."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.http import QueryDict

from core.errors import BadRequest
from core.http.query import integer

_DEFAULT_LIMIT, _MOST = 20, 1000
Model = Mapping[str, Any]


def model_page(models: Sequence[Model], query: QueryDict) -> dict[str, Any]:
    """Return a page of models in Anthropic's form. `query` has the parameters `limit`, `after_id` and `before_id`.

    Raises `BadRequest`.
    """
    limit = integer(query, "limit", least=1, most=_MOST) or _DEFAULT_LIMIT
    after, before = query.get("after_id"), query.get("before_id")
    start, end = 0, len(models)
    if after:
        start = _position(models, after, name="after_id") + 1
    elif before:
        end = _position(models, before, name="before_id")
    page = models[max(start, end - limit) : end] if before and not after else models[start : start + limit]
    data = [public_model(model) for model in page]
    return {
        "data": data,
        "has_more": len(data) < end - start,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def public_model(model: Model) -> dict[str, Any]:
    """Convert a model from OpenAI's form to Anthropic's form."""
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        # Null is Anthropic's value for an unknown number.
        "max_input_tokens": None,
        "max_tokens": None,
        "capabilities": None,
    }


def _position(models: Sequence[Model], cursor: str, *, name: str) -> int:
    for position, model in enumerate(models):
        if model["id"] == cursor:
            return position
    raise BadRequest(f"There is no model '{cursor[:100]}'.", param=name)
