"""Web searches as the model reads them in later turns."""

from typing import Any

import orjson

from conversations.items import OpenPage, WebSearch, WebSearchCall
from engine.citation_markers import mark
from providers.hosted_calls import PastCall


def past_call(item: WebSearchCall) -> PastCall | None:
    """Return the step of an item; None without results."""
    if item.results is None:
        return None
    arguments: dict[str, Any]
    match item.action:
        case WebSearch(query=query, queries=queries):
            name, arguments = "web_search", {"queries": queries or [query or ""]}
        case OpenPage(url=url):
            name, arguments = "open_page", {"url": url}
        case step:
            name, arguments = "find_in_page", {"url": step.url, "pattern": step.pattern}
    if item.status in ("failed", "incomplete"):
        output = "\n".join(["error: the request failed", *(result.text or "" for result in item.results)])
    else:
        output = "\n\n".join(
            f"{mark(item.id or '', number)} {result.title or ''}\n{result.url}\n{result.text or ''}"
            for number, result in enumerate(item.results, start=1)
        )
    return PastCall(
        id=item.id or "web_search",
        name=name,
        arguments=orjson.dumps(arguments).decode(),
        output=output or "Nothing was found.",
    )
