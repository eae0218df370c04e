"""`GET /v1/responses/{id}?stream=true`: replay of earlier events byte for byte, then live events until the end."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import orjson
import pytest
from openai import OpenAI

from responses.models import EventBatch
from tenants import scope
from tenants.models import Team
from tests.support.api import Api, Event, MakeApi, error
from tests.support.chunks import chunk, text
from tests.support.streams import assert_stream_equals_stored, types
from tests.support.upstream import Cut, Gate, Pause, Script, stream


def replay(api: Api, response_id: str, **query: object) -> bytes:
    """Return the body of a replay."""
    return api.get(f"/responses/{response_id}", stream="true", **query).content


def read(raw: bytes) -> list[Event]:
    """Parse the events of a body."""
    return [orjson.loads(data) for data in re.findall(rb"^data: ({.*})$", raw, re.MULTILINE)]


@contextmanager
def running(api: Api, script: Script, *, pause: float = 0) -> Iterator[tuple[str, Gate]]:
    """Start a stream whose client disconnects in the middle; yields its id and the gate before its second half."""
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, Pause(pause), *text("lo")))
    with api.stream(model=script.model, input="Hi") as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
    yield response_id, gate


def test_a_replay_equals_the_original_stream(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    with api.stream(model=script.model, input="Hi") as live:
        events = live.rest()
    raw = replay(api, events[0]["response"]["id"])
    assert raw.decode() == "\n".join([*live.raw, ""])


def test_a_run_without_streaming_can_be_replayed(api: Api, script: Script) -> None:
    response = api.create(model=script.say("Hello").model, input="Hi")
    assert_stream_equals_stored(read(replay(api, response["id"])), api.retrieve(response["id"]))


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_replay_starts_after_the_given_event(api: Api, script: Script, after: int) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    numbers = [event["sequence_number"] for event in read(replay(api, response_id, starting_after=after))]
    assert numbers == list(range(after + 1, 9))


def test_a_reconnecting_client_misses_no_event(api: Api, script: Script) -> None:
    with running(api, script) as (response_id, gate):
        gate.open()
        events = read(replay(api, response_id))
    assert_stream_equals_stored(events, api.retrieve(response_id))
    assert api.retrieve(response_id)["status"] == "completed"


def test_a_follower_gets_the_first_events_before_the_upstream_answers(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    with api.stream(model=script.model, input="Hi") as live:
        response_id = live.next()["response"]["id"]
        live.next()
        gate.wait_until_reached()
        with api.follow(response_id) as follower:
            assert [follower.next()["type"], follower.next()["type"]] == ["response.created", "response.in_progress"]
            assert follower.raw[:5] == live.raw[:5]
            gate.open()
            follower.rest()
            live.rest()
        assert follower.raw == live.raw


@pytest.mark.slow
def test_a_follower_keeps_a_run_alive_beyond_the_grace_period(api: Api, script: Script, database: None) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(disconnect_grace_seconds=1)
    with running(api, script, pause=2.5) as (response_id, gate), api.follow(response_id) as live:
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"


def test_a_follower_gets_the_end_of_a_cancelled_run(api: Api, script: Script, database: None) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(disconnect_grace_seconds=0)
    with running(api, script) as (response_id, _):
        pass
    with api.follow(response_id) as live:
        assert live.rest()[-1]["type"] == "response.output_item.done"


def test_a_follower_gets_the_end_of_a_failed_run(api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), Cut()))
    events = api.events(model=script.model, input="Hi")
    assert read(replay(api, events[0]["response"]["id"]))[-1]["type"] == "response.failed"


def test_obfuscation_is_omitted_on_request(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    assert b"obfuscation" in replay(api, response_id)
    assert b"obfuscation" not in replay(api, response_id, include_obfuscation="false")


def test_a_dropped_event_log_is_reported(api: Api, script: Script, database: None) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    with scope.every_team():
        EventBatch.objects.filter(response_id=response_id).delete()
    assert error(api.get(f"/responses/{response_id}", stream="true")) == (400, "stream", None)


def test_a_cursor_that_is_not_a_number_is_rejected(api: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    answer = api.get(f"/responses/{response_id}", stream="true", starting_after="x")
    assert error(answer) == (400, "starting_after", "invalid_type")


@pytest.mark.usefixtures("only_streams")
def test_the_sdk_can_follow_from_any_event(client: OpenAI, script: Script) -> None:
    response = client.responses.create(model=script.say("Hel", "lo").model, input="Hi")
    with client.responses.stream(response_id=response.id, starting_after=3) as live:
        assert [event.sequence_number for event in live] == list(range(4, 10))
        assert live.get_final_response().output_text == "Hello"


def test_another_teams_response_gets_the_404_of_an_unknown_id(api: Api, outsider: Api, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]

    def answer(response_id: str) -> tuple[int, str]:
        got: httpx2.Response = outsider.get(f"/responses/{response_id}", stream="true")
        return got.status_code, got.text.replace(response_id, "ID")

    assert answer(response_id) == answer("resp_unknown")


def test_following_requires_the_read_scope(api: Api, make_api: MakeApi, script: Script) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    writer = make_api(team=api.caller.team, scopes=["responses.write"])
    assert writer.get(f"/responses/{response_id}", stream="true").status_code == 403


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_keepalive_comments_are_sent_to_followers_while_the_upstream_is_silent(api: Api, script: Script) -> None:
    script.then(stream(Pause(11), *text("Hi")))
    with api.stream(model=script.model, input="Hi", background=True) as live:
        assert types(live.rest())[-1] == "response.completed"
    assert live.raw.count(": ping") == 1
