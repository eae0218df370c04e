"""Fixtures of all tests that need servers: database, web processes, scripted upstream, callers and clients.

Nothing is rolled back or truncated. Each test creates its own teams, which row-level security isolates as in
production.
"""

import os
import re
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.core.management import call_command
from django.db import connections
from hypothesis import settings as hypothesis_settings
from openai import OpenAI
from pytest_django import DjangoDbBlocker

import responses.tools.registry  # noqa: F401 - completes the schema of requests, as in web and worker
from core.clock import now
from launcher.errors import LaunchError
from launcher.testing import PrivateServers
from responses.models import Response
from responses.rollups import aggregate
from tenants import scope, services
from tenants.models import AdminScope, UsageRecord
from tests.servers import SERVERS
from tests.support import interfaces, workers
from tests.support import web as web_processes
from tests.support.api import Api, Caller, MakeApi, MakeCaller
from tests.support.callers import CallerPool
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.responses_upstream import responses_script, running_responses_upstream
from tests.support.sampling import IS_FULL, covering
from tests.support.sandboxes import Sandbox, running_sandbox
from tests.support.sdk import checking_client
from tests.support.upstream import Script, ScriptedUpstream, running_upstream
from tests.support.waiting import PATIENCE
from tests.support.web import WebProcess, web_fixture
from tests.support.workers import MakeWorker, WorkerProcess, running_worker

# A busy machine makes any example slow. Time limits of whole tests find the endless ones. The parent, because in CI
# hypothesis would try the same examples each time.
_defaults = hypothesis_settings.get_profile("default")
hypothesis_settings.register_profile("without deadlines", parent=_defaults, deadline=None)
hypothesis_settings.load_profile("without deadlines")

_marks: dict[int, int] = {}
_callers = CallerPool()


@pytest.fixture(scope="session")
def servers() -> PrivateServers:
    """PostgreSQL and Valkey of this test run."""
    try:
        SERVERS.start()
    except LaunchError as error:
        # Every test that uses the servers repeats this work, so it must be short.
        pytest.fail(str(error), pytrace=False)
    return SERVERS


