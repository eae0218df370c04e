"""Workers that stop, die or find a full disk in the middle of a batch, or are busy with background responses."""

import signal
from pathlib import Path

import httpx2
import pytest

from responses.models.batches import BatchLine
from tenants import scope
from tests.support.api import Api, Caller
from tests.support.background import ended as response_ended
from tests.support.background import text_of
from tests.support.batches import answers, asked, ended, line, retrieved
from tests.support.chunks import chunk, text
from tests.support.deployment import RECOVERY_SECONDS, fill, small_disk
from tests.support.machine_clock import machine_time
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import running_web
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow


def batch_of(api: Api, script: Script, count: int) -> str:
    """Create a batch with this many lines and return its id."""
    batch_id: str = asked(api, *(line(f"{n}", model=script.model, input=f"{n}") for n in range(count)))["id"]
    return batch_id


def completed_lines(api: Api, batch_id: str) -> int:
    """Return the number of lines with an answer."""
    count: int = retrieved(api, batch_id)["request_counts"]["completed"]
    return count


def calls_by_line(script: Script) -> dict[str, int]:
    """Return the number of upstream calls for each line."""
    texts = [messages[-1]["content"] for messages in script.messages]
    return {text: texts.count(text) for text in texts}


def open_lines(api: Api) -> list[tuple[str, int]]:
    """Return state and attempts of the team's open lines."""
    with scope.team(api.caller.team.pk):
        lines = BatchLine.objects.filter(team=api.caller.team.pk, answer="").order_by("position")
        return list(lines.values_list("state", "attempt"))


def test_a_killed_worker_costs_only_its_active_lines(api: Api, script: Script, make_worker: MakeWorker) -> None:
    first = make_worker(LEASE_SECONDS="6", BATCH_CONCURRENCY="2")
    for _ in range(4):
        script.say("Done")
    gates = [Gate(), Gate()]
    script.then(*(stream(chunk(content="Hal"), gate) for gate in gates))
    batch_id = batch_of(api, script, 8)
    for gate in gates:
        gate.wait_until_reached()
    eventually(lambda: completed_lines(api, batch_id) == 4)
    first.stop(signal.SIGKILL)
    for _ in range(4):
        script.say("Done")
    make_worker(LEASE_SECONDS="6", BATCH_CONCURRENCY="2")
    batch = ended(api, batch_id)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 8, "completed": 8, "failed": 0})
    assert list(answers(api, batch["output_file_id"])) == [f"{n}" for n in range(8)]
    assert sorted(calls_by_line(script).values()) == [1, 1, 1, 1, 1, 1, 2, 2]


@pytest.mark.nightly
def test_a_stopping_worker_releases_its_lines(api: Api, script: Script, make_worker: MakeWorker) -> None:
    first, gate = make_worker(WORKER_DRAIN_SECONDS="0"), Gate()
    script.then(stream(chunk(content="Hal"), gate))
    batch_id = batch_of(api, script, 1)
    gate.wait_until_reached()
    first.stop()
    assert script.received[0].was_closed()
    assert open_lines(api) == [("queued", 0)]
    script.say("Done")
    make_worker()
    assert ended(api, batch_id)["request_counts"]["completed"] == 1


def test_lines_only_use_slots_free_of_background_responses(
    api: Api, script: Script, other_script: Script, make_worker: MakeWorker
) -> None:
    gates = [Gate(), Gate()]
    other_script.then(*(stream(chunk(content="Hal"), gate, chunk(finish="stop")) for gate in gates))
    make_worker(concurrency=2)
    responses = [api.create(model=other_script.model, input="Go.", background=True)["id"] for _ in gates]
    for gate in gates:
        gate.wait_until_reached()
    batch_ids = []
    for _ in range(3):
        # Once a batch has started, the lines of all batches before it were considered as well.
        batch_ids.append(batch_of(api, script, 1))
        eventually(lambda: retrieved(api, batch_ids[-1])["status"] == "in_progress")
    assert (script.received, set(open_lines(api))) == ([], {("queued", 0)})
    script.say("Done").say("Done").say("Done")
    gates[0].open()
    assert [ended(api, batch_id)["status"] for batch_id in batch_ids] == ["completed"] * 3
    gates[1].open()
    assert [response_ended(api, response_id)["status"] for response_id in responses] == ["completed"] * 2


@pytest.mark.nightly
def test_results_wait_while_the_disk_of_the_files_is_full(
    caller: Caller, http: httpx2.Client, script: Script, make_worker: MakeWorker, tmp_path: Path
) -> None:
    gate, state = Gate(), {"STATE_DIR": str(tmp_path)}
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with small_disk(tmp_path / "files", kilobytes=128) as disk, running_web(**state) as web:
        # Its lease does not expire before the end of the test.
        worker = make_worker(LEASE_SECONDS="300", **state)
        api = Api(http, url=web.url, caller=caller)
        batch_id = batch_of(api, script, 1)
        gate.wait_until_reached()
        fill(disk)
        gate.open()
        eventually(lambda: worker.output().count("claimed batches failed") > 1)
        assert retrieved(api, batch_id)["status"] == "finalizing"
        (disk / "filler").unlink()
        freed = machine_time()
        batch = ended(api, batch_id)
        # The pause after the second failure may just have begun.
        assert machine_time() - freed < 10 + RECOVERY_SECONDS
        assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 1)
        assert text_of(answers(api, batch["output_file_id"])["0"]["response"]["body"]) == ["Hello"]
