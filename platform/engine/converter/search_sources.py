"""Sources of a search by a chat-completions upstream, as citations of the text.

Perplexity and xAI list the sources beside the choices, and the text refers to them by number: "Cats purr.[1]".
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.converter.base import url_citation
from engine.events.types import Body

# A number that is the text of a link does not count: the address of the source is in the text already.
_MARKER = re.compile(r"\[(\d{1,3})\](?!\()")


@dataclass(frozen=True, slots=True)
class Source:
    """Page that was found. The title is empty if the upstream reports none."""

    url: str
    title: str = ""


def read_sources(chunk: dict[str, Any]) -> list[Source]:
    """Return the sources of a chunk or completion in their order; empty if it has none."""
    found = [source for source in map(_source, _entries(chunk.get("search_results"))) if source is not None]
    titles = {source.url: source.title for source in found}
    listed = [source for source in map(_source, _entries(chunk.get("citations"))) if source is not None]
    # The numbers in the text count the citations.
    return [Source(source.url, source.title or titles.get(source.url, "")) for source in listed] or found


def _entries(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else ()


def _source(entry: object) -> Source | None:
    if isinstance(entry, str) and entry:
        return Source(entry)
    if isinstance(entry, dict) and isinstance(url := entry.get("url"), str) and url:
        title = entry.get("title")
        return Source(url, title if isinstance(title, str) else "")
    return None


def cited(text: str, sources: Sequence[Source], *, known: Sequence[Body]) -> list[Body]:
    """Return a citation for each reference in the text, and one at its start for each source without a reference.

    Sources of `known` citations are omitted: gateways send them in both forms.
    """
    urls = {citation.get("url") for citation in known}
    places: dict[int, list[tuple[int, int]]] = {}
    for marker in _MARKER.finditer(text):
        places.setdefault(int(marker[1]), []).append(marker.span())
    return [
        url_citation(source.url, {"title": source.title, "start_index": start, "end_index": end})
        for number, source in enumerate(sources, 1)
        if source.url not in urls
        for start, end in places.get(number, [(0, 0)])
    ]
