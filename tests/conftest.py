"""The fixtures of all tests that need servers: the database, web processes, a scripted upstream, callers and clients.

Nothing is rolled back or truncated. Each test makes teams of its own, and row-level security keeps them apart, in the
tests as in production.
"""

import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from django.core.management import call_command
from django.db import connections
from openai import OpenAI
from pytest_django import DjangoDbBlocker

pytest.register_assert_rewrite("tests.support")

from responses.rollups import aggregate  # noqa: E402
from tenants import services  # noqa: E402 - support modules are rewritten before anything imports them
from tests.support.api import Api, Caller, MakeApi, MakeCaller  # noqa: E402
from tests.support.mcp_servers import McpServer, mcp_server  # noqa: E402
from tests.support.responses_upstream import responses_script, running_responses_upstream  # noqa: E402
from tests.support.sandboxes import Sandbox, running_sandbox  # noqa: E402
from tests.support.sdk import checking_client  # noqa: E402
from tests.support.upstream import Script, ScriptedUpstream, running_upstream  # noqa: E402
from tests.support.web import WebProcess, running_web  # noqa: E402
from tests.support.workers import MakeWorker, WorkerProcess, running_worker  # noqa: E402

_processes: list[WebProcess | WorkerProcess] = []
_marks: dict[int, int] = {}


@pytest.fixture(scope="session")
def django_db_setup(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The run's fresh database as it is, migrated by its owner; in place of pytest-django's own test database."""
    with django_db_blocker.unblock():
        call_command("migrate", verbosity=0)
        connections["owner"].close()
        yield
        for connection in connections.all(initialized_only=True):
            connection.close()
            if pool := getattr(connection, "pool", None):
                pool.close()


@pytest.fixture
def database(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Lets a test use the database, as the application's role; what it commits stays."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="session")
def upstream(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[ScriptedUpstream]:
    """The scripted upstream; every model name is routed to it."""
    with running_upstream() as running:
        with django_db_blocker.unblock():
            services.add_upstream(
                name="scripted", base_url=running.url, api_key="upstream-secret", models=["*"], is_default=True
            )
        yield running


@pytest.fixture
def script(upstream: ScriptedUpstream) -> Iterator[Script]:
    """What the upstream answers to one model name; checked when the test is over."""
    with upstream.script() as script:
        yield script


@pytest.fixture
def other_script(upstream: ScriptedUpstream) -> Iterator[Script]:
    """What it answers to another."""
    with upstream.script() as script:
        yield script


@pytest.fixture(scope="session")
def responses_upstream(django_db_setup: None) -> Iterator[ScriptedUpstream]:
    """A scripted upstream with the Responses API."""
    with running_responses_upstream() as running:
        yield running


@pytest.fixture
def responses_api_script(responses_upstream: ScriptedUpstream, database: None) -> Iterator[Script]:
    """The answers of one model behind a Responses upstream; unused answers fail the test."""
    with responses_script(responses_upstream) as script:
        yield script


@pytest.fixture(scope="session")
def web(upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """The web process that most tests talk to."""
    with running_web() as process:
        _processes.append(process)
        yield process


@pytest.fixture(scope="session")
def uvicorn_web(upstream: ScriptedUpstream) -> Iterator[WebProcess]:
    """The same on uvicorn."""
    with running_web(server="uvicorn") as process:
        _processes.append(process)
        yield process


@pytest.fixture(scope="session")
def worker(upstream: ScriptedUpstream) -> Iterator[WorkerProcess]:
    """The worker that runs background responses of most tests."""
    with running_worker() as process:
        _processes.append(process)
        yield process


@pytest.fixture
def no_worker() -> Iterator[None]:
    """The workers of other tests stand still: what waits for one is left to this test."""
    with ExitStack() as stack:
        for process in [process for process in _processes if isinstance(process, WorkerProcess)]:
            stack.enter_context(process.standing_still())
        yield


@pytest.fixture
def make_worker(upstream: ScriptedUpstream, no_worker: None) -> Iterator[MakeWorker]:
    """Starts workers of this test's own; the others stand still meanwhile."""
    with ExitStack() as stack:

        def make(**options: Any) -> WorkerProcess:
            process = stack.enter_context(running_worker(**options))
            _processes.append(process)
            stack.callback(_processes.remove, process)
            return process

        yield make


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The sandbox service that all processes of this run know; tests that need it are skipped without bubblewrap."""
    with running_sandbox(os.environ["SANDBOX_URL"], os.environ["SANDBOX_TOKEN"]) as running:
        yield running


@pytest.fixture(scope="session")
def http() -> Iterator[httpx2.Client]:
    """One pool of connections for all tests."""
    with httpx2.Client(timeout=30) as client:
        yield client


@pytest.fixture
def make_caller(database: None) -> MakeCaller:
    """Makes a team with a key; keyword arguments are those of `create_key`, `team` puts the key into that team."""

    def make(**options: Any) -> Caller:
        team = options.pop("team", None) or services.ensure_team(name=f"team {uuid.uuid4().hex}")
        new = services.create_key(team=team, name="test", **options)
        return Caller(team=team, key=new.key, secret=new.secret)

    return make


@pytest.fixture
def caller(make_caller: MakeCaller) -> Caller:
    """The team and key of this test."""
    return make_caller()


@pytest.fixture
def api(web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    """The API in the name of `caller`."""
    return Api(http, url=web.url, caller=caller)


@pytest.fixture
def make_api(web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> MakeApi:
    """Makes a team with a key as `make_caller` does, and the API in its name."""
    return lambda **options: Api(http, url=web.url, caller=make_caller(**options))


@pytest.fixture
def outsider(make_api: MakeApi) -> Api:
    """The API in the name of another team."""
    return make_api()


@pytest.fixture
def client(web: WebProcess, caller: Caller) -> Iterator[OpenAI]:
    """The openai SDK in the name of `caller`."""
    http = checking_client()
    with OpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0, http_client=http) as client:
        yield client


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember what the processes had written before the test."""
    _marks.update({process.pid: process.written for process in _processes})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the processes wrote meanwhile."""
    report = yield
    if report.failed:
        for process in _processes:
            if wrote := process.output(since=_marks.get(process.pid, 0)):
                report.sections.append((f"process {process.pid}", wrote))
    return report


@pytest.fixture
def rollups(database: None) -> Iterator[None]:
    """No sums before, and none behind: other tests make rows in hours that would be closed."""
    aggregate.discard()
    yield
    aggregate.discard()


@pytest.fixture(scope="session")
def reaching_web(web: WebProcess) -> Iterator[WebProcess]:
    """A web process that lets requests name servers on this machine."""
    with running_web(EGRESS_ALLOW="127.0.0.1") as process:
        yield process


@pytest.fixture
def reaching(reaching_web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    """The API of a web process that lets requests name servers on this machine."""
    return Api(http, url=reaching_web.url, caller=caller)


@pytest.fixture
def served() -> Iterator[McpServer]:
    """An MCP server that counts its calls."""
    with mcp_server() as running:
        yield running
