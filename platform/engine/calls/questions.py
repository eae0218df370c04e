"""Questions of tools: a tool may ask a person for values, or for a visit to a page, before it finishes a call."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question of a tool. With a `url`, the person visits a page. Otherwise, the answer matches the `schema`."""

    message: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""

    @property
    def host(self) -> str:
        """Host and port of the page, in ASCII, so that no letter looks like another one."""
        parts = urlsplit(self.url)
        name = (parts.hostname or "").encode("idna").decode()
        return f"{name}:{parts.port}" if parts.port else name

    def shown(self) -> dict[str, Any]:
        """Return the question as in the API."""
        if self.url:
            return {"mode": "url", "message": self.message, "url": self.url}
        return {"mode": "form", "message": self.message, "requested_schema": {**self.schema}}

    def stored(self) -> dict[str, Any]:
        """Return the question as JSON. The schema is text, because the database does not keep the order of fields."""
        return {"message": self.message, "schema": orjson.dumps({**self.schema}).decode(), "url": self.url}

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "Question":
        """Return the question from JSON that contains what `stored` returned."""
        return cls(message=stored["message"], schema=orjson.loads(stored["schema"]), url=stored["url"])
