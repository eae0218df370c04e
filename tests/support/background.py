"""Waiting for background responses."""

from typing import Any

from tests.support.api import Api
from tests.support.waiting import PATIENCE, eventually

RUNNING = {"queued", "in_progress"}


def ended(api: Api, response_id: str, *, seconds: float = PATIENCE) -> dict[str, Any]:
    """Wait until the response has ended and return it."""
    eventually(lambda: api.retrieve(response_id)["status"] not in RUNNING, seconds=seconds)
    return api.retrieve(response_id)


def text_of(response: dict[str, Any]) -> list[str]:
    """Return the text of each message of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return ["".join(part["text"] for part in item["content"]) for item in messages]
