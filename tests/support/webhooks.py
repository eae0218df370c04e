"""A webhook receiver over loopback with scripted answers, which verifies signatures with the OpenAI SDK."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from openai import OpenAI

from core.egress import Egress
from core.egress_policy import AllowList
from deliveries.notifications.mail import MailChannel
from deliveries.outbox.delivery_worker import DeliveryWorker
from responses.webhooks import outbox, services
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from responses.webhooks.queue import WebhookChannel
from tenants import scope
from tests.support.aiohttp_server import serving
from tests.support.api import Caller
from tests.support.waiting import PATIENCE, eventually

_SECONDS = PATIENCE
ACTOR = "test"
EVERY_END = ("response.completed", "response.failed", "response.incomplete", "response.cancelled")


@dataclass(frozen=True)
class Delivered:
    """A received delivery."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Event id, by which receivers recognize duplicates."""
        return self.headers["webhook-id"]

    def unwrap(self, secret: str) -> Any:
        """Verify the signature with the SDK and return the event. Raises for another secret."""
        client = OpenAI(api_key="none", webhook_secret=secret)
        return client.webhooks.unwrap(self.body.decode(), self.headers)


@dataclass
class Receiver:
    """The server. `statuses` are the next answers, followed by 200. While `gate` is closed, requests wait."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    answer: bytes = b"thank you"
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[Delivered] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    here: int = 0
    most_here: int = 0

    @property
    def ids(self) -> list[str]:
        """Event ids in order of arrival."""
        return [one.id for one in self.requests]

    def wait_for(self, number: int, *, seconds: float = PATIENCE) -> list[Delivered]:
        """Wait for a number of requests and return all."""
        eventually(lambda: len(self.requests) >= number, seconds=seconds)
        return self.requests

    async def receive(self, request: web.Request) -> web.Response:
        """Handle a request."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Delivered(headers, await request.read()))
        self.here += 1
        self.most_here = max(self.most_here, self.here)
        try:
            await self._opened()
        finally:
            self.here -= 1
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, body=self.answer, headers=self.headers)

    async def _opened(self) -> None:

        while not self.gate.is_set():
            await asyncio.sleep(0.005)


@contextmanager
def running_receiver(*, closed: bool = False) -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    receiver = Receiver()
    if not closed:
        receiver.gate.set()
    app = web.Application()
    app.router.add_post("/v1/hook", receiver.receive)
    with serving(app) as root:
        receiver.url = f"{root}/hook"
        try:
            yield receiver
        finally:
            receiver.gate.set()


def add_endpoint(caller: Caller, url: str, *event_types: str) -> WebhookEndpoint:
    """Create an endpoint of the caller's team, without checking its URL."""
    made = services.create_endpoint(
        team_id=caller.team.pk,
        actor=ACTOR,
        name="test",
        url="https://example.com/",
        event_types=event_types or EVERY_END,
    )
    with scope.team(caller.team.pk):
        WebhookEndpoint.objects.filter(pk=made.pk).update(url=url)
    made.url = url
    return made


def endpoint_of(caller: Caller) -> WebhookEndpoint:
    """Return the only endpoint of the caller's team."""
    with scope.team(caller.team.pk):
        return WebhookEndpoint.objects.get()


def deliveries_of(caller: Caller) -> list[WebhookDelivery]:
    """Return the deliveries of the caller's team in order of creation."""
    with scope.team(caller.team.pk):
        return list(WebhookDelivery.objects.order_by("pk"))


@contextmanager
def delivering(*, allow: str = "127.0.0.1", slots: int = 50, poll_seconds: float = 1.0) -> Iterator[None]:
    """Run a delivery worker for webhooks and mails. `allow` is its EGRESS_ALLOW."""
    egress = Egress(allow=AllowList.parse([allow] if allow else []))
    worker = DeliveryWorker([WebhookChannel(slots=slots, egress=egress), MailChannel(slots=2)])
    worker.poll_seconds = poll_seconds
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[worker.run()], name="deliveries", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(_SECONDS)
        loop.close()


def announce(caller: Caller, event_type: str = "response.completed", object_id: str = "resp_1") -> int:
    """Write an event to the outbox and return the number of subscribed endpoints."""
    with scope.team(caller.team.pk):
        return outbox.announce(team_id=caller.team.pk, event_type=event_type, object_id=object_id)


def settled(caller: Caller, *states: str, seconds: float = PATIENCE) -> list[WebhookDelivery]:
    """Wait until the team's deliveries have these states and return them."""

    def look() -> list[WebhookDelivery]:
        found = deliveries_of(caller)
        return found if [one.state for one in found] == list(states) else []

    return eventually(look, seconds=seconds)


def change_deliveries(caller: Caller, **columns: Any) -> None:
    """Update columns of the team's deliveries."""
    with scope.team(caller.team.pk):
        WebhookDelivery.objects.update(**columns)


def change_endpoint(caller: Caller, **columns: Any) -> None:
    """Update columns of the team's endpoints."""
    with scope.team(caller.team.pk):
        WebhookEndpoint.objects.update(**columns)
