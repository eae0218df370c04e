"""Secrets in every place where data is stored or sent: the platform runs once with servers that repeat secrets.

An upstream, an MCP server, a guardrail hook and a webhook receiver answer with the credentials that they were sent, in
several encodings; runs fail, time out and lose their worker. Then each place is searched for each secret.

Collecting the places takes most of a minute, so `python -m benchmarks nightly` does it. In CI,
`tests/api/tools/test_mcp_secrets.py` searches the tables for the secrets of single responses.
"""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import orjson
import pytest
import redis
from aiohttp import web as aiohttp
from pytest_django import DjangoDbBlocker

import server.urls  # noqa: F401 - registers the pages
from launcher.testing import PrivateServers
from tenants import scope, services
from tenants.invitations.services import create_invite, path_of
from tenants.models import Connector, Guardrail, Role
from tests.admin.crawling import TeamData, addresses, admin_routes, body
from tests.admin.rows import member, sign_in
from tests.support.aiohttp_server import serving
from tests.support.api import Caller
from tests.support.management import succeed
from tests.support.otlp import running_collector
from tests.support.rows import occurrences
from tests.support.schedulers import running_scheduler
from tests.support.waiting import PATIENCE, eventually
from tests.support.web import running_web
from tests.support.webhooks import add_endpoint
from tests.support.workers import running_worker

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

UPSTREAM_KEY = "sk-up/9f27+c1d04be8a6"
PASSWORD = "pass/27+word-c40d1e9b"
MCP_TOKEN = "mcp/token+5d83c1e09a7f"
MCP_HEADER = 'mcp"header\\73b1e05dac'
MCP_QUERY = "mcp-query-d80c2b6614"
CONNECTOR_TOKEN = "connector/tok+en-418be07f"
HOOK_SECRET = "hook/secret+c2b7e51f9d"
UNSTORED = "Kranichzug-unstored-71c9"
INTERNAL = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "DJANGO_SECRET_KEY", "API_KEY_PEPPER", "SANDBOX_TOKEN")
# Sessions of the console are rows of Django and allauth, without which no process could recognise them. They are
# neither in backups nor anywhere else.
ALLOWED = {("console session", "tables")}


