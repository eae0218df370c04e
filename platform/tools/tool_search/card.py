"""Cards of tool searches in the console, by the server or the client."""

from responses.tools import card
from responses.tools.card import Body, Card


def call(body: Body) -> Card:
    """Return the card of a `tool_search_call`."""
    return card.call_card("search", "tool search", *card.json("Arguments", _arguments(body)), note=_executed(body))


def found(body: Body) -> Card:
    """Return the card of a `tool_search_output`."""
    tools = card.tools(body["tools"]) or card.text("Tools", "(none)")
    return card.answer_card("tool search", *tools, note=f"returned, {_executed(body)}")


def _arguments(body: Body) -> object:
    query = body.get("query")
    return body["arguments"] if query is None else {"query": query, **body["arguments"]}


def _executed(body: Body) -> str:
    return "by the client" if body.get("execution") == "client" else "on the server"
