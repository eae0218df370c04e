"""Recovery of a platform to a point in time, as docs/howto/backup.md describes it, with the embedded PostgreSQL."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx2
import psycopg
import pytest

from benchmarks.stack import DATABASE, MANAGE, Servers, is_up, running_servers
from launcher import postgres, processes
from launcher.address import any_free_port
from launcher.home import run_as
from launcher.postgres import Cluster
from tests.support import chunks
from tests.support.api import Api, error
from tests.support.background import text_of
from tests.support.management import ForkedPrograms
from tests.support.upstream import Script, running_upstream, stream
from tests.support.waiting import HANGS_AFTER, eventually
from tests.support.web import ROOT

pytestmark = pytest.mark.slow
# Archives only when `archive_command` is set, which needs the directory.
_SETTINGS = {**postgres.COMMON_SETTINGS, "archive_mode": "on"}


@pytest.fixture
def servers() -> Iterator[Servers]:
    """PostgreSQL with a migrated database, and Valkey."""
    directory = ROOT / ".test-run" / f"state-{os.getpid()}-recovery"
    with running_servers(directory, settings=_SETTINGS, durable=False, programs=ForkedPrograms()) as running:
        yield running


@pytest.fixture
def script(servers: Servers) -> Iterator[Script]:
    """A model that always says hello."""
    with running_upstream() as upstream, upstream.script() as script:
        servers.environment |= {"EGRESS_ALLOW": "127.0.0.1", "API_KEY": servers.route(upstream.url.removesuffix("/v1"))}
        yield script.always(stream(*chunks.text("Hel", "lo")))


@contextmanager
def running_web(servers: Servers) -> Iterator[Api]:
    """Run a web process and yield its API."""
    port = str(any_free_port())
    url = f"http://127.0.0.1:{port}"
    command = (sys.executable, MANAGE, "web", "--host", "127.0.0.1", "--port", port, "--processes", "1")
    web = servers.start("web", *command, is_ready=partial(is_up, f"{url}/readyz"), PORT=port)
    try:
        with httpx2.Client(timeout=HANGS_AFTER) as http:
            yield Api(http, url=url, secret=servers.environment["API_KEY"])
    finally:
        processes.kill_group(web.process)


@contextmanager
def connection(servers: Servers) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Connect as superuser."""
    with psycopg.connect(servers.admin, autocommit=True) as connection:
        yield connection


def archive_log(servers: Servers) -> Path:
    """Let the server archive each segment of its log that it has filled. Return the directory of the archive."""
    archive = servers.cluster.home.make("archive")
    with connection(servers) as superuser:
        superuser.execute(f"ALTER SYSTEM SET archive_command = 'test ! -f {archive}/%f && cp %p {archive}/%f'".encode())
        superuser.execute("SELECT pg_reload_conf()")
    return archive


def base_backup(servers: Servers) -> Path:
    """Make a base backup. Return its directory."""
    cluster = servers.cluster
    base = cluster.home.make("base")
    program = str(cluster.programs.directory / "pg_basebackup")
    arguments = ["-d", cluster.admin, "-D", str(base), "-X", "none", "--checkpoint=fast"]
    done = run_as([program, *arguments], account=cluster.home.account, directory=cluster.home.directory)
    assert done.returncode == 0, done.stderr
    return base


def between_commits(servers: Servers) -> str:
    """Return a time of the database that lies between the commits before and those after this call."""
    time.sleep(0.01)
    with connection(servers) as superuser:
        ((now,),) = superuser.execute("SELECT clock_timestamp()::text").fetchall()
    time.sleep(0.01)
    return str(now)


def recover(servers: Servers, *, base: Path, archive: Path, target: str) -> None:
    """Stop the server, start one on the base backup that recovers to a time, and let `servers` name that one."""
    with connection(servers) as superuser:
        ((last,),) = superuser.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchall()
    eventually((archive / str(last)).exists)
    processes.end(servers.postgres.process, asking=signal.SIGINT, patience=10)
    recovered = replace(servers.cluster, data=base, port=any_free_port())
    (base / "recovery.signal").touch()
    recovered.home.own(base / "recovery.signal")
    settings = {
        **postgres.COMMON_SETTINGS,
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_time": target,
        "recovery_target_action": "promote",
    }
    command = postgres.command(cluster=recovered, settings=settings, log=servers.log("recovered"))
    servers.postgres = servers.run(command, is_ready=partial(has_ended_recovery, recovered))
    for name in ("DATABASE_URL", "DATABASE_OWNER_URL"):
        address = f":{servers.cluster.port}/{DATABASE}"
        servers.environment[name] = servers.environment[name].replace(address, f":{recovered.port}/{DATABASE}")


def has_ended_recovery(cluster: Cluster) -> bool:
    """Return whether the server accepts writes."""
    try:
        with psycopg.connect(cluster.admin) as superuser:
            return superuser.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    except psycopg.OperationalError:
        return False


@pytest.mark.nightly
def test_a_platform_is_recovered_to_the_moment_before_a_mistake(servers: Servers, script: Script) -> None:
    with running_web(servers) as api:
        archive = archive_log(servers)
        kept = [api.create(model=script.model, input="in the base backup")]
        base = base_backup(servers)
        kept.append(api.create(model=script.model, input="after it"))
        target = between_commits(servers)
        deleted = api.delete(f"/responses/{kept[0]['id']}")
        lost = api.create(model=script.model, input="after the mistake")
    assert deleted.status_code == 200
    recover(servers, base=base, archive=archive, target=target)
    with running_web(servers) as api:
        assert [api.retrieve(response["id"]) for response in kept] == kept
        assert error(api.get(f"/responses/{lost['id']}"))[0] == 404
        following = api.create(model=script.model, input="Hi", previous_response_id=kept[1]["id"])
        assert text_of(api.retrieve(following["id"])) == ["Hello"]