@dataclass
class Parrot:
    """A server that repeats its requests. The model, the tool or the path selects how."""

    url: str = ""
    calls: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    async def answer(self, request: aiohttp.Request) -> aiohttp.StreamResponse:
        """Handle a request of any kind."""
        raw = await request.read()
        text = self._repeated(request, raw)
        document = json.loads(raw) if raw[:1] == b"{" else {}
        path = request.match_info["path"]
        kind = path if path in {"check", "hook"} else str(document.get("model", ""))
        self.calls.append(kind)
        if "mcp" in request.path:
            return await self._mcp(request, document, text)
        headers = {"x-request-id": text, "x-should-retry": "false", "retry-after": text}
        error = {"error": {"message": text, "type": "invalid_request_error", "code": None}}
        if kind.startswith("hang"):
            for _ in range(3000):
                if self.release.is_set():
                    break
                await asyncio.sleep(0.02)
            return aiohttp.json_response(error, status=400)
        messages = document.get("messages", ())
        if kind.startswith("tool") and messages and messages[-1]["role"] != "tool":
            return await self._stream(request, _tool_call(document))
        if kind.startswith(("say", "tool")):
            return await self._stream(request, _said("Hello."))
        if kind.startswith("stream"):
            return await self._stream(request, [error])
        if kind.startswith("broken"):
            return aiohttp.Response(body=text.encode(), content_type="application/json")
        if kind == "check":
            return aiohttp.json_response({"allow": True, "categories": [text], "reason": text})
        if kind == "hook":
            return aiohttp.Response(status=500, text=text)
        status = int(re.search(r"\d{3}", kind + "400")[0])  # type: ignore[index]
        return aiohttp.json_response(error, status=status, headers=headers)

    @staticmethod
    def _repeated(request: aiohttp.Request, raw: bytes) -> str:
        """Return the credentials and the input of a request in several encodings."""
        names = ("authorization", "x-key")
        values = [request.headers[name] for name in names if name in request.headers]
        values += [value.rpartition(" ")[2] for value in values]
        for value in values[:1]:
            if value.startswith("Basic "):
                values += [base64.b64decode(value[6:]).decode(), base64.b64decode(value[6:]).decode().split(":")[1]]
        values += [request.query_string, UNSTORED if UNSTORED.encode() in raw else ""]
        spelled = [[v, quote(v, safe=""), base64.b64encode(v.encode()).decode(), json.dumps(v)] for v in values if v]
        return " ".join(text for texts in spelled for text in texts)

    @staticmethod
    async def _stream(request: aiohttp.Request, chunks: list[Any]) -> aiohttp.StreamResponse:
        response = aiohttp.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(b"data: %b\n\n" % orjson.dumps(chunk))
        await response.write(b"data: [DONE]\n\n")
        return response

    @staticmethod
    async def _mcp(request: aiohttp.Request, message: dict[str, Any], text: str) -> aiohttp.StreamResponse:
        kind = request.path.rpartition("/")[2]
        if kind in {"401", "500"}:
            return aiohttp.Response(
                status=int(kind), text=text, headers={"www-authenticate": f'Bearer error="{text[:80]}"'}
            )
        if request.method != "POST" or "id" not in message:
            return aiohttp.Response(status=405 if request.method == "GET" else 202)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        match message["method"]:
            case "initialize":
                about = {"serverInfo": {"name": "parrot", "version": "1"}, "capabilities": {"tools": {}}}
                answer["result"] = {"protocolVersion": message["params"]["protocolVersion"], **about}
            case "tools/list" if kind == "listing":
                answer["error"] = {"code": -32000, "message": text}
            case "tools/list":
                schema = {"type": "object", "properties": {}}
                answer["result"] = {"tools": [{"name": "tell", "description": "Tell.", "inputSchema": schema}]}
            case "tools/call" if kind == "calling":
                answer["error"] = {"code": -32000, "message": text}
            case "tools/call":
                answer["result"] = {"content": [{"type": "text", "text": text}], "isError": kind == "failing"}
            case _:
                answer["error"] = {"code": -32601, "message": "unknown"}
        return aiohttp.json_response(answer)


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _said(text: str) -> list[Any]:
    return [_chunk({"role": "assistant", "content": text}), _chunk({}, "stop")]


def _tool_call(document: dict[str, Any]) -> list[Any]:
    name = document["tools"][0]["function"]["name"]
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return [_chunk({"role": "assistant", "tool_calls": [call]}), _chunk({}, "tool_calls")]


@dataclass
class Run:
    """The secrets of a run by name, and the content of each place after it."""

    secrets: dict[str, str] = field(default_factory=dict)
    places: dict[str, bytes] = field(default_factory=dict)
    during: bytes = b""
    reached: set[str] = field(default_factory=set)


