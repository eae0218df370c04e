"""Conversations through the API, written and read as texts."""

from typing import Any

from tests.support.api import Api, ok


def user_message(text: str, **more: Any) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text, **more}


def begin(api: Api, *texts: str, **metadata: str) -> str:
    """Create a conversation with a user message per text and return its id."""
    made = ok(api.post("/conversations", {"items": [user_message(text) for text in texts[:20]], "metadata": metadata}))
    conversation_id: str = made["id"]
    for start in range(20, len(texts), 20):
        add(api, conversation_id, *texts[start : start + 20])
    return conversation_id


def add(api: Api, conversation_id: str, *texts: str) -> list[str]:
    """Add a user message per text and return the ids of the items."""
    made = ok(api.post(f"/conversations/{conversation_id}/items", {"items": [user_message(text) for text in texts]}))
    return [item["id"] for item in made["data"]]


def items(api: Api, conversation_id: str, **query: Any) -> list[dict[str, Any]]:
    """Return a page of items, by default oldest first."""
    asked = {"order": "asc", "limit": 100, **query}
    found: list[dict[str, Any]] = ok(api.get(f"/conversations/{conversation_id}/items", **asked))["data"]
    return found


def words(api: Api, conversation_id: str, **query: Any) -> list[str]:
    """Return the texts of a page of items."""
    return [item["content"][0]["text"] for item in items(api, conversation_id, **query)]


def ids(api: Api, conversation_id: str, **query: Any) -> list[str]:
    """Return the ids of a page of items."""
    return [item["id"] for item in items(api, conversation_id, **query)]
