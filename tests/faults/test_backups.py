"""`manage.py backup` and `restore`: restored objects equal the originals byte for byte, through the API."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest
from django.contrib.auth.models import User
from django.test import Client
from psycopg.conninfo import conninfo_to_dict

from conversations.files.storage import content_name
from conversations.models import File
from core.clock import now
from demo_upstream.app import create_app
from launcher import state
from launcher.testing import PrivateServers
from server.api_urls import ENDPOINTS
from server.database import backup
from tenants import members, scope
from tenants.models import Connector, Role
from tenants.prices import PriceList
from tests.servers import ROOT
from tests.support import batches
from tests.support.aiohttp_server import serving
from tests.support.api import Api, ok
from tests.support.background import ended
from tests.support.chunks import text
from tests.support.deployment import small_disk
from tests.support.items import ITEMS
from tests.support.management import manage, succeed
from tests.support.mcp_requests import of, word
from tests.support.mcp_servers import McpServer, mcp_server
from tests.support.model_capabilities import describe
from tests.support.prompts import write_prompt
from tests.support.sampling import rest_at_night
from tests.support.sandboxes import Sandbox
from tests.support.skills import skill_files
from tests.support.upstream import Pause, Script, stream
from tests.support.vector_stores import upload, use_demo_embeddings
from tests.support.waiting import HANGS_AFTER, PATIENCE, eventually
from tests.support.web import WebProcess, running_web
from tests.support.webhooks import Receiver, add_endpoint, running_receiver
from tests.support.workers import WorkerProcess, running_worker

pytestmark = pytest.mark.slow

QUESTION = {"type": "message", "role": "user", "content": "Well?"}
SUMMARY = "The red car is in Vienna."
TOKEN = "token-5e0c7a91"
# Other tests leave rows of files without content in the database.
OTHERS = "--allow-missing-files"


@dataclass(frozen=True, kw_only=True)
class Target:
    """An empty database and an empty folder, with the environment of a platform that uses them."""

    environment: dict[str, str]


@pytest.fixture
def target(servers: PrivateServers, tmp_path: Path) -> Target:
    """An empty environment to restore into."""
    owner, app = servers.create_database(f"test_{uuid4().hex[:8]}")
    changed = {"DATABASE_URL": app, "DATABASE_OWNER_URL": owner, "STATE_DIR": str(tmp_path / "state")}
    return Target(environment=changed)


@contextmanager
def started(*arguments: str, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a management command and kill it at the end of the block."""
    command, environment = [sys.executable, "manage.py", *arguments], {**os.environ, **variables}
    quiet, errors = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=quiet, stderr=errors) as process:
        try:
            yield process
        finally:
            process.kill()


def sessions(servers: PrivateServers, program: str, url: str) -> list[str | None]:
    """Return the wait event of each session of a program in a database."""
    query = "SELECT wait_event_type FROM pg_stat_activity WHERE application_name = %s AND datname = %s"
    with psycopg.connect(servers.admin) as connection:
        return [kind for (kind,) in connection.execute(query, [program, conninfo_to_dict(url)["dbname"]])]


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Objects of a team: the path parameters that show them, and the responses that are continued after the restore."""

    values: dict[str, list[str]]
    chained: str
    compacted: str
    asking: dict[str, Any]
    tool: dict[str, Any]
    prompt: str
    webhook_secret: str


@pytest.fixture
def tools() -> Iterator[McpServer]:
    """An MCP server that requires a token."""
    with mcp_server(token=TOKEN) as running:
        yield running


@pytest.fixture
def connector(tools: McpServer, database: None) -> Iterator[Connector]:
    """A connector with the token of the server. The SDK's types allow only OpenAI's own connector ids."""
    Connector.objects.filter(name="connector_dropbox").delete()
    made = Connector.objects.create(name="connector_dropbox", title="Box", url=tools.url, authorization=TOKEN)
    yield made
    with scope.every_team():
        Connector.objects.filter(pk=made.pk).delete()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks."""
    with running_receiver() as running:
        yield running


