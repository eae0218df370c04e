"""Faults of PostgreSQL: clients wait or get a documented error, nothing is lost, and everything recovers by itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from benchmarks.stack import is_up
from launcher.address import any_free_port
from tests.support.api import Api, error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.deployment import (
    DATABASE_TIMEOUT_SECONDS,
    MAX_CONNECTIONS,
    RECOVERY_SECONDS,
    Deployment,
    fill,
    running_deployment,
    script_fixture,
    small_disk,
)
from tests.support.machine_clock import machine_time
from tests.support.sampling import rest_at_night
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import ROOT
from tests.support.webhooks import running_receiver

pytestmark = pytest.mark.slow
UNAVAILABLE = {"database_unavailable"}
"""The codes of errors that clients may get in faults of the database."""
script = script_fixture()


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """The deployment of all tests of this file, which leave it running."""
    with running_deployment() as running:
        yield running
        # The lease of a run that could not be ended expires first.
        eventually(lambda: running.unfinished() == 0)


def terminate_sessions(deployment: Deployment, *, like: str = "%") -> int:
    """Terminate the platform's sessions whose application name is like this, and return their number."""
    rows = deployment.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'platform_app'"
        " AND backend_type = 'client backend' AND application_name LIKE %s",
        like,
    )
    return len(rows)


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", rest_at_night([signal.SIGQUIT, signal.SIGINT], first=1), ids=["immediate", "fast"])
def test_runs_in_progress_survive_a_restart(deployment: Deployment, script: Script, how: signal.Signals) -> None:
    api, gate = deployment.api, Gate()
    script.always(stream(chunk(content="Hel"), gate, *text("lo")))
    # The request that showed that the deployment works.
    earlier = len(script.received)
    with running_receiver() as receiver, ThreadPoolExecutor() as threads:
        endpoint = api.post(
            "/webhook_endpoints",
            {"name": f"restart {how.name}", "url": receiver.url, "event_types": ["response.completed"]},
        ).json()
        queued = api.create(model=script.model, input="Hi", background=True)
        json = threads.submit(api.create, model=script.model, input="Hi")
        with api.stream(model=script.model, input="Hi") as live:
            created = live.next()
            script.wait_for_call(earlier + 2)
            deployment.stop(deployment.postgres, how)
            deployment.start(deployment.postgres)
            began = machine_time()
            gate.open()
            assert types([created, *live.rest()])[-1] == "response.completed"
        assert (json.result()["status"], text_of(json.result())) == ("completed", ["Hello"])
        assert text_of(ended(api, queued["id"])) == ["Hello"]
        receiver.wait_for(1, seconds=RECOVERY_SECONDS)
        assert machine_time() - began < RECOVERY_SECONDS
        api.delete(f"/webhook_endpoints/{endpoint['id']}")


def test_clients_get_503_during_an_outage_and_readiness_returns_without_flapping(
    deployment: Deployment, script: Script
) -> None:
    with deployment.load(script.model) as answers:
        deployment.stop(deployment.postgres, signal.SIGQUIT)
        eventually(lambda: deployment.readiness() == 503)
        refused = deployment.api.get("/models")
        assert error(refused) == (503, None, "database_unavailable")
        assert refused.headers["retry-after"]
        deployment.start(deployment.postgres)
        began = machine_time()
        eventually(lambda: deployment.readiness() == 200, seconds=RECOVERY_SECONDS)
        # Once reported, readiness does not end again.
        assert [status for status in (probe_soon(deployment) for _ in range(20)) if status != 200] == []
        steady = deployment.wait_until_steady(script.model, answers)
    assert steady - began < RECOVERY_SECONDS
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)


def probe_soon(deployment: Deployment) -> int:
    """Return the status of `/readyz` after a moment."""
    time.sleep(0.1)
    return deployment.readiness()


def test_a_killed_backend_costs_no_completed_response(deployment: Deployment, script: Script) -> None:
    with deployment.load(script.model) as answers:
        eventually(lambda: len(answers) > 5)
        (pid,) = deployment.sql(
            "SELECT pid FROM pg_stat_activity WHERE usename = 'platform_app' ORDER BY backend_start DESC LIMIT 1"
        )[0]
        # PostgreSQL ends all other sessions then, and recovers as after a crash.
        os.kill(pid, signal.SIGKILL)
        steady = deployment.wait_until_steady(script.model, answers)
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)


