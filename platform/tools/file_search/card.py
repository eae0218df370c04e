"""Card of file searches in the console."""

from responses.tools import card
from responses.tools.card import Body, Card


def call(body: Body) -> Card:
    """Return the card of a `file_search_call`."""
    parts = card.lines("Queries", body["queries"])
    for result in body.get("results") or ():
        name = result.get("filename") or result.get("file_id") or "file"
        score = "" if result.get("score") is None else f", score {result['score']:.2f}"
        parts += card.text("Passage", result.get("text") or "(no text)", f"{name}{score}")
    return card.call_card("search", "file search", *parts)
