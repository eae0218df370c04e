"""`manage.py backup` and `restore`: what was restored equals the original, byte for byte, through the API."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from launcher import state
from launcher.testing import PrivateServers
from tests.servers import ROOT
from tests.support.api import Api, Caller, ok
from tests.support.background import ended
from tests.support.upstream import Script
from tests.support.web import WebProcess, running_web
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.slow


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


def manage(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a management command."""
    command = [sys.executable, "manage.py", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def succeed(*arguments: str, **variables: str) -> str:
    """Run a management command that must succeed and return its output."""
    done = manage(*arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(api: Api, script: Script, web: WebProcess, caller: Caller) -> list[str]:
    """Create an object of each kind and return the URLs that show them."""
    script.say("Hello").say("Hello again").say("Later").say("A chat")
    conversation = ok(api.post("/conversations", {"metadata": {"topic": "backups"}}))
    first = api.create(model=script.model, input="Hi", conversation=conversation["id"], metadata={"number": "1"})
    with api.stream(model=script.model, input="And now?", previous_response_id=first["id"]) as live:
        streamed = live.rest()[-1]["response"]
    later = ended(api, api.create(model=script.model, input="Hi", background=True)["id"])
    body = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}], "store": True}
    chat = ok(api.post("/chat/completions", body))
    with httpx2.Client(headers=api.headers, timeout=30) as http:
        content = {"file": ("notes.txt", "Grüße\n" * 50_000, "text/plain")}
        file = ok(http.post(f"{web.url}/v1/files", data={"purpose": "user_data"}, files=content))
    endpoint = {"name": "books", "url": "https://example.com/hook", "event_types": ["response.completed"]}
    webhook = ok(api.post("/webhook_endpoints", endpoint))
    responses = [first["id"], streamed["id"], later["id"]]
    return [
        *(f"/responses/{one}" for one in responses),
        *(f"/responses/{one}/input_items" for one in responses),
        *(f"/responses/{one}?stream=true" for one in responses),
        "/responses",
        f"/conversations/{conversation['id']}",
        f"/conversations/{conversation['id']}/items",
        f"/chat/completions/{chat['id']}",
        f"/chat/completions/{chat['id']}/messages",
        "/files",
        f"/files/{file['id']}",
        f"/files/{file['id']}/content",
        f"/webhook_endpoints/{webhook['id']}",
        "/models",
    ]


def read_all(url: str, paths: list[str], caller: Caller) -> dict[str, bytes]:
    """Return the bytes of each object."""
    found = {}
    with httpx2.Client(headers={"Authorization": f"Bearer {caller.secret}"}, timeout=30) as http:
        for path in paths:
            answer = http.get(f"{url}/v1{path}")
            assert answer.status_code == 200, (path, answer.text)
            found[path] = answer.content
    return found


def test_a_restored_backup_returns_every_object_byte_for_byte(
    api: Api,
    script: Script,
    web: WebProcess,
    caller: Caller,
    worker: WorkerProcess,
    target: Target,
    tmp_path: Path,
) -> None:
    paths = fill(api, script, web, caller)
    before = read_all(web.url, paths, caller)
    directory, keys = tmp_path / "backup", tmp_path / "keys"
    assert "files, version" in succeed("backup", str(directory), "--keys", str(keys))
    assert (keys.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)
    stored = b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())
    for name in ("API_KEY_PEPPER", "ENCRYPTION_KEYS", "SECRET_KEY"):
        assert f"{name}={os.environ[name]}\n" in keys.read_text()
        assert os.environ[name].encode() not in stored
    assert "secrets that could be decrypted" in succeed("restore", str(directory), **target.environment)
    with running_web(**target.environment) as restored:
        assert read_all(restored.url, paths, caller) == before
        # And it works: another response continues the restored chain, with restored keys of the upstream.
        script.say("Still here")
        with httpx2.Client(timeout=30) as http:
            again = Api(http, url=restored.url, caller=caller)
            first = paths[0].rpartition("/")[2]
            assert again.create(model=script.model, input="Still?", previous_response_id=first)["status"] == "completed"
    # Into a database that is not empty, nothing is restored.
    refused = manage("restore", str(directory), **target.environment)
    assert refused.returncode == 1
    assert "The database is not empty" in refused.stderr


@pytest.fixture(scope="module")
def made(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of the test database."""
    directory = tmp_path_factory.mktemp("backups") / "made"
    succeed("backup", str(directory))
    return directory


@pytest.mark.parametrize("name", ["API_KEY_PEPPER", "ENCRYPTION_KEYS"])
def test_wrong_keys_are_refused_with_one_sentence(name: str, made: Path, target: Target) -> None:
    other = state.generate_secrets()[name]
    refused = manage("restore", str(made), **target.environment, **{name: other})
    sentence = f"{name} is not that of the backup: set the value that was stored with its keys."
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
    assert "is no complete backup" in manage("restore", str(tmp_path), **target.environment).stderr


def test_a_backup_is_not_mixed_with_other_files(made: Path) -> None:
    assert "is not empty" in manage("backup", str(made)).stderr


def test_keys_are_not_written_into_the_backup(tmp_path: Path) -> None:
    refused = manage("backup", str(tmp_path / "new"), "--keys", str(tmp_path / "new" / "keys"))
    assert "must not be in the directory of the backup" in refused.stderr


def test_a_drill_restores_into_a_temporary_database(made: Path, servers: PrivateServers) -> None:
    admin = servers._admin
    assert admin is not None
    assert "can be restored" in succeed("restore", "--drill", str(made), "--admin", admin)