class Commands:
    """All commands that Redis receives, with their arguments."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self._client = redis.Redis.from_url(os.environ["REDIS_URL"])
        self._monitor = self._client.monitor().__enter__()  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # The connection is closed at the end.
        with suppress(Exception):
            for command in self._monitor.listen():
                self.seen += f"{command['command']}\n".encode()

    def stop(self) -> bytes:
        """Stop recording and return the commands."""
        self._monitor.connection.disconnect()
        return bytes(self.seen)


@pytest.fixture(scope="module")
def run(
    servers: PrivateServers,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Use the platform, with all of its processes, and collect the contents of every place."""
    parrot, app = Parrot(), aiohttp.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/v1/{path:.*}", parrot.answer)
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())
        parrot.url = stack.enter_context(serving(app))
        collector = stack.enter_context(running_collector())
        options: dict[str, Any] = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "LOG_LEVEL": "DEBUG",
            "EGRESS_ALLOW": "127.0.0.1",
            "UPSTREAM_ANSWER_TIMEOUT": "300",
        }
        web = stack.enter_context(running_web(**options))
        first = stack.enter_context(running_worker(**options))
        beat = stack.enter_context(running_scheduler(**options))
        eventually(lambda: beat.is_active)
        before = Contents.read(servers)
        commands = Commands()
        made = Run()
        caller = _tenant(made, parrot)
        http = stack.enter_context(
            httpx2.Client(timeout=PATIENCE, headers={"authorization": f"Bearer {caller.secret}"})
        )
        answers = _requests(http, f"{web.url}/v1", parrot)
        hanging = _background(http, f"{web.url}/v1", parrot)
        eventually(lambda: "hang-basic" in parrot.calls)
        made.during = before.added(_tables(servers))
        first.stop(signal.SIGKILL)
        parrot.release.set()
        second = stack.enter_context(running_worker(**options))
        for response in hanging:
            _ended(http, f"{web.url}/v1", response)
        pages = _pages(made, caller, web.url)
        made.reached = set(parrot.calls)
        time.sleep(1)  # the interval of exports, for the traces of the last requests
        made.places |= {
            "log of web": web.output().encode(),
            "log of the killed worker": first.output().encode(),
            "log of the worker": second.output().encode(),
            "log of beat": beat.output.encode(),
            "traces": collector.raw,
            "metrics": http.get(f"{web.url}/metrics", headers={"authorization": ""}).content,
            "Redis commands": commands.stop(),
            "Redis keys": _redis(),
            "tables": before.added(_tables(servers)),
            "pages": pages,
            "answers": answers,
            "backup": _backup(servers, tmp_path_factory.mktemp("backup") / "1", before),
        }
        yield made


def _tenant(made: Run, parrot: Parrot) -> Caller:
    """Create a team with every kind of object that has a secret."""
    team = services.ensure_team(name=f"team {uuid.uuid4().hex}")
    new = services.create_key(team=team, spec=services.KeySpec(name="test"))
    caller = Caller(team=team, key=new.key, secret=new.secret)
    models = [f"{kind}-key" for kind in KINDS]
    services.add_upstream(name=f"key {uuid.uuid4().hex}", base_url=parrot.url, api_key=UPSTREAM_KEY, models=models)
    url = parrot.url.replace("://", f"://robot:{quote(PASSWORD, safe='')}@")
    models = [f"{kind}-basic" for kind in KINDS]
    services.add_upstream(name=f"basic {uuid.uuid4().hex}", base_url=url, models=models)
    with scope.every_team():
        Connector.objects.filter(name="connector_dropbox").delete()
        Connector.objects.create(
            name="connector_dropbox", title="Box", url=f"{parrot.url}/mcp/telling", authorization=CONNECTOR_TOKEN
        )
        Guardrail.objects.create(
            team=team, input_checker="hook", hook_url=f"{parrot.url}/check", hook_secret=HOOK_SECRET
        )
    endpoint = add_endpoint(caller, f"{parrot.url}/hook?token=webhook-token-9c31d7")
    invite = create_invite(email=f"{uuid.uuid4().hex}@example.com", projects=[], actor="test")
    made.secrets = {
        "API key": caller.secret,
        "key of an upstream": UPSTREAM_KEY,
        "password of an upstream": PASSWORD,
        "basic authentication": base64.b64encode(f"robot:{PASSWORD}".encode()).decode().rstrip("="),
        "MCP authorization": MCP_TOKEN,
        "MCP header": MCP_HEADER,
        "MCP query": MCP_QUERY,
        "token of a connector": CONNECTOR_TOKEN,
        "hook secret": HOOK_SECRET,
        "webhook secret": endpoint.secret.removeprefix("whsec_"),
        "unstored input": UNSTORED,
        "invitation": path_of(invite).rstrip("/").rpartition("~")[2],
        **{name: os.environ[name] for name in INTERNAL if os.environ.get(name)},
    }
    for name in ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL"):
        made.secrets[name] = urlsplit(os.environ[name]).password or ""
    return caller


