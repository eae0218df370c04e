"""Models with several targets: each has a script of its own on the scripted upstream."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson

from tenants import scope, services
from tenants.models import ApiKey, Model, Team, Upstream, WireApi
from tenants.prices import UNKNOWN, PriceList
from tests.support.api import Api
from tests.support.upstream import Script, ScriptedUpstream

REFUSING_URL = "http://127.0.0.1:9/v1"
"""Address that refuses connections."""
PATHS = ("/responses", "/chat/completions", "/messages")


@dataclass(frozen=True, kw_only=True)
class Targets:
    """A public model. `add` adds a target with a script; the first has the priority 0, the next 1 and so on."""

    upstream: ScriptedUpstream
    stack: ExitStack
    name: str
    scripts: list[Script] = field(default_factory=list)

    def add(
        self,
        *,
        name: str = "",
        base_url: str = "",
        priority: int | None = None,
        prices: PriceList = UNKNOWN,
        teams: Sequence[Team] = (),
        keys: Sequence[ApiKey] = (),
        wire_api: str = WireApi.CHAT_COMPLETIONS.value,
        **columns: Any,
    ) -> Script:
        """Add a target. By default, its public name is that of this model."""
        script = self.stack.enter_context(self.upstream.script())
        server = Upstream.objects.create(
            name=f"up-{script.model}", base_url=base_url or self.upstream.url, api_key="k", wire_api=wire_api
        )
        self.stack.callback(_delete, server)
        row = Model.objects.create(
            name=name or self.name,
            upstream=server,
            upstream_model=script.model,
            priority=len(self.scripts) if priority is None else priority,
            **columns,
        )
        services.set_prices(row, prices.entries)
        with scope.every_team():
            row.teams.set(teams)
            row.keys.set(keys)
        self.scripts.append(script)
        return script

    def two(self, **columns: Any) -> tuple[Script, Script]:
        """Add two targets with these columns."""
        return self.add(**columns), self.add(**columns)

    def unreachable(self, **options: Any) -> None:
        """Add a target that refuses connections."""
        self.add(base_url=REFUSING_URL, **options)


MakeTargets = Callable[[], Targets]


@contextmanager
def several_targets(upstream: ScriptedUpstream, *, name: str | None = None) -> Iterator[Targets]:
    """Create a public model without targets. At the end, its scripts are verified and its targets are removed."""
    with ExitStack() as stack:
        yield Targets(upstream=upstream, stack=stack, name=name or f"model-{uuid.uuid4().hex[:12]}")


def _delete(server: Upstream) -> None:
    with scope.every_team():
        server.delete()


def upstream_id(script: Script) -> str:
    """Return the id of the upstream of a target."""
    return Upstream.objects.get(name=f"up-{script.model}").pk


def body_of(path: str, model: str, **more: Any) -> dict[str, Any]:
    """Return the body of a request to one of `PATHS`."""
    values: dict[str, Any] = {"input": "Hi"} if path == "/responses" else {"messages": [_MESSAGE]}
    return {"model": model, **values, **({"max_tokens": 16} if path == "/messages" else {}), **more}


_MESSAGE = {"role": "user", "content": "Hi"}


def post(api: Api, path: str, model: str, **more: Any) -> httpx2.Response:
    """Send a request to one of `PATHS`."""
    return api.post(path, body_of(path, model, **more))


def events_of(answer: httpx2.Response) -> list[dict[str, Any]]:
    """Return the events of a stream."""
    lines = (line.removeprefix("data:").strip() for line in answer.text.splitlines() if line.startswith("data:"))
    return [orjson.loads(line) for line in lines if line != "[DONE]"]


def streamed_text(path: str, answer: httpx2.Response) -> str:
    """Return the text that a client puts together from a stream."""
    pieces = []
    for event in events_of(answer):
        if path == "/responses" and event["type"] == "response.output_text.delta":
            pieces.append(event["delta"])
        elif path == "/chat/completions":
            pieces += [choice["delta"].get("content") or "" for choice in event.get("choices", ())]
        elif path == "/messages" and event["type"] == "content_block_delta":
            pieces.append(event["delta"]["text"])
    return "".join(pieces)


def is_complete(path: str, answer: httpx2.Response) -> bool:
    """Return whether a stream ends as a complete answer."""
    events = events_of(answer)
    if path == "/responses":
        return bool(events[-1]["type"] == "response.completed")
    if path == "/chat/completions":
        reasons = [choice["finish_reason"] for event in events for choice in event.get("choices", ())]
        return "stop" in reasons and not any("error" in event for event in events)
    return any(event["type"] == "message_stop" for event in events)
