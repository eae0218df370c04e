"""Annotations of upstreams, reduced to the types and fields of OpenAI's API."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from conversations.items import OutputText

Body = dict[str, Any]


def citations(annotations: Iterable[Any]) -> list[Body]:
    """Return the annotations that OpenAI's API defines; others are dropped, because the text is usable without them."""
    known: list[Body] = []
    for annotation in annotations:
        try:
            part = OutputText.model_validate({"text": "", "annotations": [annotation]})
        except ValidationError:
            continue
        known += [citation.model_dump() for citation in part.annotations or ()]
    return known


def flat_citations(annotations: Iterable[Body]) -> list[Body]:
    """Return the same for annotations of chat completions, which nest the fields under the type's name."""
    return citations({"type": one.get("type"), **(one.get(str(one.get("type"))) or {})} for one in annotations)