@pytest.fixture
def filled(
    api: Api, admin_api: Api, script: Script, connector: Connector, receiver: Receiver, worker: WorkerProcess,
    sandbox: Sandbox,
) -> Filled:  # fmt: skip
    """Create objects of each kind."""
    post, team, model = api.post, api.caller.team, script.model
    # Under the hard budget below, the largest size of an image must be known.
    describe(script, prices=PriceList.simple(input="1", output="1"), context_window=100_000)
    conversation = ok(post("/conversations", {"metadata": {"topic": "backups"}}))["id"]
    script.say("So it is.")
    everything = api.create(model=model, input=[*ITEMS.values(), QUESTION], conversation=conversation)
    script.say("Hello")
    first = api.create(model=model, input="Hi", conversation=conversation, metadata={"number": "1"})
    script.say("Hello", " again")
    with api.stream(model=model, input="And now?", previous_response_id=first["id"]) as live:
        streamed = live.rest()[-1]["response"]
    script.say("Later")
    later = ended(api, api.create(model=model, input="Hi", background=True)["id"])
    script.say(SUMMARY)
    context = ok(post("/responses/compact", {"model": model, "input": "Find the red car."}))["output"]
    script.say("In Vienna.")
    compacted = api.create(model=model, input=[*context, QUESTION])
    tool = {"type": "mcp", "server_label": "box", "connector_id": connector.name, "require_approval": "never"}
    script.call(box__add='{"a":1,"b":1}').say("2")
    called = api.create(model=model, input="1+1?", tools=[tool])
    tool["require_approval"] = "always"
    script.call(box__add='{"a":2,"b":3}')
    asking = api.create(model=model, input="2+3?", tools=[tool])
    script.say("A chat")
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "store": True}
    chat = ok(post("/chat/completions", body))
    script.say("A line")
    batch = batches.ended(api, batches.asked(api, batches.line("1", model=model, input="Hi"))["id"])
    file = upload(api, "notes.txt", "Grüße\n" * 50_000)
    with serving(create_app()) as embeddings:
        use_demo_embeddings(team, url=embeddings)
        store = ok(post("/vector_stores", {"name": "Library"}))["id"]
        ingestion = ok(post(f"/vector_stores/{store}/file_batches", {"file_ids": [file]}))["id"]
        path = f"/vector_stores/{store}/file_batches/{ingestion}"
        eventually(lambda: api.get(path).json()["status"] == "completed", seconds=60)
    container = ok(post("/containers", {"name": "work"}))["id"]
    copied = ok(api.request("POST", f"/containers/{container}/files", files={"file": ("a.csv", b"a,b\n1,2\n")}))["id"]
    skill = ok(api.request("POST", "/skills", files=[("files[]", one) for one in skill_files().items()]))["id"]
    prompt = write_prompt(api.caller, "Be brief.")
    webhook = add_endpoint(api.caller, receiver.url, "response.completed")

    projects = f"/organization/projects/{team.pk}"
    account = ok(admin_api.post(f"{projects}/service_accounts", {"name": "nightly"}))["id"]
    name = uuid4().hex
    user = User.objects.create_user(name, f"{name}@example.com", is_staff=True)
    members.add_member(team=team, user=user, role=Role.TEAM_LEAD, actor="system")
    limit = {"currency": "USD", "interval": "month", "threshold_amount": 100}
    ok(admin_api.post(f"{projects}/spend_limit", limit))
    channel = {"type": "email", "recipients": [user.email]}
    alert = ok(admin_api.post(f"{projects}/spend_alerts", {**limit, "notification_channel": channel}))["id"]
    ok(admin_api.post(f"{projects}/model_permissions", {"mode": "deny_list", "model_ids": ["m"]}))
    invitation = {"email": f"{uuid4().hex}@example.com", "role": "reader"}
    invite = ok(admin_api.post("/organization/invites", invitation))["id"]
    values = {
        "response_id": [one["id"] for one in (everything, first, streamed, later, compacted, called, asking)],
        "model": [row["id"] for row in ok(api.get("/models"))["data"]][:1],
        "completion_id": [chat["id"]],
        "conversation_id": [conversation],
        "item_id": [row["id"] for row in ok(api.get(f"/conversations/{conversation}/items?limit=100"))["data"]],
        "file:file_id": [file, batch["input_file_id"], batch["output_file_id"]],
        "vector_store_id": [store],
        "vsfb:batch_id": [ingestion],
        "batch:batch_id": [batch["id"]],
        "endpoint_id": [webhook.pk],
        "container_id": [container],
        "cfile:file_id": [copied],
        "skill_id": [skill],
        "version": ["1"],
        "project_id": [team.pk],
        "api_key_id": [api.caller.key.pk],
        "service_account_id": [account],
        "user_id": [f"user-{user.pk}"],
        "alert_id": [alert],
        "invite_id": [invite],
        "key_id": [row["id"] for row in ok(admin_api.get("/organization/admin_api_keys"))["data"]][:1],
    }
    return Filled(
        values=values,
        chained=streamed["id"],
        compacted=compacted["id"],
        asking=asking,
        tool=tool,
        prompt=prompt.pk,
        webhook_secret=webhook.secret,
    )