# -- a server that does not answer -------------------------------------------------------------------------------------


def test_a_statement_of_a_killed_process_ends(deployment: Deployment) -> None:
    url = deployment.servers.environment["DATABASE_URL"]
    program = "import psycopg, sys; psycopg.connect(sys.argv[1], application_name='killed').execute(sys.argv[2])"
    running = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'killed' AND state = 'active'"
    with subprocess.Popen([sys.executable, "-c", program, url, "SELECT pg_sleep(3600)"]) as client:
        try:
            eventually(lambda: deployment.sql(running))
        finally:
            client.kill()
    eventually(lambda: not deployment.sql(running))


@pytest.mark.nightly
def test_a_hung_server_gives_503_within_the_time_limit(deployment: Deployment, script: Script) -> None:
    with deployment.load(script.model) as answers:
        eventually(lambda: len(answers) > 5)
        with deployment.paused(deployment.postgres):
            eventually(lambda: deployment.readiness() == 503)
            refused = deployment.api.get("/models")
            assert error(refused) == (503, None, "database_unavailable")
        steady = deployment.wait_until_steady(script.model, answers)
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)
    assert max(answer.seconds for answer in answers) < DATABASE_TIMEOUT_SECONDS + 4


def test_every_request_is_answered_within_one_time_limit(deployment: Deployment, script: Script) -> None:
    api, body = deployment.api, {"model": script.model, "input": "Hi"}
    known = api.create(**body)["id"]
    chat = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}]}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        *[("POST", "/v1/responses", {"json": fields}) for fields in (body, {**body, "background": True})],
        *[("POST", "/v1/responses", {"json": {**body, "stream": True, "store": store}}) for store in (True, False)],
        ("POST", "/v1/responses", {"json": {**body, "previous_response_id": known}}),
        *[("POST", "/v1/chat/completions", {"json": {**chat, "stream": streamed}}) for streamed in (True, False)],
        ("POST", "/v1/messages", {"json": {**chat, "max_tokens": 100}}),
        ("POST", "/v1/conversations", {"json": {}}),
        ("POST", "/v1/files", {"data": {"purpose": "user_data"}, "files": {"file": ("a.txt", b"a")}}),
        *[("GET", path, {}) for path in ("/v1/models", "/v1/files", f"/v1/responses/{known}?stream=true")],
        *[("DELETE", path, {}) for path in (f"/v1/responses/{known}", "/v1/files/file-1")],
        *[("GET", path, {"headers": {"cookie": "sessionid=a"}}) for path in ("/", "/system/")],
    ]

    def send(method: str, path: str, options: dict[str, Any]) -> tuple[str, int, float]:
        headers = {**api.headers, **options.pop("headers", {})}
        began = machine_time()
        answer = deployment.http.request(method, deployment.url + path, headers=headers, **options)
        return f"{method} {path}", answer.status_code, machine_time() - began

    # Also to requests that wait for a thread which others use.
    with deployment.paused(deployment.postgres), ThreadPoolExecutor(2 * len(requests)) as threads:
        answers = [sent.result() for sent in [threads.submit(send, *one) for one in [*requests, *requests]]]
    # A second for the cancellation of a statement, and two for finding out what became of a commit.
    assert [answer for answer in answers if answer[2] > DATABASE_TIMEOUT_SECONDS + 4] == []
    # 529 is Anthropic's status for a server that cannot serve at the moment.
    assert [answer for answer in answers if answer[1] not in {200, 302, 503, 529} and answer[0].count("/v1/")] == []
    deployment.wait_until_recovered(script.model)


def test_requests_wait_for_a_locked_table(deployment: Deployment, script: Script) -> None:
    with psycopg.connect(deployment.servers.admin) as other, ThreadPoolExecutor() as threads:
        other.execute("LOCK TABLE responses_response IN ACCESS EXCLUSIVE MODE")
        answer = threads.submit(deployment.ask, script.model)
        time.sleep(1)
        assert not answer.done()
        other.rollback()
        assert (answer.result().status, answer.result().text) == (200, ["Hello"])


