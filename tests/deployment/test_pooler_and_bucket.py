"""The platform behind PgBouncer in transaction mode, with its files in an S3 bucket."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import httpx2
import psycopg
import pytest
from openai import OpenAI
from storages.backends.s3 import S3Storage

from launcher.address import any_free_port, is_free
from launcher.testing import PrivateServers
from tests.support.api import Api, Caller, ok
from tests.support.background import ended
from tests.support.batches import asked, line
from tests.support.batches import ended as batch_ended
from tests.support.chunks import text as chunks_of_text
from tests.support.management import succeed
from tests.support.programs import need
from tests.support.upstream import Script, ScriptedUpstream, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web
from tests.support.workers import other_workers_suspended, running_worker

pytestmark = pytest.mark.slow

BUCKET = "files"
ACCESS_KEY, SECRET_KEY = "platform", "bucket-secret-for-tests"
SERVER_CONNECTIONS = 8


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory that the account of PgBouncer can enter."""
    made = Path(tempfile.mkdtemp(prefix="pooler-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def pooled_url(servers: PrivateServers, directory: Path) -> Iterator[str]:
    """DATABASE_URL of a PgBouncer that gives each transaction one of few connections."""
    program, port = need("pgbouncer", package="pgbouncer"), any_free_port()
    url = urlsplit(servers.app_url)
    users = directory / "users.txt"
    users.write_text(f'"{unquote(url.username or "")}" "{unquote(url.password or "")}"\n')
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host={url.hostname} port={url.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = scram-sha-256\nauth_file = {users}\nadmin_users = {url.username}\n"
        f"pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 500\n"
    )
    # PgBouncer refuses to run as root.
    account = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, "-q", *account, str(configuration)], stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: process.poll() is not None or not is_free(host="127.0.0.1", port=port))
        assert process.poll() is None, process.communicate()[1]
        yield f"postgresql://{url.username}:{url.password}@127.0.0.1:{port}{url.path}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def bucket(directory: Path) -> Iterator[S3Storage]:
    """A bucket of an S3 server."""
    ports = {
        name: any_free_port()
        for name in ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port")
    }
    ports |= {name: any_free_port() for name in ("filer.port.grpc", "s3.port", "s3.port.grpc")}
    identity = {
        "name": "platform",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    configuration, data = directory / "s3.json", directory / "data"
    configuration.write_text(json.dumps({"identities": [identity]}))
    data.mkdir()
    options = ["-s3", f"-dir={data}", f"-s3.config={configuration}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    options += ["-master.volumeSizeLimitMB=64", "-volume.max=20", *(f"-{name}={port}" for name, port in ports.items())]
    # Two catalogs, with fixed ports.
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("weed"), "server", *options],
            cwd=directory,
            env={"HOME": str(directory), "PATH": os.defpath},
            stdout=log,
            stderr=log,
        )
    storage = S3Storage(**_options(ports["s3.port"]))

    def is_created() -> bool:
        assert process.poll() is None, (directory / "weed.log").read_text()
        try:
            create_bucket(storage)
        except Exception:
            return False
        return True

    try:
        eventually(is_created, seconds=60)
        yield storage
    finally:
        process.kill()
        process.wait()


def create_bucket(bucket: S3Storage) -> None:
    """Create a bucket and write to it."""
    bucket.bucket.create()
    bucket.bucket.put_object(Key="probe", Body=b"1")


def variables_of(bucket: S3Storage) -> dict[str, str]:
    """Return the environment variables of a platform with its files in a bucket."""
    options = _options(urlsplit(str(bucket.endpoint_url)).port or 0, name=bucket.bucket_name)
    return {
        "FILES_STORAGE": "storages.backends.s3.S3Storage",
        "FILES_STORAGE_OPTIONS": json.dumps(options),
    }


def _options(port: int, *, name: str = BUCKET) -> dict[str, object]:
    return {
        "bucket_name": name,
        "endpoint_url": f"http://127.0.0.1:{port}",
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "region_name": "us-east-1",
        "addressing_style": "path",
        "signature_version": "s3v4",
        "default_acl": None,
    }


@pytest.fixture(scope="module")
def pooled_web(upstream: ScriptedUpstream, pooled_url: str, bucket: S3Storage) -> Iterator[WebProcess]:
    """A web process and a worker behind the pooler, with files in the bucket."""
    variables = {"DATABASE_URL": pooled_url, **variables_of(bucket)}
    # A worker of other tests would write results to its own files.
    with (
        other_workers_suspended(),
        running_worker(concurrency=200, **variables),
        running_web(**variables) as process,
    ):
        yield process