def paths_of(values: dict[str, list[str]]) -> Iterator[str]:
    """Yield every path below `/v1` that shows an object. An endpoint with an unknown parameter raises `KeyError`."""
    day = int(time.time()) // 86400 * 86400
    (team,) = values["project_id"]
    # Only of this team, because abandoned runs of other teams may still end.
    usage = f"?start_time={day}&end_time={day + 86400}&project_ids={team}"
    for endpoint in (listed for listed in ENDPOINTS if listed.method == "GET"):
        path = f"/{endpoint.path}"
        parameters = re.findall(r"<(?:(\w+):)?(\w+)>", path)
        choices = [values.get(name) or values[f"{prefix}:{name}"] for prefix, name in parameters]
        if path.startswith("/vector_stores"):
            choices = [choice[:1] for choice in choices]
        for chosen in product(*choices):
            found = re.sub(r"<[^>]+>", "{}", path).format(*chosen)
            yield found + (usage if re.search("/usage/|/costs", path) else "")
    for response in values["response_id"]:
        yield f"/responses/{response}/input_items?limit=100"
        yield f"/responses/{response}?stream=true"
        yield f"/responses/{response}?stream=true&starting_after=2"


def read_all(url: str, paths: Iterable[str], *, api: Api, admin: Api | None = None) -> dict[str, bytes]:
    """Return the body of each answer, without the times of last use of keys and containers: reading changes them."""
    found = {}
    with httpx2.Client(base_url=f"{url}/v1", timeout=PATIENCE) as http:
        for path in paths:
            sender = admin if admin is not None and path.startswith("/organization") else api
            answer = http.get(path, headers=sender.headers)
            assert answer.status_code == 200, (path, answer.text)
            found[path] = re.sub(rb'"(last_used_at|last_active_at)":(\d+|null)', b"", answer.content)
    return found


def changed(first: dict[str, bytes], second: dict[str, bytes]) -> dict[str, tuple[bytes, bytes]]:
    """Return what differs between two readings of the same paths."""
    return {path: (body, second[path]) for path, body in first.items() if second[path] != body}


def rows_by_table(database: str) -> dict[str, tuple[int, int]]:
    """Return the number of rows of each table, of all teams, and the sum of their hashes."""
    found = {}
    with psycopg.connect(database, options="-c app.team_ids=*") as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition"
        ).fetchall()
        for (table,) in tables:
            hashes = f'SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)), 0) FROM "{table}" r'
            ((number, digest),) = connection.execute(hashes).fetchall()
            found[table] = (int(number), int(digest))
    return found


def check_secrets(api: Api, script: Script, filled: Filled, tools: McpServer, receiver: Receiver) -> None:
    """Use each stored secret: of the upstream, the MCP server, the connector and the webhook endpoint."""
    script.say("Still here")
    api.create(model=script.model, input="Still?", previous_response_id=filled.chained)
    assert script.received[-1].headers["Authorization"] == "Bearer upstream-secret"
    script.say("In Vienna.")
    api.create(model=script.model, input="Where?", previous_response_id=filled.compacted)
    assert SUMMARY in str(script.messages[-1])
    script.say("5")
    approved = [word(of(filled.asking, "mcp_approval_request")[0], approve=True)]
    body = {"model": script.model, "input": approved, "tools": [filled.tool]}
    answered = api.create(**body, previous_response_id=filled.asking["id"])
    assert of(answered, "mcp_call")[0]["output"] == "5"
    assert tools.names() == ["add", "add"]
    script.say("Later")
    made = api.create(model=script.model, input="Later?", background=True, prompt={"id": filled.prompt})
    (event,) = receiver.wait_for(1, seconds=30)
    assert event.unwrap(filled.webhook_secret).data.id == made["id"]
    assert "Be brief." in str(script.messages[-1])


