"""`GET /v1/responses/{id}`."""

import pytest

from tests.support.api import Api, Caller, MakeApi, error
from tests.support.chunks import text
from tests.support.upstream import Gate, Script, stream


def test_a_retrieved_response_equals_the_created_one(api: Api, script: Script) -> None:
    script.then(stream(*text("Hello")))
    response = api.create(model=script.model, input="Hi", metadata={"a": "b"}, top_p=0.5, instructions="Be kind.")
    assert api.retrieve(response["id"]) == response


def test_a_running_response_can_be_retrieved(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    with api.stream(model=script.model, input="Hi") as live:
        running = api.retrieve(live.next()["response"]["id"])
        gate.open()
        live.rest()
    assert (running["status"], running["output"], running["usage"]) == ("in_progress", [], None)


def test_another_key_of_the_team_can_retrieve_a_response(
    api: Api, make_api: MakeApi, script: Script, caller: Caller
) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    assert make_api(team=caller.team).retrieve(response["id"]) == response


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PUT", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/responses/{}", "/responses/{}/input_items", "/responses/{}/cancel"])
def test_another_teams_response_is_not_found(api: Api, outsider: Api, script: Script, method: str, path: str) -> None:
    script.say("Hello")
    response_id = api.create(model=script.model, input="Hi")["id"]
    foreign = outsider.request(method, path.format(response_id))
    unknown = outsider.request(method, path.format("resp_unknown"))
    assert foreign.status_code == unknown.status_code
    assert foreign.content.replace(response_id.encode(), b"resp_unknown") == unknown.content
    assert sorted(foreign.headers) == sorted(unknown.headers)
    assert api.retrieve(response_id)["status"] == "completed"


def test_the_error_names_the_unknown_id(api: Api) -> None:
    answer = api.get("/responses/resp_unknown")
    assert error(answer) == (404, None, None)
    assert answer.json()["error"]["message"] == "Response with id 'resp_unknown' not found."


def test_retrieving_requires_the_read_scope(make_api: MakeApi) -> None:
    writer = make_api(scopes=["responses.write", "responses.delete"])
    assert error(writer.get("/responses/resp_unknown")) == (403, None, "insufficient_scope")


@pytest.mark.parametrize("stream", [{}, {"stream": "true"}])
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"include_obfuscation": "perhaps"}, "invalid_type"),
        ({"starting_after": "-1"}, "invalid_type"),
        ({"startingafter": "1"}, "unknown_parameter"),
    ],
)
def test_an_invalid_query_is_refused(
    api: Api, script: Script, stream: dict[str, str], query: dict[str, str], code: str
) -> None:
    response_id = api.create(model=script.say("Hello").model, input="Hi")["id"]
    assert error(api.get(f"/responses/{response_id}", **stream, **query)) == (400, next(iter(query)), code)


def test_the_stream_parameter_must_be_a_boolean(api: Api) -> None:
    assert error(api.get("/responses/resp_unknown", stream="maybe")) == (400, "stream", "invalid_type")
    assert error(api.get("/responses/resp_unknown", stream="false")) == (404, None, None)