@pytest.fixture
def pooled(pooled_web: WebProcess, http: httpx2.Client, caller: Caller) -> Api:
    """The API client of `caller` at that web process."""
    return Api(http, url=pooled_web.url, caller=caller)


def test_a_conversation_continues_over_json_and_streams(pooled_web: WebProcess, caller: Caller, script: Script) -> None:
    script.say("One").say("Two").say("Three")
    with OpenAI(base_url=f"{pooled_web.url}/v1", api_key=caller.secret, max_retries=0) as client:
        first = client.responses.create(model=script.model, input="1")
        with client.responses.stream(model=script.model, input="2", previous_response_id=first.id) as events:
            second = events.get_final_response()
        conversation = client.conversations.create()
        third = client.responses.create(model=script.model, input="3", conversation=conversation.id)
        assert [one.output_text for one in (first, second, third)] == ["One", "Two", "Three"]
        assert client.responses.retrieve(second.id).output_text == "Two"
        assert len(client.conversations.items.list(conversation.id).data) == 2
        client.responses.delete(first.id)
    assert [len(messages) for messages in script.messages] == [1, 3, 1]


def test_a_worker_runs_background_responses(pooled: Api, script: Script) -> None:
    script.say("Later")
    created = pooled.post("/responses", {"model": script.model, "input": "Hi", "background": True}).json()
    assert ended(pooled, created["id"])["status"] == "completed"


def test_many_clients_share_few_connections(pooled: Api, script: Script, pooled_url: str) -> None:
    texts = [f"Answer {number}" for number in range(3 * SERVER_CONNECTIONS)]
    for text in texts:
        script.say(text)
    queued = [
        pooled.post("/responses", {"model": script.model, "input": "Hi", "background": True}).json()["id"]
        for _ in texts
    ]
    assert {ended(pooled, one, seconds=60)["status"] for one in queued} == {"completed"}
    url = urlsplit(pooled_url)
    console = f"postgresql://{url.username}:{url.password}@127.0.0.1:{url.port}/pgbouncer"
    with closing(psycopg.connect(console, autocommit=True)) as connection:
        shown = connection.execute("SHOW SERVERS").fetchall()
    assert 0 < len(shown) <= SERVER_CONNECTIONS


def test_files_are_stored_in_the_bucket_and_removed_from_it(pooled: Api, bucket: S3Storage) -> None:
    content = b"x" * 3_000_000
    uploaded = pooled.request(
        "POST", "/files", files={"file": ("notes.txt", content)}, data={"purpose": "user_data"}
    ).json()
    keys = [one.key for one in bucket.bucket.objects.all() if one.key.endswith(uploaded["id"])]
    assert len(keys) == 1
    assert pooled.get(f"/files/{uploaded['id']}/content").content == content
    assert pooled.delete(f"/files/{uploaded['id']}").json()["deleted"] is True
    eventually(lambda: not [one for one in bucket.bucket.objects.all() if one.key == keys[0]])


def test_a_batch_writes_megabytes_of_results_to_the_bucket(pooled: Api, script: Script) -> None:
    script.always(stream(*chunks_of_text("Hello")))
    body = {"model": script.model, "input": "Hi"}
    # Responses repeat their instructions.
    lines = [line(f"{n}", **body, instructions="x" * 200_000) for n in range(20)]
    batch = batch_ended(pooled, asked(pooled, *lines)["id"])
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    content = pooled.get(f"/files/{batch['output_file_id']}/content").content
    assert len(content) > 20 * 200_000
    assert len(content.splitlines()) == 20


@pytest.mark.nightly
def test_a_backup_of_one_bucket_is_restored_into_another(
    pooled: Api, bucket: S3Storage, servers: PrivateServers, http: httpx2.Client, tmp_path: Path
) -> None:
    content = os.urandom(3_000_000)
    upload = {"file": ("notes.bin", content)}
    stored = ok(pooled.request("POST", "/files", files=upload, data={"purpose": "user_data"}))
    backup = tmp_path / "backup"
    # The database has files of other tests, whose content is not in the bucket.
    succeed("backup", str(backup), "--allow-missing-files", **variables_of(bucket))
    owner, app = servers.create_database(f"test_{uuid4().hex[:8]}")
    port = urlsplit(str(bucket.endpoint_url)).port or 0
    other = S3Storage(**_options(port, name="restored"))
    create_bucket(other)
    environment = {"DATABASE_URL": app, "DATABASE_OWNER_URL": owner, **variables_of(other)}
    succeed("restore", str(backup), **environment)
    with running_web(**environment) as restored:
        api = Api(http, url=restored.url, caller=pooled.caller)
        assert api.get(f"/files/{stored['id']}/content").content == content