def test_a_restored_backup_returns_every_object_byte_for_byte(
    api: Api, admin_api: Api, web: WebProcess, worker: WorkerProcess, script: Script, filled: Filled, tools: McpServer,
    receiver: Receiver, target: Target, tmp_path: Path,
) -> None:  # fmt: skip
    paths = list(paths_of(filled.values))
    owner, directory, keys = os.environ["DATABASE_OWNER_URL"], tmp_path / "backup", tmp_path / "keys"
    # Its session is in the database, but not in the backup.
    Client().force_login(User.objects.create(username=uuid4().hex))
    with worker.suspended():
        before = read_all(web.url, paths, api=api, admin=admin_api)
        rows = rows_by_table(owner)
        assert "files, version" in succeed("backup", str(directory), "--keys", str(keys), OTHERS)
        # Processes of other tests may write to some tables, such as the last use of keys.
        busy = {table for table, found in rows_by_table(owner).items() if rows[table] != found}
        # They may change the lists of the whole organization as well, such as the audit log.
        after = read_all(web.url, paths, api=api, admin=admin_api)
    assert [path for path in changed(before, after) if not path.startswith("/organization/")] == []
    assert len(busy) < len(rows) / 2
    assert (keys.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)
    stored = b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())
    for name in ("API_KEY_PEPPER", "ENCRYPTION_KEYS", "SECRET_KEY"):
        assert f"{name}={os.environ[name]}\n" in keys.read_text()
        assert os.environ[name].encode() not in stored
    assert "secrets that could be decrypted" in succeed("restore", str(directory), **target.environment)
    restored_rows = rows_by_table(target.environment["DATABASE_OWNER_URL"])
    assert rows.keys() == restored_rows.keys()
    assert [restored_rows[table][0] for table in backup.SESSIONS] == [0, 0]
    busy.update(backup.SESSIONS)
    assert {
        table: restored_rows[table] for table in rows if table not in busy and rows[table] != restored_rows[table]
    } == {}
    environment: dict[str, Any] = {**target.environment, "WEBHOOK_CONCURRENCY": "4"}
    with running_web(**target.environment) as restored:
        found = read_all(restored.url, paths, api=api, admin=admin_api)
        assert {path: both for path, both in changed(before, found).items() if after[path] == before[path]} == {}
        with httpx2.Client(timeout=PATIENCE) as http, running_worker(**environment):
            check_secrets(Api(http, url=restored.url, caller=api.caller), script, filled, tools, receiver)
    # Nothing is restored into a database that is not empty.
    refused = manage("restore", str(directory), **target.environment)
    assert refused.returncode == 1
    assert "The database is not empty" in refused.stderr


@pytest.mark.nightly
def test_a_backup_while_clients_write_is_consistent(
    api: Api, web: WebProcess, script: Script, target: Target, tmp_path: Path
) -> None:
    script.always(stream(*(piece for one in text(*"abcdefgh") for piece in (one, Pause(0.02)))))
    is_over, responses, files = Event(), list[str](), list[str]()

    def write_responses() -> None:
        with httpx2.Client(timeout=PATIENCE) as http:
            mine = Api(http, url=web.url, caller=api.caller)
            while not is_over.is_set():
                previous = {"previous_response_id": responses[-1]} if responses else {}
                responses.append(mine.events(model=script.model, input="Hi", **previous)[-1]["response"]["id"])

    def write_files() -> None:
        with httpx2.Client(timeout=PATIENCE) as http:
            mine = Api(http, url=web.url, caller=api.caller)
            while not is_over.wait(0.1):
                files.append(upload(mine, "notes.txt", os.urandom(100_000)))

    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write_responses), pool.submit(write_responses), pool.submit(write_files)]
        try:
            eventually(lambda: (len(responses) > 3 and len(files) > 1) or any(one.done() for one in writers))
            earlier = {*responses, *files}
            backup.create(tmp_path / "backup", allow_missing=True)
        finally:
            is_over.set()
        for writer in writers:
            writer.result(30)
    succeed("restore", str(tmp_path / "backup"), **target.environment)
    with running_web(**target.environment) as restored, httpx2.Client(timeout=PATIENCE) as http:
        copy = Api(http, url=restored.url, caller=api.caller)
        completed = [one["id"] for one in listed(copy, "/responses") if one["status"] == "completed"]
        kept = [one["id"] for one in listed(copy, "/files")]
        assert earlier <= {*completed, *kept}
        paths = [f"/files/{one}/content" for one in kept]
        for one in completed:
            paths += [f"/responses/{one}", f"/responses/{one}/input_items", f"/responses/{one}?stream=true"]
        assert changed(read_all(web.url, paths, api=api), read_all(restored.url, paths, api=api)) == {}


def listed(api: Api, path: str) -> list[dict[str, Any]]:
    """Return all objects of a list."""
    found: list[dict[str, Any]] = []
    while True:
        after = {"after": found[-1]["id"]} if found else {}
        page = ok(api.get(path, limit=100, **after))
        found += page["data"]
        if not page["has_more"]:
            return found


