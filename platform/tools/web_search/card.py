"""Card of web searches in the console."""

from responses.tools import card
from responses.tools.card import Body, Card


def call(body: Body) -> Card:
    """Return the card of a `web_search_call`."""
    action = body["action"]
    # `query` is the older form of `queries`.
    parts = [
        *card.lines("Queries", action.get("queries") or [action.get("query")]),
        *card.text("Page", action.get("url")),
        *card.text("Pattern", action.get("pattern")),
        *card.lines("Sources", [page.get("url") for page in action.get("sources") or ()]),
    ]
    return card.call_card("travel_explore", "web search", *parts, note=action["type"].replace("_", " "))