KINDS = ("say", "tool", "stream", "broken", "hang", "400", "401", "429", "500", "503")


def _mcp(parrot: Parrot, kind: str) -> dict[str, Any]:
    return {
        "type": "mcp",
        "server_label": "box",
        "server_url": f"{parrot.url}/mcp/{kind}?key={MCP_QUERY}",
        "authorization": MCP_TOKEN,
        "headers": {"X-Key": MCP_HEADER},
        "require_approval": "never",
    }


def _requests(http: httpx2.Client, url: str, parrot: Parrot) -> bytes:
    """Send requests of all kinds, which fail in every way, and return the answers."""
    answers = []
    for model in (f"{kind}-{auth}" for kind in KINDS if kind != "hang" for auth in ("key", "basic")):
        asked: dict[str, Any] = {"model": model, "input": "Hi"}
        answers.append(http.post(f"{url}/responses", json=asked))
        answers.append(http.post(f"{url}/responses", json={**asked, "stream": True}))
        # Its answer may repeat the client's own input.
        http.post(f"{url}/responses", json={"model": model, "input": UNSTORED, "store": False, "stream": True})
        answers.append(http.post(f"{url}/embeddings", json=asked))
    for kind in ("telling", "failing", "calling", "listing", "401", "500"):
        for background in (False, True):
            asked = {"model": "tool-key", "input": "Hi", "tools": [_mcp(parrot, kind)], "background": background}
            answers.append(http.post(f"{url}/responses", json=asked))
    connector = {"type": "mcp", "server_label": "box", "connector_id": "connector_dropbox", "require_approval": "never"}
    answers.append(http.post(f"{url}/responses", json={"model": "tool-key", "input": "Hi", "tools": [connector]}))
    answers.append(http.get(f"{url}/responses", headers={"authorization": "Bearer sk-wrong-0000000000000000"}))
    return b"".join(answer.content + str(answer.headers).encode() for answer in answers)


def _background(http: httpx2.Client, url: str, parrot: Parrot) -> list[str]:
    """Start background runs whose model does not answer."""
    ids = []
    for auth in ("key", "basic"):
        asked = {"model": f"hang-{auth}", "input": "Hi", "tools": [_mcp(parrot, "telling")], "background": True}
        ids.append(http.post(f"{url}/responses", json=asked).json()["id"])
    return ids


def _ended(http: httpx2.Client, url: str, response_id: str) -> None:
    def is_ended() -> bool:
        status = http.get(f"{url}/responses/{response_id}").json()["status"]
        return status not in {"queued", "in_progress"}

    eventually(is_ended)


def _pages(made: Run, caller: Caller, url: str) -> bytes:
    """Return every page of the console that the lead of the team may open, and some of an administrator."""
    lead = member(caller.team, Role.TEAM_LEAD)
    made.secrets["console session"] = lead.cookies["sessionid"].value
    data, pages = TeamData.of(caller.team, markers=[]), []
    for route in admin_routes():
        with suppress(LookupError):
            pages += [body(lead.get(address)) for address in addresses(route, data)]
    admin = sign_in(superuser=True)
    for path in ("tenants/upstream/", "tenants/connector/", "tenants/auditevent/", "system/", "tenants/guardrail/"):
        pages.append(body(admin.get(f"/admin/{path}")))
    # Through the web process, for its log. Without a CSRF token, the page is refused.
    invitation = made.secrets["invitation"]
    with httpx2.Client(cookies={"sessionid": made.secrets["console session"]}, timeout=PATIENCE) as browser:
        browser.get(f"{url}/admin/")
        browser.post(f"{url}/account/invitations/invite_1~{invitation}/")
    return b"\n".join(pages)


