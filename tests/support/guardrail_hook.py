"""A guardrail's hook over real HTTP, which notes what it was asked and answers as a test has written down."""

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
    """The server; `answers` are taken one after the other, as a status with a body."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    answers: list[tuple[int, Any]] = field(default_factory=list)

    def then(self, *bodies: Any, status: int = 200) -> None:
        """Answer the next calls so."""
        self.answers += [(status, body) for body in bodies]

    async def answer(self, request: web.Request) -> web.Response:
        """Serve one call."""
        self.asked.append(await request.json())
        self.tokens.append(request.headers.get("authorization", ""))
        status, body = self.answers.pop(0)
        return web.json_response(body, status=status)


@contextmanager
def running_hook() -> Iterator[Hook]:
    """The running server; every answer that a test has written down was asked for."""
    hook = Hook()
    app = web.Application()
    app.router.add_post("/v1/check", hook.answer)
    with serving(app) as url:
        hook.url = f"{url}/check"
        yield hook
    assert hook.answers == []
