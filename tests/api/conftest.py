"""Servers for tools and files, and the ways to create a response."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from aiohttp import web as aiohttp

from demo_upstream.app import create_app
from tests.support.aiohttp_server import serving
from tests.support.api import Api, MakeCaller, ok
from tests.support.background import ended
from tests.support.file_server import FileServer, running_file_server
from tests.support.targets import Targets, several_targets
from tests.support.upstream import ScriptedUpstream
from tests.support.vector_stores import StoreClient, use_demo_embeddings
from tests.support.web import WebProcess


@pytest.fixture
def reaching(reaching_web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    """The API of a web process that may connect to servers on this machine, with a key of another team than `api`."""
    return Api(http, url=reaching_web.url, caller=make_caller())


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    """A server of images and files."""
    with running_file_server() as file_server:
        yield file_server


@pytest.fixture(params=["json", "stream"])
def respond(request: pytest.FixtureRequest, reaching: Api) -> Callable[..., dict[str, Any]]:
    """Creates a response, as JSON and as a stream, and returns it when it has ended."""

    def stream(**body: Any) -> dict[str, Any]:
        response: dict[str, Any] = reaching.events(**body)[-1]["response"]
        return response

    return reaching.create if request.param == "json" else stream


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    """The URL of the demo upstream.

    It is the same for all tests, because web processes remember the route of a shared model for a second.
    """
    with serving(create_app()) as url:
        yield url


@pytest.fixture
def store_client(api: Api, demo_url: str) -> StoreClient:
    """An empty vector store of a team that can fill it."""
    use_demo_embeddings(api.caller.team, url=demo_url)
    return StoreClient(api, ok(api.post("/vector_stores", {"name": "Library"}))["id"])


@pytest.fixture(params=["json", "stream", "background"])
def ask(request: pytest.FixtureRequest, api: Api) -> Callable[..., dict[str, Any]]:
    """Creates a response, as JSON, as a stream and in the background, and returns it when it has ended."""
    if request.param == "background":
        request.getfixturevalue("worker")

    def background(**body: Any) -> dict[str, Any]:
        return ended(api, api.create(**body, background=True)["id"])

    def streamed(**body: Any) -> dict[str, Any]:
        response: dict[str, Any] = api.events(**body)[-1]["response"]
        return response

    ways: dict[str, Callable[..., dict[str, Any]]] = {"json": api.create, "stream": streamed, "background": background}
    return ways[request.param]


@pytest.fixture
def targets(upstream: ScriptedUpstream, database: None) -> Iterator[Targets]:
    """A model of this test, to which it adds targets."""
    with several_targets(upstream) as made:
        yield made


@pytest.fixture(scope="session")
def every_endpoint() -> Iterator[ScriptedUpstream]:
    """A scripted upstream that has all endpoints."""
    upstream = ScriptedUpstream()
    app = aiohttp.Application()
    app.router.add_post("/{path:.*}", upstream.answer)
    with serving(app) as upstream.url:
        yield upstream


@pytest.fixture
def forwarding_targets(every_endpoint: ScriptedUpstream, database: None) -> Iterator[Targets]:
    """A model of this test whose targets have all endpoints."""
    with several_targets(every_endpoint) as made:
        yield made