@pytest.mark.nightly
def test_requests_are_slower_while_the_server_is_slow(deployment: Deployment, script: Script) -> None:
    over = threading.Event()

    def slow_down() -> None:
        while not over.is_set():
            with deployment.paused(deployment.postgres):
                over.wait(0.3)
            over.wait(0.1)

    with deployment.load(script.model) as answers:
        eventually(lambda: len(answers) > 5)
        with ThreadPoolExecutor() as threads:
            slowing = threads.submit(slow_down)
            try:
                known = len(answers)
                queued = deployment.api.create(model=script.model, input="Hi", background=True)
                assert text_of(ended(deployment.api, queued["id"], seconds=60)) == ["Hello"]
                eventually(lambda: len(answers) > known + 8, seconds=60)
            finally:
                over.set()
                slowing.result()
        steady = deployment.wait_until_steady(script.model, answers)
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)
    slowed = [answer for answer in answers[known:] if answer.status == 200]
    # A pause is as long as 0.3 s.
    assert max(answer.seconds for answer in slowed) > 0.1
    assert max(answer.seconds for answer in answers) < 3 * RECOVERY_SECONDS


def test_statements_beyond_the_time_limit_give_503(deployment: Deployment, script: Script) -> None:
    def set_delay(seconds: int) -> None:
        # Not in the trigger itself: changing that would wait for the statements that it delays.
        body = f"BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END"
        deployment.sql(f"CREATE OR REPLACE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS '{body}'")

    set_delay(0)
    deployment.sql(
        "CREATE TRIGGER delay BEFORE INSERT ON responses_response FOR EACH STATEMENT EXECUTE FUNCTION delay()"
    )
    try:
        with deployment.load(script.model) as answers:
            eventually(lambda: len(answers) > 5)
            set_delay(60)
            eventually(lambda: [answer for answer in [*answers] if answer.status == 503])
            # Requests without such a statement are served.
            assert deployment.api.get("/models").status_code == 200
            set_delay(0)
            steady = deployment.wait_until_steady(script.model, answers)
        # Abandoned statements do not remain in the server.
        asleep = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        eventually(lambda: not deployment.sql(asleep), seconds=RECOVERY_SECONDS)
    finally:
        deployment.sql("DROP FUNCTION delay CASCADE")
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)
    assert {answer.code for answer in answers if answer.status == 503} == {"database_unavailable"}
    assert max(answer.seconds for answer in answers) < 5 * DATABASE_TIMEOUT_SECONDS


# -- conflicts with others ---------------------------------------------------------------------------------------------


def wait_for_deadlock(deployment: Deployment, other: "psycopg.Connection[Any]", statement: str, *values: str) -> None:
    """Execute a statement of another session once the platform waits for it, so that each waits for the other."""
    blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    eventually(lambda: deployment.sql(blocked, other.info.backend_pid))
    assert other.execute(statement.encode(), values).fetchall()
    other.rollback()


@pytest.fixture
def other(deployment: Deployment) -> Iterator["psycopg.Connection[Any]"]:
    """A session of another program. PostgreSQL resolves a deadlock with it by cancelling the platform's statement."""
    deployment.sql("ALTER SYSTEM SET deadlock_timeout = '1500ms'")
    deployment.sql("SELECT pg_reload_conf()")
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = deployment.sql(deadlocks)
    with psycopg.connect(deployment.servers.admin) as session:
        session.execute("SET deadlock_timeout = '60s'")
        session.commit()
        yield session
    eventually(lambda: deployment.sql(deadlocks) > before)
    deployment.sql("ALTER SYSTEM RESET deadlock_timeout")
    deployment.sql("SELECT pg_reload_conf()")


def test_the_commit_of_a_run_is_repeated_after_a_deadlock(
    deployment: Deployment, script: Script, other: "psycopg.Connection[Any]"
) -> None:
    api, gate = deployment.api, Gate()
    conversation = api.post("/conversations", {}).json()["id"]
    script.then(stream(*text("Hel"), gate, *text("lo")))
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(api.create, model=script.model, input="Hi", conversation=conversation)
        gate.wait_until_reached()
        lock = "SELECT response_id FROM responses_conversationhold WHERE conversation_id = %s FOR UPDATE"
        ((response_id,),) = other.execute(lock, [conversation]).fetchall()
        gate.open()
        # The run updates its response before it releases the conversation.
        wait_for_deadlock(deployment, other, "SELECT 1 FROM responses_response WHERE id = %s FOR UPDATE", response_id)
        answer = asked.result()
    assert (answer["status"], text_of(answer)) == ("completed", ["Hello"])
    assert api.retrieve(response_id)["status"] == "completed"
    assert len(ok(api.get(f"/conversations/{conversation}/items"))["data"]) == 2


