"""Clocks that are set by an hour while the platform works: nothing is lost, repeated or delayed.

The tests run with the clocks of the platform's machines, and with that of a machine which also runs PostgreSQL and
Valkey.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.stack import manage
from tests.support.api import Api, error, ok
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.clocks import ShiftedClock
from tests.support.deployment import RECOVERY_SECONDS, Deployment, running_deployment, script_fixture
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
SetClock = Callable[[int], None]
_HOUR, _DAY = 3600, 86_400
script = script_fixture()


@pytest.fixture(scope="module")
def clock() -> Iterator[ShiftedClock]:
    """The clock of the processes."""
    with tempfile.TemporaryDirectory(prefix="clock-") as directory:
        # PostgreSQL and Valkey run under an account of their own.
        Path(directory).chmod(0o755)
        yield ShiftedClock(Path(directory))


@pytest.fixture(scope="module", params=["platform", "machine"])
def deployment(clock: ShiftedClock, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """The deployment of all tests of this file. The clock of the upstream is right."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "machine":
            for name, value in clock.variables.items():
                patch.setenv(name, value)
        with running_deployment(network=None, **clock.variables) as running:
            yield running


@pytest.fixture
def set_clock(deployment: Deployment, clock: ShiftedClock) -> Iterator[SetClock]:
    """A function that sets the clocks by some seconds and waits until the scheduler has noticed it."""
    log = deployment.servers.log("beat")

    def set_by(seconds: int) -> None:
        noticed = log.read_text().count("the clock was set")
        clock.shift(seconds)
        eventually(lambda: log.read_text().count("the clock was set") > noticed)

    yield set_by
    if clock.seconds:
        set_by(0)


@pytest.mark.parametrize("seconds", [_HOUR, -_HOUR], ids=["forward", "backward"])
def test_runs_in_progress_continue_after_a_clock_jump(
    deployment: Deployment, script: Script, set_clock: SetClock, seconds: int
) -> None:
    api, gates = deployment.api, [Gate(), Gate()]
    before = len(script.received)
    for gate in gates:
        script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    background = api.create(model=script.model, input="Hi", background=True)
    gates[0].wait_until_reached()
    with api.stream(model=script.model, input="Hi") as live:
        gates[1].wait_until_reached()
        running = "SELECT id, lease_until FROM responses_response WHERE ended_at IS NULL"
        first: dict[str, datetime] = dict(deployment.sql(running))
        assert len(first) == len(gates)
        set_clock(seconds)

        def are_renewed() -> bool:
            renewed: dict[str, datetime] = dict(deployment.sql(running))
            return all(renewed[response_id] != until for response_id, until in first.items())

        eventually(are_renewed)
        for gate in gates:
            gate.open()
        assert types(live.rest())[-1] == "response.completed"
    assert text_of(ended(api, background["id"], seconds=RECOVERY_SECONDS)) == ["Hello"]
    # No process was declared dead.
    assert len(script.received) - before == len(gates)
    assert deployment.sql("SELECT attempt FROM responses_response WHERE id = %s", background["id"]) == [(1,)]


@pytest.mark.parametrize("seconds", [_HOUR, -_HOUR], ids=["forward", "backward"])
def test_new_work_starts_during_and_after_a_clock_jump(
    deployment: Deployment, script: Script, set_clock: SetClock, seconds: int
) -> None:
    with deployment.load(script.model, clients=2) as answers, ThreadPoolExecutor() as threads:
        eventually(lambda: len(answers) > 2)
        jump = threads.submit(set_clock, seconds)
        queued = [deployment.api.create(model=script.model, input="Hi", background=True) for _ in range(4)]
        jump.result()
        queued += [deployment.api.create(model=script.model, input="Hi", background=True) for _ in range(4)]
        for response in queued:
            assert text_of(ended(deployment.api, response["id"], seconds=RECOVERY_SECONDS)) == ["Hello"]
        # Scheduled tasks continue: the most frequent one comes every five seconds.
        runs = deployment.task_runs()
        eventually(lambda: deployment.task_runs() - runs, seconds=RECOVERY_SECONDS)
    assert max(answer.seconds for answer in answers) < RECOVERY_SECONDS
    deployment.assert_nothing_lost(answers)


def _limited(deployment: Deployment, *, per_minute: int) -> Api:
    """Return the API of a new key with this limit of requests."""
    limit = ("--requests-per-minute", str(per_minute))
    made = manage(deployment.servers.environment, "create_key", "--team", "bench", *limit, "--json")
    return Api(deployment.http, url=deployment.url, secret=orjson.loads(made)["key"])


@pytest.mark.parametrize("deployment", ["platform"], indirect=True)
def test_rate_windows_follow_the_clock_of_redis(deployment: Deployment, script: Script, set_clock: SetClock) -> None:
    limited, body = _limited(deployment, per_minute=2), {"model": script.model, "input": "Hi"}
    assert [limited.post("/responses", body).status_code for _ in range(2)] == [200, 200]
    set_clock(_HOUR)
    refused = limited.post("/responses", body)
    assert error(refused)[0] == 429
    assert int(refused.headers["retry-after"]) <= 60


def test_a_clock_that_is_set_back_prolongs_no_limit(
    deployment: Deployment, script: Script, set_clock: SetClock
) -> None:
    limited, body = _limited(deployment, per_minute=60), {"model": script.model, "input": "Hi"}
    eventually(lambda: limited.post("/responses", body).status_code == 429)
    set_clock(-_HOUR)
    eventually(lambda: limited.post("/responses", body).status_code == 200, seconds=RECOVERY_SECONDS)


@pytest.mark.parametrize("deployment", ["platform"], indirect=True)
@pytest.mark.parametrize("seconds", [_DAY, -_DAY, _HOUR, -_HOUR], ids=["day later", "day before", "later", "before"])
def test_clock_jumps_of_a_machine_do_not_change_expiry(
    deployment: Deployment, script: Script, set_clock: SetClock, seconds: int
) -> None:
    api, hour = deployment.api, {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}

    def made() -> dict[str, dict[str, Any]]:
        file = ok(api.request("POST", "/files", files={"file": ("a.txt", b"a")}, data={"purpose": "user_data", **hour}))
        declared = {"filename": "b.txt", "bytes": 1, "mime_type": "text/plain", "purpose": "user_data"}
        upload = ok(api.post("/uploads", declared))
        return {f"/files/{file['id']}": file, f"/uploads/{upload['id']}": upload}

    before = made()
    set_clock(seconds)
    after = made()
    for path, row in (before | after).items():
        if path.startswith("/uploads"):
            ok(api.request("POST", f"{path}/parts", files={"data": ("b", b"b")}))
        else:
            assert ok(api.get(path)).get("status") == row.get("status"), path
    # New rows have the time of the database, so nothing is deleted too early.
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    ages = [time.time() - row["created_at"] for row in [*after.values(), response]]
    assert max(map(abs, ages)) < 60
    columns = {
        "responses_response": "created_at",
        "conversations_file": "created_at",
        "tenants_usagerecord": "occurred_at",
    }
    for table, column in columns.items():
        [(age,)] = deployment.sql(f"SELECT extract(epoch FROM now() - max({column})) FROM {table}")
        assert abs(age) < 60, table