@pytest.fixture(scope="session")
def django_db_setup(servers: PrivateServers, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Create the schema in the new database of this test run. Replaces pytest-django's test database."""
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
    """Give a test access to the database in the application role. Commits are permanent."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="session")
def upstream(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[ScriptedUpstream]:
    """The scripted upstream, which serves every model name."""
    with running_upstream() as running:
        with django_db_blocker.unblock():
            services.add_upstream(
                name="scripted", base_url=running.url, api_key="upstream-secret", models=["*"], is_default=True
            )
        yield running


@pytest.fixture
def script(upstream: ScriptedUpstream) -> Iterator[Script]:
    """The scripted answers for one model name, verified at the end of the test."""
    with upstream.script() as script:
        yield script


@pytest.fixture
def only_streams(script: Script) -> None:
    """An upstream that streams the chunks of its script, whatever the request asks for."""
    script.only_streams = True


@pytest.fixture
def other_script(upstream: ScriptedUpstream) -> Iterator[Script]:
    """The scripted answers for a second model name."""
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


# The web process of most tests, and others that need a different server or configuration.
web = web_fixture()
daphne_web = web_fixture(server="daphne")
# It allows URLs on this machine in requests.
reaching_web = web_fixture(EGRESS_ALLOW="127.0.0.1", CONTAINER_ALLOWED_DOMAINS="localhost,example.invalid")
# It waits one second for a silent upstream.
short_timeout_web = web_fixture(
    UPSTREAM_IDLE_TIMEOUT="1",
    UPSTREAM_ANSWER_TIMEOUT="1",
    UPSTREAM_FIRST_TOKEN_SECONDS="1",
    UPSTREAM_STALL_SECONDS="1",
)


@pytest.fixture(scope="session")
def worker(upstream: ScriptedUpstream) -> Iterator[WorkerProcess]:
    """The worker of most tests."""
    with running_worker() as process:
        yield process


@pytest.fixture
def no_worker() -> Iterator[None]:
    """Stop all workers with SIGSTOP during the test, so that queued work stays in the queue."""
    with workers.other_workers_suspended():
        yield


@pytest.fixture
def make_worker(upstream: ScriptedUpstream, no_worker: None) -> Iterator[MakeWorker]:
    """Start workers for this test only; all other workers are suspended."""
    with ExitStack() as stack:

        def make(**options: Any) -> WorkerProcess:
            return stack.enter_context(running_worker(**options))

        yield make


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The sandbox service of this test run. Without bubblewrap, tests that need it are skipped, except in CI."""
    with running_sandbox(os.environ["SANDBOX_URL"], os.environ["SANDBOX_TOKEN"]) as running:
        yield running


@pytest.fixture(autouse=True)
def _unchanged_interfaces(request: pytest.FixtureRequest) -> Iterator[None]:
    has_pages = "browser" in request.fixturenames or hasattr(request.module, "chromium")
    with interfaces.unchanged() if has_pages else nullcontext():
        yield


@pytest.fixture(scope="session")
def http() -> Iterator[httpx2.Client]:
    """A connection pool shared by all tests."""
    with httpx2.Client(timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def make_caller(database: None) -> MakeCaller:
    """Create a team with an API key. Takes the fields of a `KeySpec`, and `team` to use an existing team."""

    def make(**options: Any) -> Caller:
        if not options and (ready := _callers.take()):
            return ready
        team = options.pop("team", None) or services.ensure_team(name=f"team {uuid.uuid4().hex}")
        new = services.create_key(team=team, spec=services.KeySpec(name="test", **options))
        return Caller(team=team, key=new.key, secret=new.secret)

    return make


@pytest.fixture
def caller(make_caller: MakeCaller) -> Caller:
    """A team with an API key for this test."""
    return make_caller()


@pytest.fixture
def api(web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    """The API client of `caller`."""
    return Api(http, url=web.url, caller=caller)


@pytest.fixture
def make_api(web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> MakeApi:
    """Create a team as `make_caller` does and return its API client."""
    return lambda **options: Api(http, url=web.url, caller=make_caller(**options))


@pytest.fixture
def outsider(make_api: MakeApi) -> Api:
    """The API client of another team."""
    return make_api()


@pytest.fixture
def client(web: WebProcess, caller: Caller) -> Iterator[OpenAI]:
    """The OpenAI SDK with the API key of `caller`."""
    http = checking_client()
    with OpenAI(base_url=f"{web.url}/v1", api_key=caller.secret, max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture
def make_admin(web: WebProcess, http: httpx2.Client, database: None) -> Callable[..., Api]:
    """Create an admin key with these scopes, by default all, and return its API client."""

    def make(*scopes: str) -> Api:
        new = services.create_admin_key(name="test", scopes=scopes or (AdminScope.ALL.value,))
        return Api(http, url=web.url, secret=new.secret)

    return make


@pytest.fixture
def admin_api(make_admin: Callable[..., Api]) -> Api:
    """The API client of an admin key with all permissions."""
    return make_admin()


@pytest.fixture
def admin_client(web: WebProcess, database: None) -> Iterator[OpenAI]:
    """The OpenAI SDK with an admin key that has all permissions."""
    new = services.create_admin_key(name="test", scopes=[AdminScope.ALL.value])
    http = checking_client()
    with OpenAI(base_url=f"{web.url}/v1", admin_api_key=new.secret, max_retries=0, http_client=http) as client:
        yield client


# All tests of failures, and of the pages of the admin console, are slow.
_SLOW_FOLDERS = {Path(__file__).parent / "faults", Path(__file__).parent / "admin"}
# The contract of a web server: tests of both servers.
_WIRE = Path(__file__).parent / "wire"
_LONG = {"faults", "browser", "docs", "deployment"}
_ALL_SLOW = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)


# Words of files with slow tests: the marker, or a process that makes a test slow.
_SOME_SLOW = re.compile(r"\bslow\b|daphne|short_timeout")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without a test of the suite: importing and collecting all takes a quarter of a minute."""
    suite = config.option.markexpr
    if suite not in {"slow", "not slow"} or not collection_path.match("test_*.py"):
        return None
    if collection_path in _named_files(config):
        return None
    is_slow = not _SLOW_FOLDERS.isdisjoint(collection_path.parents)
    if suite == "slow":
        return None if is_slow or _SOME_SLOW.search(collection_path.read_text()) else True
    return True if is_slow or _ALL_SLOW.search(collection_path.read_text()) else None


# Starting one of these processes takes seconds. Processes that few tests use come first.
_RARE_PROCESSES = ("daphne_web", "short_timeout_web")
_SHARED_PROCESSES = (*_RARE_PROCESSES, "reaching_web", "sandbox", "worker", "web", "database")


def _shared_process(item: pytest.Item) -> int:
    """Return the index in `_SHARED_PROCESSES` of the first process that a test uses."""
    used = {*getattr(item, "fixturenames", ())}
    if callspec := getattr(item, "callspec", None):
        used.update(value for value in callspec.params.values() if isinstance(value, str))
    return next((place for place, name in enumerate(_SHARED_PROCESSES) if name in used), len(_SHARED_PROCESSES))


def _rows_of(item: pytest.Item) -> dict[str, tuple[int, ...]]:
    """Return the row of each table of parameters that a case has. A parameter of a fixture is a table of its own."""
    # The same value is the same object in each case.
    values = {name: id(value) for name, value in item.callspec.params.items()}  # type: ignore[attr-defined]
    tables = {name: name for name in values}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        tables |= {name.strip(): names for name in names.split(",")}
    rows: dict[str, tuple[int, ...]] = {}
    for name, value in values.items():
        rows[tables[name]] = (*rows.get(tables[name], ()), value)
    return rows


def _mark_combinations(items: list[pytest.Item]) -> None:
    """Mark cases of tests with several tables of parameters whose rows all occur in other cases.

    For example, the fifth malformed id at the seventh endpoint adds nothing to the fifth id at the first endpoint and
    the first id at the seventh.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if getattr(item, "callspec", None) is not None and not item.get_closest_marker("nightly"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        kept = covering([_rows_of(case) for case in cases], key=name)
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker(pytest.mark.combination)


_DAPHNE = {"daphne", "daphne_web"}


def _repeats_on_daphne(item: pytest.Item) -> bool:
    """Return whether a test runs on daphne in addition to the default server, and does not test the server itself."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or _WIRE in item.path.parents:
        return False
    return any(isinstance(value, str) and value in _DAPHNE for value in callspec.params.values())


def _is_omitted(item: pytest.Item, config: pytest.Config) -> bool:
    """Return whether a test runs at night only, unless its file was named."""
    if item.get_closest_marker("nightly") or item.get_closest_marker("combination"):
        return item.path not in _named_files(config)
    return _repeats_on_daphne(item)


def _named_files(config: pytest.Config) -> set[Path]:
    """Return the files and folders in the arguments of the run."""
    return {config.invocation_params.dir / argument.partition("::")[0] for argument in config.args}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Mark tests of failures, pages and rare processes as slow, and sort the files by the processes they use.

    Parallel runs divide the list into contiguous parts, so that few parts start the same process. Tests that take long,
    repeat a test on daphne or combine values of other cases are omitted; `python -m benchmarks nightly`, `daphne` and
    `combinations` run it.
    """
    _mark_combinations(items)
    if omitted := {item for item in items if not IS_FULL and _is_omitted(item, config)}:
        config.hook.pytest_deselected(items=[*omitted])
        items[:] = [item for item in items if item not in omitted]
    earliest: dict[Path, int] = {}
    for item in items:
        place = _shared_process(item)
        earliest[item.path] = min(place, earliest.get(item.path, place))
        if not _SLOW_FOLDERS.isdisjoint(item.path.parents) or place < len(_RARE_PROCESSES):
            item.add_marker(pytest.mark.slow)
    # The tests of a file stay together, because its fixtures end with the last of them. Files that take minutes come
    # first, so that no process is left with one of them at the end.
    items.sort(key=lambda item: (_LONG.isdisjoint(item.path.parent.parts), earliest[item.path]))


def _running_processes() -> "list[WebProcess | WorkerProcess]":
    return [*web_processes.RUNNING, *workers.RUNNING]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Store the length of each process's output before the test."""
    _marks.update({process.pid: process.written for process in _running_processes()})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the output of all processes during the test to a failure."""
    report = yield
    if report.failed:
        for process in _running_processes():
            if output := process.output(since=_marks.get(process.pid, 0)):
                report.sections.append((f"process {process.pid}", output))
    return report


@pytest.fixture
def rollups(database: None) -> Iterator[None]:
    """Remove hourly sums before and after the test, and old rows of other tests, which it would sum."""
    _remove_old_rows()
    aggregate.discard()
    yield
    _remove_old_rows()
    aggregate.discard()


def _remove_old_rows() -> None:
    """Delete the rows of past hours: each of these hours would be a step of every later rollup."""
    hour = now().replace(minute=0, second=0, microsecond=0)
    with scope.every_team():
        UsageRecord.objects.filter(occurred_at__lt=hour).delete()
        Response.objects.filter(created_at__lt=hour).delete()


@pytest.fixture
def reaching(reaching_web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    """The API client of a web process that allows URLs on this machine in requests."""
    return Api(http, url=reaching_web.url, caller=caller)


@pytest.fixture
def short_timeout_api(short_timeout_web: WebProcess, http: httpx2.Client, make_caller: MakeCaller) -> Api:
    """The API of the web process that waits one second for a silent upstream."""
    return Api(http, url=short_timeout_web.url, caller=make_caller())


@pytest.fixture
def served() -> Iterator[McpServer]:
    """An MCP server that counts its calls."""
    with mcp_server() as running:
        yield running
