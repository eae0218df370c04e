"""Clocks of the platform's machines that are set by an hour while it works: nothing is lost, repeated or delayed."""

import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import orjson
import pytest

from benchmarks.stack import manage
from tests.support.api import Api, error
from tests.support.background import ended, text_of
from tests.support.chunks import chunk, text
from tests.support.deployment import RECOVERY_SECONDS, Deployment, running_deployment, script_fixture
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SetClock = Callable[[int], None]
_HOUR = 3600
script = script_fixture()


@pytest.fixture(scope="module")
def shift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the seconds by which the clocks of the processes are wrong."""
    path = tmp_path_factory.mktemp("clock") / "shift"
    path.write_bytes(struct.pack("q", 0))
    return path


@pytest.fixture(scope="module")
def deployment(shift: Path) -> Iterator[Deployment]:
    """The deployment of all tests of this file. The clocks of PostgreSQL, Valkey and the upstream are right."""
    library, source = shift.with_name("shifted_clock.so"), ROOT / "tests" / "support" / "shifted_clock.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    with running_deployment(LD_PRELOAD=str(library), CLOCK_SHIFT=str(shift)) as running:
        yield running


@pytest.fixture
def set_clock(deployment: Deployment, shift: Path) -> Iterator[SetClock]:
    """A function that sets the clocks by some seconds and waits until the scheduler has noticed it."""
    log = deployment.servers.log("beat")

    def set_by(seconds: int) -> None:
        noticed = log.read_text().count("the clock was set")
        with shift.open("r+b") as file:
            file.write(struct.pack("q", seconds))
        eventually(lambda: log.read_text().count("the clock was set") > noticed)

    yield set_by
    if shift.read_bytes() != struct.pack("q", 0):
        set_by(0)


@pytest.mark.parametrize("seconds", [_HOUR, -_HOUR], ids=["forward", "backward"])
def test_runs_in_progress_continue(deployment: Deployment, script: Script, set_clock: SetClock, seconds: int) -> None:
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
            return all(renewed[response_id] > until for response_id, until in first.items())

        eventually(are_renewed)
        for gate in gates:
            gate.open()
        assert types(live.rest())[-1] == "response.completed"
    assert text_of(ended(api, background["id"], seconds=RECOVERY_SECONDS)) == ["Hello"]
    # Nobody has taken one for dead.
    assert len(script.received) - before == len(gates)
    assert deployment.sql("SELECT attempt FROM responses_response WHERE id = %s", background["id"]) == [(1,)]


@pytest.mark.parametrize("seconds", [_HOUR, -_HOUR], ids=["forward", "backward"])
def test_new_work_does_not_wait_for_the_clock(
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
    assert [answer for answer in answers if answer.status != 200] == []
    assert max(answer.seconds for answer in answers) < RECOVERY_SECONDS
    deployment.assert_nothing_lost(answers)


def test_limits_hold(deployment: Deployment, script: Script, set_clock: SetClock) -> None:
    """A minute ends when it ends by the clock of Valkey, not by that of a web process."""
    made = manage(
        deployment.servers.environment, "create_key", "--team", "bench", "--requests-per-minute", "2", "--json"
    )
    limited = Api(deployment.http, url=deployment.url, secret=orjson.loads(made)["key"])
    body = {"model": script.model, "input": "Hi"}
    assert [limited.post("/responses", body).status_code for _ in range(2)] == [200, 200]
    set_clock(_HOUR)
    refused = limited.post("/responses", body)
    assert error(refused)[0] == 429
    assert int(refused.headers["retry-after"]) <= 60
