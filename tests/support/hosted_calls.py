"""A hosted call of each kind, for tests of what all kinds have in common."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from tenants import scope, services
from tenants.models import Team
from tests.support.api import Api, ok
from tests.support.image_server import image_server
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import mcp_server
from tests.support.sandboxes import CODE_INTERPRETER
from tests.support.search_engine import engine, search_server
from tests.support.vector_stores import StoreClient


@dataclass(frozen=True, kw_only=True)
class HostedKind:
    """A kind of hosted call: the tool of the request, the call of the model, and the words of its result.

    `item` is the type of the call's item, `server` the server of the tool, if there is one.
    """

    item: str
    tool: Mapping[str, Any]
    call: Mapping[str, str]
    result: str
    server: Any = None


@contextmanager
def mcp(api: Api) -> Iterator[HostedKind]:
    """Run an MCP server with a tool that writes."""
    with mcp_server() as running:
        yield HostedKind(
            item="mcp_call", tool=tool(running), call={"box__note": "{}"}, result="note is done", server=running
        )


@contextmanager
def images(api: Api) -> Iterator[HostedKind]:
    """Run an image server whose model is the default of the team."""
    with image_server() as running:
        running.draw()
        model = f"painter-{uuid.uuid4().hex[:8]}"
        services.add_upstream(name=model, base_url=running.url, models=[model])
        with scope.team(api.caller.team.pk):
            Team.objects.filter(pk=api.caller.team.pk).update(image_model=model)
        yield HostedKind(
            item="image_generation_call",
            tool={"type": "image_generation"},
            call={"image_generation": orjson.dumps({"prompt": "A cat"}).decode()},
            result="The image was generated",
            server=running,
        )


@contextmanager
def web(api: Api) -> Iterator[HostedKind]:
    """Run the search engine of the team."""
    with search_server() as running:
        engine(api.caller.team, running)
        yield HostedKind(
            item="web_search_call",
            tool={"type": "web_search"},
            call={"web_search": orjson.dumps({"queries": ["cats"]}).decode()},
            result="They purr.",
            server=running,
        )


@contextmanager
def code(api: Api) -> Iterator[HostedKind]:
    """Return a program for the sandbox."""
    call = {"code_interpreter": orjson.dumps({"code": "print('forty' + '-two')"}).decode()}
    yield HostedKind(item="code_interpreter_call", tool=CODE_INTERPRETER, call=call, result="forty-two")


@contextmanager
def shell(api: Api) -> Iterator[HostedKind]:
    """Return a command for the sandbox."""
    environment = {"type": "shell", "environment": {"type": "container_auto"}}
    call = {"shell": orjson.dumps({"commands": ["echo forty-$((1+1))"]}).decode()}
    yield HostedKind(item="shell_call", tool=environment, call=call, result="forty-2")


@contextmanager
def files(api: Api) -> Iterator[HostedKind]:
    """Fill a vector store. The team needs an embedding model."""
    store = StoreClient(api, ok(api.post("/vector_stores", {"name": "Library"}))["id"])
    store.add("herons.txt", "Herons nest in old trees.")
    yield HostedKind(
        item="file_search_call",
        tool={"type": "file_search", "vector_store_ids": [store.id]},
        call={"file_search": orjson.dumps({"queries": ["herons"]}).decode()},
        result="Herons nest in old trees.",
    )


KINDS: Mapping[str, Callable[[Api], Any]] = {
    "mcp": mcp,
    "image": images,
    "web": web,
    "code": code,
    "shell": shell,
    "files": files,
}