def test_a_request_gets_503_after_a_deadlock(
    deployment: Deployment, script: Script, other: "psycopg.Connection[Any]"
) -> None:
    api = deployment.api
    item = {"type": "message", "role": "user", "content": "Hi"}
    conversation = ok(api.post("/conversations", {"items": [item]}))["id"]
    path = f"/conversations/{conversation}"
    with ThreadPoolExecutor() as threads:
        placed = "SELECT item_id FROM conversations_placement WHERE owner = %s"
        other.execute(f"SELECT key FROM conversations_item WHERE key IN ({placed}) FOR UPDATE", [conversation])
        asked = threads.submit(api.delete, path)
        # The deletion locks the conversation before its items.
        wait_for_deadlock(
            deployment, other, "SELECT 1 FROM conversations_conversation WHERE id = %s FOR UPDATE", conversation
        )
        refused = asked.result()
    assert error(refused) == (503, None, "database_unavailable")
    assert refused.headers["retry-after"]
    assert len(ok(api.get(f"{path}/items"))["data"]) == 1
    assert ok(api.delete(path))["deleted"] is True


# -- a server that refuses ---------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_clients_get_503_while_others_have_all_connections(deployment: Deployment, script: Script) -> None:
    api, gate = deployment.api, Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    running = api.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with deployment.load(script.model) as answers, ExitStack() as others:
        eventually(lambda: len(answers) > 5)
        eventually(lambda: take_connections(deployment, others))
        taken = machine_time()
        gate.open()
        eventually(lambda: deployment.readiness() == 503, seconds=RECOVERY_SECONDS)
        # Each client waits for ten seconds first.
        eventually(lambda: {answer.code for answer in [*answers][-4:]} == UNAVAILABLE)
        # Longer than a run with a waiting client would wait.
        eventually(lambda: machine_time() > taken + 12)
        assert deployment.readiness() == 503
        others.close()
        steady = deployment.wait_until_steady(script.model, answers)
    # Its lease has expired, so its turn may be repeated.
    assert text_of(ended(api, running["id"], seconds=RECOVERY_SECONDS))[-1:] == ["Hello"]
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)
    # Earlier requests may have lost their connections several times.
    assert max(answer.seconds for answer in answers if answer.began > taken) < 3 * RECOVERY_SECONDS


def take_connections(deployment: Deployment, others: ExitStack) -> bool:
    """Take all connections, also those of the platform; return whether others have all but those for superusers.

    The platform may win the race for a connection that it has just lost.
    """
    # While it is opening some, superusers may find none for themselves either.
    with suppress(psycopg.OperationalError):
        deployment.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'platform_app'"
            " AND backend_type = 'client backend' AND application_name <> 'other'"
        )
    with suppress(psycopg.OperationalError):
        for _ in range(MAX_CONNECTIONS):
            other = psycopg.connect(deployment.servers.environment["DATABASE_URL"], application_name="other")
            others.callback(other.close)
    with suppress(psycopg.OperationalError):
        ((all_taken,),) = deployment.sql(
            "SELECT count(*) = current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int"
            " FROM pg_stat_activity WHERE application_name = 'other'"
        )
        return bool(all_taken)
    return False


@pytest.mark.nightly
def test_a_read_only_server_gives_503_until_it_accepts_writes(deployment: Deployment, script: Script) -> None:
    with deployment.load(script.model) as answers:
        deployment.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        deployment.sql("SELECT pg_reload_conf()")
        eventually(lambda: deployment.readiness() == 503)
        time.sleep(1)
        deployment.sql("ALTER SYSTEM RESET default_transaction_read_only")
        deployment.sql("SELECT pg_reload_conf()")
        steady = deployment.wait_until_steady(script.model, answers)
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)


@pytest.mark.nightly
def test_sessions_that_are_terminated_at_random_cost_no_completed_response(
    deployment: Deployment, script: Script
) -> None:
    with deployment.load(script.model) as answers:
        for _ in range(10):
            terminate_sessions(deployment)
            time.sleep(0.2)
        steady = deployment.wait_until_steady(script.model, answers)
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)
    # No session remains in a transaction; current transactions end.
    inside = "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    eventually(lambda: not deployment.sql(inside), seconds=RECOVERY_SECONDS)


