"""Responses to compare a response with: earlier good runs of the same conversation, prompt, input or model."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTextTransform, KeyTransform

from responses.models import Response, Status

_LONGEST = timedelta(days=30)
# Responses that are looked through. Without a limit, a rare prompt would read all responses of a team.
_MAX_CANDIDATES = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A response, and what it has in common with the compared one."""

    response: Response
    reason: str


def suggestions(response: Response, rows: QuerySet[Response], *, can_read: bool) -> list[Suggestion]:
    """Return completed responses among `rows`, best first, each once."""
    found: dict[str, Suggestion] = {}
    good = rows.filter(team_id=response.team_id).exclude(pk=response.pk)
    for reason, key in _candidates(response, good, can_read=can_read):
        if key is not None and key not in found:
            shown = good.filter(pk=key, status=Status.COMPLETED).select_related("api_key").first()
            if shown is not None:
                found[key] = Suggestion(response=shown, reason=reason)
    return list(found.values())


def _candidates(response: Response, rows: QuerySet[Any], *, can_read: bool) -> Iterator[tuple[str, str | None]]:
    since = response.created_at - _LONGEST
    yield "Previous response of the chain", response.previous_response_id
    if response.conversation_id:
        same = rows.filter(conversation_id=response.conversation_id, created_at__lt=response.created_at)
        latest = same.order_by("-created_at").values_list("pk", "status")[:_MAX_CANDIDATES]
        yield "Previous good run of the conversation", next((key for key, status in latest if _is_good(status)), None)
    earlier = rows.filter(created_at__gte=since, created_at__lte=response.created_at).order_by("-created_at")
    later = rows.filter(created_at__gte=response.created_at, created_at__lte=response.created_at + _LONGEST)
    columns = ("pk", "status", "model", "input_preview")
    before = list(earlier.values_list(*columns)[:_MAX_CANDIDATES])
    prompt = (response.parameters.get("prompt") or {}).get("id")
    if prompt:
        of_prompt = KeyTextTransform("id", KeyTransform("prompt", "parameters"))
        named = earlier.annotate(prompt_id=of_prompt).values_list("pk", "status", "prompt_id")[:_MAX_CANDIDATES]
        same_prompt = (key for key, status, name in named if _is_good(status) and name == prompt)
        yield "Previous good run of the prompt", next(same_prompt, None)
    after = list(later.order_by("created_at").values_list(*columns)[:_MAX_CANDIDATES])
    if can_read and response.input_preview:
        same_input = (row[0] for row in [*before, *after] if _is_good(row[1]) and row[3] == response.input_preview)
        yield "Good run with the same input", next(same_input, None)
    yield "Previous good run of the model", _of_model(before, response.model)
    if _of_model(before, response.model) is None:
        # A model that the team rarely uses: the index on models finds it.
        rare = earlier.filter(model=response.model).values_list(*columns)[:_MAX_CANDIDATES]
        yield "Previous good run of the model", _of_model(list(rare), response.model)
    yield "Next good run of the model", _of_model(after, response.model)


def _is_good(status: str) -> bool:
    return status == Status.COMPLETED.value


def _of_model(rows: list[tuple[Any, ...]], model: str) -> str | None:
    return next((str(row[0]) for row in rows if _is_good(row[1]) and row[2] == model), None)
