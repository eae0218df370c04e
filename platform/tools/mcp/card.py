"""Cards of MCP items in the console."""

from responses.tools import card
from responses.tools.card import Body, Card, Part


def call(body: Body) -> Card:
    """Return the card of an `mcp_call`."""
    parts = [Part("json", "Arguments", body["arguments"]), *card.json("Output", body.get("output"))]
    return card.call_card(
        "lan", body["name"], *parts, *card.json("Error", body.get("error")), server=body["server_label"]
    )


def tool_list(body: Body) -> Card:
    """Return the card of an `mcp_list_tools`."""
    parts = [*card.tools(body["tools"]), *card.text("Error", body.get("error"))]
    return card.setting_card(
        body["server_label"], *parts, icon="lan", note="tools not listed" if body.get("error") else "tool list"
    )


def approval_request(body: Body) -> Card:
    """Return the card of an `mcp_approval_request`."""
    arguments = Part("json", "Arguments", body["arguments"])
    return card.call_card("front_hand", body["name"], arguments, note="needs approval", server=body["server_label"])


def approval(body: Body) -> Card:
    """Return the card of an `mcp_approval_response`."""
    icon, title = ("check", "Approved") if body["approve"] else ("block", "Denied")
    return card.answer_card(title, *card.text("Reason", body.get("reason")), icon=icon, note="")