@pytest.mark.nightly
def test_a_backup_killed_during_the_dump_is_refused(database: None, servers: PrivateServers, tmp_path: Path) -> None:
    directory, owner = tmp_path / "backup", os.environ["DATABASE_OWNER_URL"]
    with psycopg.connect(owner) as blocker:
        blocker.execute("LOCK TABLE tenants_searchengine IN ACCESS EXCLUSIVE MODE")
        with started("backup", str(directory)):
            eventually(lambda: sessions(servers, "pg_dump", owner) == ["Lock"])
    # The orphaned pg_dump completes its file.
    eventually(lambda: sessions(servers, "pg_dump", owner) == [])
    assert (directory / "database.dump").stat().st_size > 0
    with pytest.raises(backup.BackupError, match="is not a complete backup"):
        backup.restore(directory)
    with pytest.raises(backup.BackupError, match="is not empty"):
        backup.create(directory)


@pytest.mark.nightly
def test_a_backup_killed_while_it_copies_files_is_refused(api: Api, tmp_path: Path) -> None:
    directory, state_dir = tmp_path / "backup", tmp_path / "elsewhere"
    pipe = state_dir / "files" / content_name(upload(api, "notes.txt", "Hello"))
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)

    def opened() -> int:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return 0

    # The command waits for the content of the file, which never comes.
    with started("backup", str(directory), OTHERS, STATE_DIR=str(state_dir)):
        writer = eventually(opened)
    os.close(writer)
    assert (directory / "database.dump").stat().st_size > 0
    with pytest.raises(backup.BackupError, match="is not a complete backup"):
        backup.restore(directory)


@pytest.mark.nightly
def test_a_backup_that_fills_the_disk_is_refused_with_one_sentence(api: Api, tmp_path: Path) -> None:
    upload(api, "large.txt", "x" * 2**21)
    whole = tmp_path / "whole"
    succeed("backup", str(whole), OTHERS)
    dump = (whole / backup.DUMP).stat().st_size // 1024
    # During the dump, and while it copies files.
    for kilobytes in (dump // 2, dump + 1024):
        with small_disk(tmp_path / "disk", kilobytes=kilobytes) as disk:
            failed = manage("backup", str(disk / "backup"), OTHERS)
            assert failed.returncode == 1
            (line,) = failed.stderr.strip().splitlines()
            assert line.startswith("CommandError: ")
            assert "No space left on device" in line
            with pytest.raises(backup.BackupError, match="is not a complete backup"):
                backup.read(disk / "backup")


@pytest.fixture
def complete_state(database: None, tmp_path: Path) -> Path:
    """A `STATE_DIR` with the content of every file in the database."""
    with scope.every_team():
        names = [content_name(pk) for pk in File.objects.values_list("pk", flat=True)]
    for name in names:
        place = tmp_path / "elsewhere" / "files" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"content")
    return tmp_path / "elsewhere"


@pytest.mark.nightly
def test_lost_content_fails_the_backup_unless_it_is_allowed(api: Api, complete_state: Path, tmp_path: Path) -> None:
    file, lost = upload(api, "kept.txt", "Hello"), upload(api, "lost.txt", "Hello")
    kept = complete_state / "files" / content_name(file)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"content")
    refused = manage("backup", str(tmp_path / "refused"), STATE_DIR=str(complete_state))
    sentence = (
        f"The storage lacks the content of files that the database lists (1, such as {lost}): correct STATE_DIR or "
        "FILES_STORAGE, or, if their content is lost for good, add --allow-missing-files."
    )
    assert (refused.returncode, refused.stderr.strip()) == (1, f"CommandError: {sentence}")
    with pytest.raises(backup.BackupError, match="is not a complete backup"):
        backup.read(tmp_path / "refused")
    allowed = tmp_path / "allowed"
    assert "1 files had no content" in succeed("backup", str(allowed), OTHERS, STATE_DIR=str(complete_state))
    assert backup.read(allowed).missing == [content_name(lost)]