@dataclass(frozen=True)
class Contents:
    """Database rows and file names left by other tests, which are skipped because searching them would take minutes."""

    lines: frozenset[bytes]
    files: frozenset[str]

    @classmethod
    def read(cls, servers: PrivateServers) -> "Contents":
        """Return the present contents."""
        lines = frozenset([*_tables(servers).splitlines(), *_tables(servers, as_backup=True).splitlines()])
        return cls(lines, frozenset(path.name for path in Path(os.environ["STATE_DIR"]).rglob("*")))

    def added(self, content: bytes) -> bytes:
        """Return the lines of a later content that are new."""
        return b"\n".join(line for line in content.splitlines() if line not in self.lines)


def _tables(servers: PrivateServers, *, as_backup: bool = False) -> bytes:
    """Return all rows, as an attacker with access to the database would dump them, or in the format of a backup."""
    command = [str(servers.programs / "pg_dump"), "--data-only", "--enable-row-security", "--no-owner"]
    options = {"PGOPTIONS": "-c app.team_ids=*"}
    done = subprocess.run(
        [*command, *([] if as_backup else ["--inserts"]), servers.owner_url],
        env={**os.environ, **options},
        capture_output=True,
        check=True,
    )
    return done.stdout


def _redis() -> bytes:
    """Return all keys with their values."""
    client, found = redis.Redis.from_url(os.environ["REDIS_URL"]), []
    readers: dict[bytes, Any] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": client.xrange,
    }
    for key in client.scan_iter():
        if (kind := client.type(key)) in readers:
            found.append(b"%b %b" % (key, repr(readers[kind](key)).encode()))
    return b"\n".join(found)


def _backup(servers: PrivateServers, directory: Path, before: Contents) -> bytes:
    """Return the new content of a backup: the dump as text, and all other files."""
    succeed("backup", str(directory), "--allow-missing-files")
    dump = directory / "database.dump"
    restore = [str(servers.programs / "pg_restore"), "--file=-", str(dump)]
    text = subprocess.run(restore, capture_output=True, check=True).stdout
    others = [path for path in directory.rglob("*") if path.is_file() and path != dump]
    return before.added(text) + b"".join(path.read_bytes() for path in others if path.name not in before.files)


def test_no_secret_is_stored_in_plain_text(run: Run) -> None:
    found = {}
    for place, content in run.places.items():
        for name, secret in run.secrets.items():
            if (name, place) not in ALLOWED and (seen := occurrences(content, secret)):
                found[name, place] = (len(seen), seen[:3])
    assert not found, "\n" + "\n".join(f"{where}: {what}" for where, what in found.items())


def test_credentials_of_a_background_run_are_encrypted_until_its_end(run: Run) -> None:
    for secret in (MCP_TOKEN, MCP_HEADER, MCP_QUERY):
        assert not occurrences(run.during, secret)
    # Fernet: the runs that were waiting had credentials, and no row has them at the end.
    assert len(re.findall(rb"'gAAAA[^']{300,}'", run.during)) > len(
        re.findall(rb"'gAAAA[^']{300,}'", run.places["tables"])
    )


def test_the_search_finds_planted_secrets(run: Run) -> None:
    assert {f"{kind}-{auth}" for kind in KINDS for auth in ("key", "basic")} <= run.reached
    assert all(run.places.values())
    assert occurrences(run.places["tables"], "Hello.")  # in compressed event logs
    assert occurrences(run.places["backup"], "Hello.")
    assert b"/v1/responses" in run.places["traces"]
    assert b"[redacted]" in run.places["tables"]
    for secret in ("a/b+c-secret", 'quo"ted-secret'):
        coded = base64.b64encode(f"--{secret}--".encode())
        assert occurrences(coded, secret)
        assert occurrences(json.dumps({"x": secret}).encode(), secret)
        assert occurrences(quote(secret, safe="").encode(), secret)
        assert not occurrences(b"nothing of it", secret)
