"""A real receiver of webhooks over loopback, which answers as a test tells it and verifies with the openai SDK."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from openai import OpenAI

from kernel.egress import Egress
from kernel.egress_policy import AllowList
from responses.webhooks import outbox, services
from responses.webhooks.delivery_worker import DeliveryWorker
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from responses.webhooks.services import Actor, NewSecret
from tenants import scope
from tests.support.aiohttp_server import serving
from tests.support.api import Caller
from tests.support.waiting import eventually

_SECONDS = 10.0
ACTOR = Actor(name="test")
EVERY_END = ("response.completed", "response.failed", "response.incomplete", "response.cancelled")


@dataclass(frozen=True)
class Delivered:
    """A request that came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """What receivers tell repetitions by."""
        return self.headers["webhook-id"]

    def unwrap(self, secret: str) -> Any:
        """The event as the SDK reads it; raises where the signature is not of this secret."""
        client = OpenAI(api_key="none", webhook_secret=secret)
        return client.webhooks.unwrap(self.body.decode(), self.headers)


@dataclass
class Receiver:
    """A server. `statuses` are its next answers, then 200; while `gate` is closed it answers nobody."""

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
        """The ids that came, in order."""
        return [one.id for one in self.requests]

    def wait_for(self, number: int, *, seconds: float = 10.0) -> list[Delivered]:
        """The requests, once there are so many."""
        eventually(lambda: len(self.requests) >= number, seconds=seconds)
        return self.requests

    async def receive(self, request: web.Request) -> web.Response:
        """Answer one request."""
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
    """A receiver on a port of its own."""
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


def add_endpoint(caller: Caller, url: str, *event_types: str) -> NewSecret:
    """An endpoint of the caller's team; what the API would refuse about its URL does not matter here."""
    made = services.create_endpoint(
        team_id=caller.team.pk,
        actor=ACTOR,
        name="test",
        url="https://example.com/",
        event_types=event_types or EVERY_END,
    )
    with scope.team(caller.team.pk):
        WebhookEndpoint.objects.filter(pk=made.endpoint.pk).update(url=url)
    made.endpoint.url = url
    return made


def endpoint_of(caller: Caller) -> WebhookEndpoint:
    """The one endpoint of the caller's team, as it is now."""
    with scope.team(caller.team.pk):
        return WebhookEndpoint.objects.get()


def deliveries_of(caller: Caller) -> list[WebhookDelivery]:
    """The deliveries of the caller's team, in the order of their making."""
    with scope.team(caller.team.pk):
        return list(WebhookDelivery.objects.order_by("pk"))


@contextmanager
def delivering(*, allow: str = "127.0.0.1", slots: int = 50) -> Iterator[None]:
    """A courier at work, as a worker has it; `allow` is its EGRESS_ALLOW."""
    courier = DeliveryWorker(slots=slots, egress=Egress(allow=AllowList.parse([allow] if allow else [])))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=[courier.run()], name="courier", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(courier.stop)
        thread.join(_SECONDS)
        loop.close()


def announce(caller: Caller, event_type: str = "response.completed", object_id: str = "resp_1") -> int:
    """Write an event into the outbox; how many endpoints want it."""
    with scope.team(caller.team.pk):
        return outbox.announce(team_id=caller.team.pk, event_type=event_type, object_id=object_id)


def settled(caller: Caller, *states: str, seconds: float = 10.0) -> list[WebhookDelivery]:
    """The team's deliveries, once their states are these."""

    def look() -> list[WebhookDelivery]:
        found = deliveries_of(caller)
        return found if [one.state for one in found] == list(states) else []

    return eventually(look, seconds=seconds)


def change_deliveries(caller: Caller, **columns: Any) -> None:
    """Put the team's deliveries into another state, such as an older one."""
    with scope.team(caller.team.pk):
        WebhookDelivery.objects.update(**columns)


def change_endpoint(caller: Caller, **columns: Any) -> None:
    """The same with its endpoints."""
    with scope.team(caller.team.pk):
        WebhookEndpoint.objects.update(**columns)