def test_a_stream_continues_for_its_followers_without_notifications(deployment: Deployment, script: Script) -> None:
    api, gate = deployment.api, Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    created = api.create(model=script.model, input="Hi", background=True)
    with api.follow(created["id"]) as live:
        assert live.next()["type"] == "response.created"
        script.wait_for_call()
        assert terminate_sessions(deployment, like="platform-notices") > 0
        gate.open()
        assert types(live.rest())[-1] == "response.completed"
    notices = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'platform-notices'"
    eventually(lambda: deployment.sql(notices), seconds=RECOVERY_SECONDS)


# -- full disks --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_responses_wait_while_the_disk_of_the_server_is_full(deployment: Deployment, script: Script) -> None:
    api, gate, home = deployment.api, Gate(), deployment.servers.cluster.home
    # Rows this large need their own space.
    large = os.urandom(100_000).hex()
    with small_disk(home.make("small"), kilobytes=8192) as disk, ThreadPoolExecutor() as threads:
        deployment.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        deployment.sql("ALTER TABLE conversations_item SET TABLESPACE small")
        try:
            earlier = deployment.ask(script.model, text=large)
            script.then(stream(chunk(content=large), gate, *text("")))
            running = api.create(model=script.model, input="Hi", background=True)
            gate.wait_until_reached()
            fill(disk)
            full = machine_time()
            gate.open()
            asked_at = time.monotonic()
            refused = deployment.ask(script.model, text=large)
            waited = time.monotonic() - asked_at
            assert (refused.status, refused.code) == (503, "database_unavailable")
            assert refused.retry_after
            # Commits are tried for as long as a statement may take, if that is less than eight seconds.
            assert waited > DATABASE_TIMEOUT_SECONDS
            assert refused.seconds < 3 * RECOVERY_SECONDS
            deployment.assert_nothing_lost([earlier])
            eventually(lambda: machine_time() > full + 10)
            waiting = threads.submit(deployment.ask, script.model, text=large)
            time.sleep(1)
            assert not waiting.done()
            assert api.retrieve(running["id"])["status"] == "in_progress"
            (disk / "filler").unlink()
            freed = machine_time()
            assert text_of(ended(api, running["id"], seconds=RECOVERY_SECONDS)) == [large]
            deployment.assert_nothing_lost([waiting.result(), deployment.ask(script.model, text=large)], steady=freed)
        finally:
            (disk / "filler").unlink(missing_ok=True)
            deployment.sql("ALTER TABLE conversations_item SET TABLESPACE pg_default")
            deployment.sql("DROP TABLESPACE small")


@pytest.mark.nightly
def test_nothing_is_lost_when_the_disk_of_the_write_ahead_log_is_full(deployment: Deployment, script: Script) -> None:
    """PostgreSQL stops then, and an operator frees space and starts it."""
    api, gate = deployment.api, Gate()
    with log_on_small_disk(deployment) as disk:
        deployment.wait_until_recovered(script.model)
        script.then(stream(chunk(content="Hel"), gate, *text("lo")))
        running = api.create(model=script.model, input="Hi", background=True)
        gate.wait_until_reached()
        with deployment.load(script.model) as answers:
            eventually(lambda: len(answers) > 5)
            fill(disk)
            eventually(lambda: has_stopped_with_full_log(deployment))
            gate.open()
            eventually(lambda: deployment.readiness() == 503)
            refused = api.get("/models")
            assert error(refused) == (503, None, "database_unavailable")
            assert refused.headers["retry-after"]
            (disk / "filler").unlink()
            deployment.start(deployment.postgres)
            steady = deployment.wait_until_steady(script.model, answers)
        assert text_of(ended(api, running["id"], seconds=RECOVERY_SECONDS))[-1:] == ["Hello"]
        deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)


