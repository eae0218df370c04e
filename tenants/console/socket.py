# mypy: allow-subclassing-any
"""WebSockets of the admin, for live pages.

Authentication uses the session cookie, as for pages; `server.asgi` checks the origin first. A socket would outlive a
sign-out in another tab. It therefore checks the session regularly and closes when the session, the account or its roles
have changed; the page then reconnects if it may.
"""

import asyncio
import logging
from importlib import import_module
from typing import Any

import orjson
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest, parse_cookie

from core.db.db_threads import in_db_thread
from core.http.asgi import Message, Receive, Scope, Send, header
from tenants.console.roles import EVERY_ROLE
from tenants.console.viewer import Viewer, lacks_second_factor, read_viewer

logger = logging.getLogger(__name__)
# The maximum time for which a socket stays open after a sign-out or the loss of a role.
CHECK_SECONDS = 10.0
DONE = 1000
BROKEN = 1011
# Private close codes: 4000 plus the corresponding HTTP status.
NOT_SIGNED_IN = 4401
NOT_ALLOWED = 4403
CHANGED = 4409


class AdminSocket(AsyncWebsocketConsumer):
    """Connection of one open page. Subclasses implement `watch`."""

    viewer: Viewer

    def __init__(self, *, check_seconds: float = CHECK_SECONDS) -> None:
        super().__init__()
        self._check_seconds = check_seconds
        self._tasks: list[asyncio.Task[None]] = []

    async def watch(self) -> int:
        """Send updates until there are no more, and return the close code. Cancelled when the page disconnects."""
        raise NotImplementedError

    async def send_message(self, message: dict[str, Any]) -> None:
        """Send a message as JSON."""
        await self.send(text_data=orjson.dumps(message).decode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection, and cancel its tasks however it ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def dispatch(self, message: Message) -> None:
        """Call the handler of a message directly."""
        # Channels' own method closes old database connections in a thread for each message; these consumers have none.
        await getattr(self, message["type"].replace(".", "_"))(message)

    async def websocket_disconnect(self, _: Message) -> None:
        """End the consumer when the page disconnects."""
        raise StopConsumer

    async def connect(self) -> None:
        """Accept a signed-in user who has a role."""
        self.viewer = await in_db_thread(self._who)
        if not may_watch(self.viewer):
            # Accepted first, because browsers hide the close code of a refused connection from the page.
            await self.accept()
            await self.close(code=_refusal(self.viewer))
            return
        await self.accept()
        loop = asyncio.get_running_loop()
        # Tasks, as `connect` must return before Channels handles the disconnect message.
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._check())]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore messages: pages act by HTTP requests."""

    def _who(self) -> Viewer:
        request = HttpRequest()
        cookies = parse_cookie(header(self.scope, b"cookie"))
        store = import_module(settings.SESSION_ENGINE).SessionStore
        request.session = store(cookies.get(settings.SESSION_COOKIE_NAME))
        request.user = get_user(request)
        return Viewer() if lacks_second_factor(request) else read_viewer(request.user)

    async def _watch(self) -> None:
        try:
            await self.close(code=await self.watch())
        # Catches every exception, because without a close code the page would wait instead of reconnecting.
        except Exception:
            logger.exception("serving a live page failed")
            await self.close(code=BROKEN)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(self._check_seconds)
            try:
                current = await in_db_thread(self._who)
            except Exception:
                # The database may be restarting; the next check decides.
                logger.warning("checking the session of a live page failed", exc_info=True)
                continue
            if current != self.viewer:
                await self.close(code=CHANGED if may_watch(current) else _refusal(current))
                return


def _refusal(viewer: Viewer) -> int:
    return NOT_ALLOWED if viewer.name else NOT_SIGNED_IN


def may_watch(viewer: Viewer) -> bool:
    """Return true for users with a role in any team or on the platform."""
    return viewer.may(EVERY_ROLE)
