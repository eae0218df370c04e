"""The layer around the API that recognizes repeated POST requests by the header `Idempotency-Key`."""

import asyncio
import os
from collections.abc import Awaitable
from functools import partial
from typing import NamedTuple, Protocol

from core.db.db_threads import in_db_thread
from core.errors import InvalidValue, ServerError, shutting_down
from core.http.asgi import ABORT, WATCH, App, Message, Receive, Scope, Send, header, headers_joined, send_error
from core.http.endpoints import Endpoint, endpoint_in
from core.http.rendering import as_api_error
from core.http.sending import Client
from core.json.large_work import off_loop
from core.load.draining import draining
from idempotency import fingerprint, store
from idempotency.execution import Execute, HadEffects, executions
from idempotency.fingerprint import Fingerprint
from idempotency.models import MAX_KEY_LENGTH, MAX_PATH_LENGTH
from idempotency.recording import Recording
from idempotency.store import Claim, KeyedRequest
from tenants.authentication import authenticate
from tenants.models import AdminScope
from tenants.models import Scope as KeyScope
from tenants.principal import Principal

HEADER = b"idempotency-key"
IS_KEYED = "is_keyed"
"""Key of the ASGI scope that is true for a request with an idempotency key."""
_REPLAYED = (b"idempotent-replayed", b"true")


class Restore(Protocol):
    """Returns how to answer a request from what it has left behind, or None if it must be executed again."""

    async def __call__(self, principal: Principal, claimed: Claim, *, is_stream: bool) -> Execute | None: ...


class Restoration(NamedTuple):
    """Functions for requests that a dead process has begun to execute, or that have failed."""

    restore: Restore
    had_effects: HadEffects


class IdempotencyLayer:
    """ASGI app that executes each request with a key once. Other requests go to the app without any work."""

    def __init__(self, app: App, restoration: Restoration) -> None:
        self._app = app
        self._restoration = restoration

    # Not a coroutine, which would live as long as the stream.
    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["method"] == "POST" and any(name == HEADER for name, _ in scope["headers"]):
            return self._serve(scope, receive, send)
        return self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Skip the message with the body, which is in the scope already. The next message can only be a disconnect.
        await receive()
        client = Client(scope, receive)
        try:
            try:
                principal = await authenticate(header(scope, b"authorization"))
                _require_scope(principal, endpoint_in(scope))
                key = checked_key(headers_joined(scope, HEADER), param="Idempotency-Key")
                found = await _fingerprint(scope)
                request = KeyedRequest(
                    team_id=principal.team_id or principal.key_id,
                    api_key_id=principal.key_id,
                    method=scope["method"],
                    path=_checked_path(scope["path"]),
                    key=key,
                    fingerprint=found.digest,
                    request_id=scope["request_id"],
                    is_stored=found.is_stored,
                )
                recording, is_first = await recorded(
                    request, partial(self._execute, scope), self._restoration, principal, is_stream=found.is_stream
                )
            except Exception as error:
                client.release()
                await send_error(as_api_error(error), send)
                return
            # Free the body: an answer may take minutes.
            scope["body"] = b""
            if recording.status is None:
                client.release()
                await send_error(shutting_down() if draining.refuses else ServerError(), send)
                return
            await _send(recording, recording.status, send, is_first=is_first)
            if recording.is_lost:
                scope[ABORT]()
        except asyncio.CancelledError:
            if not client.is_gone:
                raise
            scope[ABORT]()
        finally:
            client.release()

    async def _execute(self, scope: Scope, send: Send) -> None:
        """Serve the request for a client that never disconnects."""
        own = {**scope, ABORT: _ignore, IS_KEYED: True}
        own.pop(WATCH, None)
        body: bytes | None = scope["body"]
        # The file is closed when the client has left.
        upload = own.get("upload")
        own_upload = None if upload is None else os.fdopen(os.dup(upload.fileno()), "rb")
        if own_upload is not None:
            own["upload"] = own_upload

        async def receive() -> Message:
            nonlocal body
            if body is None:
                await asyncio.Event().wait()
            read, body = body or b"", None
            return {"type": "http.request", "body": read, "more_body": False}

        try:
            await self._app(own, receive, send)
        finally:
            if own_upload is not None:
                own_upload.close()


async def recorded(
    request: KeyedRequest, execute: Execute, restoration: Restoration, principal: Principal, *, is_stream: bool
) -> tuple[Recording, bool]:
    """Return the answer of a request, and whether this call has executed it. The answer has begun, or is lost.

    Raises the error of a key that was used for another request, or whose answer was not stored.
    """
    while True:
        claimed = await in_db_thread(partial(store.claim, request))
        if isinstance(claimed, str):
            recording = executions().follow(request, claimed)
            if await recording.has_begun():
                return recording, False
            # Its process has died. Of those that wait, one takes over.
            continue
        restored: Execute | None = None
        if claimed.is_taken_over:
            restored = await restoration.restore(principal, claimed, is_stream=is_stream)
            if restored is None:
                claimed = await in_db_thread(partial(store.execute_again, claimed, request.request_id))
        recording = executions().execute(claimed, restored or execute, restoration.had_effects)
        await recording.has_begun()
        return recording, restored is None


def checked_key(key: str, *, param: str) -> str:
    """Return an idempotency key. Raises `InvalidValue` if it is empty, too long or not printable ASCII."""
    if not 0 < len(key) <= MAX_KEY_LENGTH or not (key.isascii() and key.isprintable()):
        raise InvalidValue(
            f"Invalid '{param}': expected 1 to {MAX_KEY_LENGTH} printable ASCII characters.", param=param
        )
    return key


def _checked_path(path: str) -> str:
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidValue(f"The path is longer than {MAX_PATH_LENGTH} characters.")
    return path


def _require_scope(principal: Principal, endpoint: Endpoint | None) -> None:
    # The answer may have been recorded when the key had more scopes.
    if endpoint is not None and endpoint.scope:
        kind = KeyScope if endpoint.scope in KeyScope else AdminScope
        principal.require(kind(endpoint.scope))


async def _fingerprint(scope: Scope) -> Fingerprint:
    content_type, query = header(scope, b"content-type"), scope["query_string"]
    if (upload := scope.get("upload")) is not None:
        return await asyncio.to_thread(fingerprint.of_upload, upload, content_type, query)
    return await off_loop(partial(fingerprint.of_body, scope["body"], content_type, query))


async def _send(recording: Recording, status: int, send: Send, *, is_first: bool) -> None:
    """Send an answer as it grows. Its end is missing if it is lost."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in recording.headers]
    added = [] if is_first else [_REPLAYED]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *added]})
    async for data in recording.body():
        await send({"type": "http.response.body", "body": data, "more_body": True})
    if recording.is_complete:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _ignore() -> None:
    """Take the place of the server's function that closes the connection of a client that does not read."""
