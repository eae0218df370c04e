"""Annotations that upstreams put to their text: those that clients know, in the form of the wire."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from conversations.items import OutputText

Body = dict[str, Any]


def citations(annotations: Iterable[Any]) -> list[Body]:
    """Those that clients know. The words count without them, so one of another kind does not end the turn."""
    known: list[Body] = []
    for annotation in annotations:
        try:
            part = OutputText.model_validate({"text": "", "annotations": [annotation]})
        except ValidationError:
            continue
        known += [citation.model_dump() for citation in part.annotations or ()]
    return known


def flat_citations(annotations: Iterable[Body]) -> list[Body]:
    """The same out of a chat completion, where what an annotation says lies one level deeper."""
    return citations({"type": one.get("type"), **(one.get(str(one.get("type"))) or {})} for one in annotations)
