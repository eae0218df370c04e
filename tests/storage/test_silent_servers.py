"""Servers that accept connections and never answer: every attempt times out."""

import socket
from collections.abc import Iterator

import psycopg
import pytest
from pytest_django import Settings

from core.db.database import PlatformConnection, database_conninfo
from launcher import postgres
from server.web import health
from tests.support.machine_clock import machine_time
from tests.support.management import manage
from tests.support.sampling import rest_at_night


@pytest.fixture(params=["accepting", "listening"])
def silent(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the port of a server that never sends anything; the second server does not even accept connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=128 if request.param == "accepting" else 0) as server:
        waiting = []
        if request.param == "listening":
            # These fill the queue, so that others get no answer to their first packet.
            for _ in range(4):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for connection in waiting:
            connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("alias", rest_at_night(["default", "owner"], first=1))
def test_a_connection_attempt_to_a_silent_database_times_out(database: None, silent: int, alias: str) -> None:
    began = machine_time()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(database_conninfo(alias), host="127.0.0.1", port=silent)
    assert machine_time() - began < 15


@pytest.mark.nightly
@pytest.mark.slow
def test_commands_do_not_wait_forever_for_a_silent_database(database: None, silent: int) -> None:
    url = f"postgresql://a:b@127.0.0.1:{silent}/c"
    assert not postgres.is_ready(admin=url)
    assert manage("migrate", DATABASE_URL=url, DATABASE_OWNER_URL=url).returncode


@pytest.mark.slow
def test_the_readiness_check_does_not_wait_for_a_silent_redis(settings: Settings, silent: int) -> None:
    settings.REDIS_URL, settings.LIMITS_FAIL = f"redis://127.0.0.1:{silent}/0", "closed"
    began = machine_time()
    assert health._broker() == "Redis is unreachable"
    assert machine_time() - began < 15


def test_the_last_working_server_is_tried_first(database: None, silent: int) -> None:
    with psycopg.connect(database_conninfo()) as connection:
        host, port = connection.info.host, connection.info.port
    both = {"host": f"127.0.0.1,{host}", "port": f"{silent},{port}", "connect_timeout": 2}
    PlatformConnection.connect(database_conninfo(), **both).close()
    began = machine_time()
    PlatformConnection.connect(database_conninfo(), **both).close()
    assert machine_time() - began < 1.5