@contextmanager
def log_on_small_disk(deployment: Deployment) -> Iterator[Path]:
    """Have the server write its log to a disk with little space inside the block. It is restarted before and after."""
    server, cluster = deployment.postgres, deployment.servers.cluster
    log = cluster.data / "pg_wal"
    deployment.stop(server, signal.SIGINT)
    used = sum(path.stat().st_size for path in log.rglob("*") if path.is_file())
    with small_disk(cluster.home.make("log"), kilobytes=used // 1024 + 3 * 16 * 1024) as disk:
        subprocess.run(["mv", log, disk], check=True)
        log.symlink_to(disk / log.name)
        try:
            deployment.start(server)
            yield disk
        finally:
            if server.process.poll() is None:
                deployment.stop(server, signal.SIGINT)
            log.unlink()
            subprocess.run(["mv", disk / log.name, log], check=True)
            deployment.start(server)


def has_stopped_with_full_log(deployment: Deployment) -> bool:
    """Use up the existing segments of the log; return whether the server has stopped for lack of a new one."""
    with suppress(psycopg.OperationalError):
        deployment.sql("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
    return deployment.postgres.process.poll() is not None


@pytest.mark.parametrize("name", ["files", "tmp"])
def test_uploads_get_507_while_the_disk_of_the_platform_is_full(
    deployment: Deployment, script: Script, name: str
) -> None:
    content = {"file": ("report.txt", os.urandom(300_000))}
    with small_disk(deployment.servers.directory / name, kilobytes=128) as disk:
        refused = deployment.api.request("POST", "/files", files=content, data={"purpose": "user_data"})
        assert error(refused) == (507, None, "storage_full")
        assert refused.headers["retry-after"]
        # Nothing of it remains, neither on the disk nor in the database, and everything else works.
        assert [path for path in disk.rglob("*") if path.is_file()] == []
        assert deployment.sql("SELECT 1 FROM conversations_file WHERE state <> 'ready'") == []
        assert deployment.ask(script.model).status == 200
    stored = ok(deployment.api.request("POST", "/files", files=content, data={"purpose": "user_data"}))
    assert deployment.api.get(f"/files/{stored['id']}/content").content == content["file"][1]


def test_an_upload_in_parts_continues_after_a_full_disk(deployment: Deployment, script: Script) -> None:
    api, halves = deployment.api, [os.urandom(200_000), os.urandom(200_000)]
    with small_disk(deployment.servers.directory / "files", kilobytes=1200) as disk:
        declared = {"filename": "report.txt", "purpose": "user_data", "bytes": 400_000, "mime_type": "text/plain"}
        upload = ok(api.post("/uploads", declared))

        def add(half: bytes) -> httpx2.Response:
            return api.request("POST", f"/uploads/{upload['id']}/parts", files={"data": ("part", half)})

        first = ok(add(halves[0]))
        fill(disk)
        assert error(add(halves[1])) == (507, None, "storage_full")
        (disk / "filler").unlink()
        second = ok(add(halves[1]))
        completion = {"part_ids": [first["id"], second["id"]]}
        fill(disk)
        assert error(api.post(f"/uploads/{upload['id']}/complete", completion)) == (507, None, "storage_full")
        (disk / "filler").unlink()
        # Only the two parts are left, and the upload can be completed.
        assert sum(path.stat().st_size for path in disk.rglob("*") if path.is_file()) == 400_000
        stored = ok(api.post(f"/uploads/{upload['id']}/complete", completion))["file"]
        assert api.get(f"/files/{stored['id']}/content").content == b"".join(halves)


@pytest.mark.nightly
def test_a_process_serves_while_it_cannot_write_its_log(deployment: Deployment, script: Script) -> None:
    servers = deployment.servers
    with Path("/dev/full").open("wb") as full:
        port = str(any_free_port())
        command = [sys.executable, "manage.py", "web", "--port", port]
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **servers.environment}, stdout=full, stderr=full
        )
        try:
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: is_up(f"{url}/readyz"), seconds=60)
            api = Api(deployment.http, url=url, secret=deployment.secret)
            assert api.create(model=script.model, input="Hi")["status"] == "completed"
        finally:
            process.kill()
            process.wait()


# -- failover, after which the standby serves --------------------------------------------------------------------------


def test_a_failover_loses_no_committed_response(deployment: Deployment, script: Script) -> None:
    standby = deployment.start_standby()
    with deployment.load(script.model) as answers:
        eventually(lambda: len(answers) > 5)
        deployment.kill(deployment.postgres)
        deployment.promote(standby)
        steady = deployment.wait_until_steady(script.model, answers)
    deployment.assert_nothing_lost(answers, steady=steady, codes=UNAVAILABLE)
