"""File searches as the model reads them in later turns."""

import orjson

from conversations.items import FileSearchCall
from engine.citation_markers import mark
from providers.hosted_calls import PastCall


def past_call(item: FileSearchCall) -> PastCall | None:
    """Return the search of an item; None without results."""
    if item.results is None:
        return None
    if item.status in ("failed", "incomplete"):
        output = "\n".join(["error: the search failed", *(result.text or "" for result in item.results)])
    else:
        output = "\n\n".join(
            f"{mark(item.id or '', number)} {result.filename or result.file_id}\n{result.text or ''}"
            for number, result in enumerate(item.results, start=1)
        )
    arguments = orjson.dumps({"queries": item.queries}).decode()
    return PastCall(
        id=item.id or "file_search", name="file_search", arguments=arguments, output=output or "Nothing was found."
    )
