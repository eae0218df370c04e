"""`POST /v1/responses` with `background`: answered at once, run by a worker, read by its id."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.chunks import chunk, text
from tests.support.streams import types
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("worker")


def ended(api: Api, response_id: str) -> dict[str, Any]:
    """The response, once it has ended."""

    def look() -> dict[str, Any] | None:
        found = api.retrieve(response_id)
        return None if found["status"] in {"queued", "in_progress"} else found

    found = eventually(look, seconds=20)
    assert found is not None
    return found


def test_it_answers_at_once_and_a_worker_runs_it(api: Api, script: Script) -> None:
    queued = api.create(model=script.say("Hello").model, input="Hi", background=True)
    assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
    done = ended(api, queued["id"])
    assert (done["status"], done["background"]) == ("completed", True)
    assert done["output"][0]["content"][0]["text"] == "Hello"


def test_a_stream_shows_it_from_the_queue_to_its_end(api: Api, script: Script) -> None:
    events = api.events(model=script.say("Hello").model, input="Hi", background=True)
    assert types(events)[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert events[-1]["response"]["status"] == "completed"


def test_a_client_that_leaves_does_not_disturb_it(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with api.stream(model=script.model, input="Hi", background=True) as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
    gate.open()
    assert ended(api, response_id)["output"][0]["content"][0]["text"] == "Hello"