@pytest.mark.nightly
def test_files_deleted_and_expired_during_the_backup_do_not_fail_it(
    api: Api, complete_state: Path, servers: PrivateServers, tmp_path: Path
) -> None:
    deleted, expired = upload(api, "deleted.txt", "Hello"), upload(api, "expired.txt", "Hello")
    directory, owner = tmp_path / "backup", os.environ["DATABASE_OWNER_URL"]
    with psycopg.connect(owner) as blocker:
        blocker.execute("LOCK TABLE tenants_searchengine IN ACCESS EXCLUSIVE MODE")
        with started("backup", str(directory), STATE_DIR=str(complete_state)) as process:
            eventually(lambda: sessions(servers, "pg_dump", owner) == ["Lock"])
            ok(api.delete(f"/files/{deleted}"))
            with scope.every_team():
                File.objects.filter(pk=expired).update(expires_at=now(), sweep_at=now())
            blocker.rollback()
            errors = process.communicate(timeout=HANGS_AFTER)[1]
    assert (process.returncode, errors) == (0, b"")
    assert set(backup.read(directory).missing) == {content_name(deleted), content_name(expired)}


@pytest.mark.nightly
def test_an_interrupted_restore_is_completed_by_the_same_command(
    api: Api, servers: PrivateServers, target: Target, tmp_path: Path
) -> None:
    content = os.urandom(100_000)
    restored = tmp_path / "state" / "files" / content_name(upload(api, "notes.txt", content))
    backup.create(tmp_path / "backup", allow_missing=True)
    again, owner = ("restore", str(tmp_path / "backup")), target.environment["DATABASE_OWNER_URL"]
    # Another transaction has created one of the tables, so that pg_restore waits for its end.
    with psycopg.connect(owner) as blocker:
        blocker.execute("CREATE TABLE tenants_team (id text)")
        with started(*again, **target.environment):
            eventually(lambda: sessions(servers, "pg_restore", owner) == ["Lock"])
        assert "still writes to the database" in manage(*again, **target.environment).stderr
        with psycopg.connect(servers.admin) as admin:
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND datname = %s"
            admin.execute(end, ["pg_restore", conninfo_to_dict(owner)["dbname"]])
        eventually(lambda: sessions(servers, "pg_restore", owner) == [])
        blocker.rollback()
    assert restored.read_bytes() == content
    # Another file is not overwritten.
    restored.write_bytes(content[::-1])
    assert "The storage contains another" in manage(*again, **target.environment).stderr
    # Killed in the middle of a file, it leaves only the beginning.
    restored.write_bytes(content[:1000])
    assert "Restored" in succeed(*again, **target.environment)
    assert restored.read_bytes() == content


@pytest.fixture(scope="module")
def made(servers: PrivateServers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a new database, because the database of the tests has many rows, which take long to restore."""
    owner, app = servers.create_database(f"test_{uuid4().hex[:8]}")
    directory = tmp_path_factory.mktemp("backups") / "made"
    for command in (["migrate"], ["backup", str(directory)]):
        succeed(*command, DATABASE_URL=app, DATABASE_OWNER_URL=owner)
    return directory


@pytest.mark.parametrize("name", rest_at_night(["ENCRYPTION_KEYS", "API_KEY_PEPPER"], first=1))
def test_wrong_keys_are_refused_with_one_sentence(name: str, made: Path, target: Target) -> None:
    other = state.generate_secrets()[name]
    refused = manage("restore", str(made), **target.environment, **{name: other})
    sentence = f"{name} differs from that of the backup: set the value that was stored with its keys."
    assert (refused.returncode, refused.stderr.strip()) == (1, f"CommandError: {sentence}")


def test_a_damaged_dump_is_refused(made: Path, target: Target, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", made, copy], check=True)
    dump = (copy / "database.dump").read_bytes()
    (copy / "database.dump").write_bytes(dump[:-1] + bytes([dump[-1] ^ 1]))
    refused = manage("restore", str(copy), **target.environment)
    assert "is missing or damaged" in refused.stderr
    # Nothing was restored, so the same database still works.
    assert "Restored" in succeed("restore", str(made), **target.environment)


def test_an_incomplete_backup_is_refused(made: Path, target: Target, tmp_path: Path) -> None:
    assert "is not a complete backup" in manage("restore", str(tmp_path), **target.environment).stderr


@pytest.mark.nightly
def test_a_backup_is_not_mixed_with_other_files(made: Path) -> None:
    assert "is not empty" in manage("backup", str(made)).stderr


def test_keys_are_not_written_into_the_backup(tmp_path: Path) -> None:
    refused = manage("backup", str(tmp_path / "new"), "--keys", str(tmp_path / "new" / "keys"))
    assert "must not be in the directory of the backup" in refused.stderr


def test_a_drill_restores_into_a_temporary_database(made: Path, servers: PrivateServers) -> None:
    admin = servers._admin
    assert admin is not None
    assert "can be restored" in succeed("restore", "--drill", str(made), "--admin", admin)
