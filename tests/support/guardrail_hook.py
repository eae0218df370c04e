"""A guardrail hook over real HTTP with scripted answers, which records its requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.aiohttp_server import serving

FINE: dict[str, Any] = {"allow": True}
BAD: dict[str, Any] = {"allow": False, "categories": ["secrets"], "reason": "It names a secret."}


@dataclass
class Hook:
    """The server. `answers` are used one after the other, as status and body."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    def then(self, *bodies: Any, status: int = 200) -> None:
        """Add answers for the next calls."""
        self.answers += [(status, body) for body in bodies]

    async def answer(self, request: web.Request) -> web.Response:
        """Handle a call."""
        self.asked.append(await request.json())
        self.tokens.append(request.headers.get("authorization", ""))
        status, body = self.answers.pop(0)
        return web.json_response(body, status=status)


@contextmanager
def running_hook() -> Iterator[Hook]:
    """Run the server. All scripted answers must be used."""
    hook = Hook()
    app = web.Application()
    app.router.add_post("/v1/check", hook.answer)
    with serving(app) as url:
        hook.url = f"{url}/check"
        yield hook
    assert hook.answers == []
