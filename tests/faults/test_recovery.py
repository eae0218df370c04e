"""Recovery to a point in time, as docs/howto/backup.md describes it, with the embedded PostgreSQL."""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psycopg
import pytest

from launcher import postgres, processes
from launcher.address import any_free_port
from launcher.home import run_as, server_home
from launcher.postgres import Cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
_PASSWORD = "superuser-secret"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A cluster, and the directory of its archive."""

    cluster: Cluster
    archive: Path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A new cluster that is not running."""
    home = server_home(state_dir=tmp_path)
    try:
        cluster = postgres.open_cluster(home=home, port=any_free_port(), password=_PASSWORD, durable=False)
        yield Place(cluster=cluster, archive=home.make("archive"))
    finally:
        shutil.rmtree(home.directory, ignore_errors=True)


@contextmanager
def running(cluster: Cluster, *, log: Path, **settings: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Run a server and yield a connection to it."""
    command = postgres.command(cluster=cluster, settings={**postgres.COMMON_SETTINGS, **settings}, log=log)
    with ExitStack() as stack:
        process = processes.start(command)
        stack.callback(processes.end, process, asking=command.stop_signal, patience=10)
        ready = processes.wait_for_start(
            process, ready=partial(postgres.is_ready, admin=cluster.admin), written=lambda: log.stat().st_size
        )
        assert ready, log.read_text()
        connection = psycopg.connect(cluster.admin, autocommit=True)
        stack.callback(connection.close)
        yield connection


def insert(connection: "psycopg.Connection[tuple[object, ...]]", name: str) -> str:
    """Commit a row and end the log segment that contains it. Return the name of the segment."""
    connection.execute("INSERT INTO mark VALUES (%s)", [name])
    ((segment,),) = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchall()
    return str(segment)


def test_a_database_is_recovered_to_the_moment_before_a_mistake(place: Place, tmp_path: Path) -> None:
    cluster, log = place.cluster, tmp_path / "postgres.log"
    home = cluster.home
    base = home.make("base")
    archiving = {
        "archive_mode": "on",
        "archive_command": f"test ! -f {place.archive}/%f && cp %p {place.archive}/%f",
    }
    with running(cluster, log=log, **archiving) as connection:
        connection.execute("CREATE TABLE mark (name text)")
        insert(connection, "in the base backup")
        program = str(cluster.programs.directory / "pg_basebackup")
        arguments = ["-d", cluster.admin, "-D", str(base), "-X", "none", "--checkpoint=fast"]
        done = run_as([program, *arguments], account=home.account, directory=home.directory)
        assert done.returncode == 0, done.stderr
        insert(connection, "after it")
        time.sleep(0.01)  # the target lies between two commits
        ((target,),) = connection.execute("SELECT clock_timestamp()::text").fetchall()
        time.sleep(0.01)
        last = insert(connection, "by mistake")
        eventually((place.archive / last).exists)
    recovered = replace(cluster, data=base, port=any_free_port())
    signal = base / "recovery.signal"
    signal.touch()
    home.own(signal)
    recovery = {
        "restore_command": f"cp {place.archive}/%f %p",
        "recovery_target_time": str(target),
        "recovery_target_action": "promote",
    }
    with running(recovered, log=log, **recovery) as connection:
        eventually(lambda: connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,))
        assert connection.execute("SELECT name FROM mark").fetchall() == [("in the base backup",), ("after it",)]
        insert(connection, "afterwards")
