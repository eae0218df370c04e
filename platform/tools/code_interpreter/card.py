"""Card of the code interpreter in the console."""

from responses.tools import card
from responses.tools.card import Body, Card


def call(body: Body) -> Card:
    """Return the card of a `code_interpreter_call`."""
    parts = card.text("Code", body.get("code"))
    for output in body.get("outputs") or ():
        parts += card.text("Logs", output["logs"]) if output["type"] == "logs" else card.image(output["url"])
    return card.call_card("code", "code interpreter", *parts)
