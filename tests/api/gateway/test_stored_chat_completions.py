"""Stored chat completions: stored only with `store: true`, then listed, retrieved, updated and deleted with their
messages."""

from typing import Any

import pytest

from tenants import scope
from tenants.models import AuditEvent, UsageRecord
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.chunks import USAGE, Chunk, calls, chunk, completion, text, usage
from tests.support.upstream import Cut, Gate, Script, stream, whole
from tests.support.waiting import eventually

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
CHAT = "/chat/completions"


def create(api: Api, script: Script, content: str = "Hello", **body: Any) -> dict[str, Any]:
    """Create a stored completion."""
    script.then(whole(completion(content)))
    return ok(api.post(CHAT, {"model": script.model, "messages": HI, "store": True, **body}))


def streamed(api: Api, script: Script, *chunks: Chunk, **body: Any) -> list[Chunk]:
    """Return the chunks of a stored completion."""
    script.then(stream(*chunks))
    with api.stream(CHAT, model=script.model, messages=HI, store=True, **body) as live:
        return live.rest()


def stored(api: Api) -> list[dict[str, Any]]:
    """Return the team's stored completions, oldest first."""
    found: list[dict[str, Any]] = ok(api.get(CHAT))["data"]
    return found


def ids(page: dict[str, Any]) -> list[str]:
    return [row["id"] for row in page["data"]]


@pytest.mark.parametrize("store", [None, False])
def test_completions_are_not_stored_by_default(api: Api, script: Script, store: bool | None) -> None:
    script.then(whole(completion("Hello")))
    ok(api.post(CHAT, {"model": script.model, "messages": HI, "store": store}))
    assert stored(api) == []


def test_a_retrieved_completion_equals_the_created_one(api: Api, script: Script) -> None:
    made = create(api, script, metadata={"order": "12"})
    assert ok(api.get(f"{CHAT}/{made['id']}")) == made
    assert made["metadata"] == {"order": "12"}
    assert (made["choices"], made["usage"]) == (completion("Hello")["choices"], USAGE)


def test_stored_completions_get_a_new_id(api: Api, script: Script) -> None:
    first, second = create(api, script), create(api, script)
    assert first["id"] != second["id"]
    assert first["id"].startswith("chatcmpl-")
    assert "chatcmpl-1" not in {first["id"], second["id"]}


def test_store_and_metadata_are_not_sent_upstream(api: Api, script: Script) -> None:
    create(api, script, metadata={"a": "b"})
    assert not {"store", "metadata"} & script.bodies[0].keys()


def test_the_usage_record_names_the_stored_completion(api: Api, script: Script, caller: Caller) -> None:
    made = create(api, script)
    with scope.team(caller.team.pk):
        assert UsageRecord.objects.get().object_id == made["id"]


def test_missing_fields_of_the_upstream_are_filled_in(api: Api, script: Script) -> None:
    script.then(whole({"choices": completion("Hello")["choices"]}))
    made = ok(api.post(CHAT, {"model": script.model, "messages": HI, "store": True}))
    assert (made["object"], made["model"]) == ("chat.completion", script.model)
    assert isinstance(made["created"], int)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_streamed_completion_is_stored_as_one_object(api: Api, script: Script) -> None:
    chunks = streamed(api, script, *text("Hel", "lo"))
    (kept,) = stored(api)
    assert {chunk["id"] for chunk in chunks} == {kept["id"]}
    message = {"role": "assistant", "content": "Hello", "refusal": None}
    assert kept["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert (kept["usage"], kept["object"]) == (USAGE, "chat.completion")


def test_streamed_calls_are_joined_by_index(api: Api, script: Script) -> None:
    def piece(index: int, arguments: str) -> Chunk:
        return chunk(tool_calls=[{"index": index, "function": {"arguments": arguments}}])

    opening = calls(look='{"at":', hear='{"to":')[:-2]
    streamed(api, script, *opening, piece(1, '"b"}'), piece(0, '"a"}'), chunk(finish="tool_calls"), usage())
    (choice,) = stored(api)[0]["choices"]
    called = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in tool_calls_of(choice)]
    assert called == [("call_look", "look", '{"at":"a"}'), ("call_hear", "hear", '{"to":"b"}')]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


def tool_calls_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    assert all(call.keys() == {"id", "type", "function"} for call in choice["message"]["tool_calls"])
    found: list[dict[str, Any]] = choice["message"]["tool_calls"]
    return found


def test_streamed_refusals_and_logprobs_are_stored(api: Api, script: Script) -> None:
    def token(word: str) -> dict[str, Any]:
        return {"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []}

    first, second = chunk(role="assistant", refusal="I "), chunk(refusal="won't.", finish="stop")
    for one, word in ((first, "I "), (second, "won't.")):
        one["choices"][0]["logprobs"] = {"content": None, "refusal": [token(word)]}
    streamed(api, script, first, second, logprobs=True)
    (choice,) = stored(api)[0]["choices"]
    assert choice["message"]["refusal"] == "I won't."
    assert [one["token"] for one in choice["logprobs"]["refusal"]] == ["I ", "won't."]


def test_choices_of_a_stream_are_stored_separately(api: Api, script: Script) -> None:
    def piece(index: int, content: str) -> Chunk:
        one = chunk(content=content, finish="stop")
        one["choices"][0]["index"] = index
        return one

    streamed(api, script, piece(1, "B"), piece(0, "A"), piece(1, "b"), n=2)
    choices = stored(api)[0]["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [(0, "A"), (1, "Bb")]


def test_a_stream_is_stored_before_done_is_sent(api: Api, script: Script) -> None:
    script.say("Hello")
    with api.stream(CHAT, model=script.model, messages=HI, store=True) as live:
        # The closing chunk is sent together with what follows the commit.
        made = live.rest()[0]["id"]
        assert live.raw[-2] == "data: [DONE]"
        assert ids(ok(api.get(CHAT))) == [made]


def test_an_abandoned_stream_is_not_stored(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(chunk(content="Hel"), Gate()))
    with api.stream(CHAT, model=script.model, messages=HI, store=True) as live:
        live.next()
    assert eventually(lambda: outcomes(caller)) == ["interrupted"]
    assert stored(api) == []


def test_a_broken_stream_is_not_stored(api: Api, script: Script, caller: Caller) -> None:
    assert "error" in streamed(api, script, chunk(content="Hel"), Cut())[-1]  # type: ignore[arg-type]  # ends the script
    assert outcomes(caller) == ["failed"]
    assert stored(api) == []


def outcomes(caller: Caller) -> list[str]:
    with scope.team(caller.team.pk):
        return list(UsageRecord.objects.values_list("outcome", flat=True))


# -- the list ----------------------------------------------------------------------------------------------------------


def test_completions_are_listed_oldest_first_in_pages(api: Api, script: Script) -> None:
    made = [create(api, script)["id"] for _ in range(3)]
    first = ok(api.get(CHAT, limit=2))
    assert (ids(first), first["has_more"]) == (made[:2], True)
    rest = ok(api.get(CHAT, after=first["last_id"]))
    assert (ids(rest), rest["has_more"]) == (made[2:], False)
    assert ids(ok(api.get(CHAT, order="desc"))) == made[::-1]


def test_the_list_can_be_filtered(api: Api, script: Script) -> None:
    create(api, script)
    labelled = create(api, script, metadata={"order": "12", "at": "noon"})["id"]
    assert ids(ok(api.get(CHAT, **{"metadata[order]": "12"}))) == [labelled]
    assert ids(ok(api.get(CHAT, **{"metadata[order]": "13"}))) == []
    assert len(ids(ok(api.get(CHAT, model=script.model)))) == 2
    assert ids(ok(api.get(CHAT, model="another"))) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"limit": 0}, (400, "limit", "integer_below_min_value")),
        ({"limit": 101}, (400, "limit", "integer_above_max_value")),
        ({"order": "up"}, (400, "order", "invalid_value")),
        ({"modle": "m"}, (400, "modle", "unknown_parameter")),
        ({"before": "chatcmpl-1"}, (400, "before", "unknown_parameter")),
        ({"after": "chatcmpl-1"}, (404, "after", None)),
    ],
)
def test_an_invalid_query_names_the_parameter(api: Api, query: dict[str, Any], expected: Any) -> None:
    assert error(api.get(CHAT, **query)) == expected


# -- retrieve, update, delete ------------------------------------------------------------------------------------------


def test_an_update_replaces_the_metadata(api: Api, script: Script) -> None:
    made = create(api, script, metadata={"a": "1", "b": "2"})
    changed = ok(api.post(f"{CHAT}/{made['id']}", {"metadata": {"a": "3"}}))
    assert changed == {**made, "metadata": {"a": "3"}}
    assert ok(api.get(f"{CHAT}/{made['id']}")) == changed
    assert ok(api.post(f"{CHAT}/{made['id']}", {"metadata": None}))["metadata"] == {}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "metadata", "missing_required_parameter"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "object_above_max_properties"),
        ({"metadata": {}, "model": "m"}, "model", "unknown_parameter"),
    ],
)
def test_an_invalid_update_names_the_parameter(
    api: Api, script: Script, body: dict[str, Any], param: str, code: str
) -> None:
    made = create(api, script)
    assert error(api.post(f"{CHAT}/{made['id']}", body)) == (400, param, code)


def test_a_deleted_completion_is_not_found_and_the_deletion_audited(api: Api, script: Script, caller: Caller) -> None:
    made = create(api, script)["id"]
    answer = ok(api.delete(f"{CHAT}/{made}"))
    assert answer == {"id": made, "object": "chat.completion.deleted", "deleted": True}
    assert error(api.get(f"{CHAT}/{made}")) == (404, None, None)
    assert stored(api) == []
    with scope.team(caller.team.pk):
        event = AuditEvent.objects.get(action="chat_completion.deleted")
    assert (event.target, event.actor) == (made, f"key:{caller.key.pk}")


ONE = [("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/messages")]


@pytest.mark.parametrize(("method", "below"), ONE)
def test_another_teams_completion_is_not_found(
    api: Api, make_api: MakeApi, script: Script, method: str, below: str
) -> None:
    made, unknown, other = create(api, script)["id"], "chatcmpl-0000", make_api()
    options: dict[str, Any] = {"json": {"metadata": {}}} if method == "POST" else {}
    theirs = other.request(method, f"{CHAT}/{made}{below}", **options)
    nobodys = other.request(method, f"{CHAT}/{unknown}{below}", **options)
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace(made, unknown) == nobodys.text
    assert ids(ok(api.get(CHAT))) == [made]


def test_another_teams_completions_are_not_listed(api: Api, make_api: MakeApi, script: Script) -> None:
    made, other = create(api, script)["id"], make_api()
    assert stored(other) == []
    assert error(other.get(CHAT, after=made)) == (404, "after", None)


# -- messages ----------------------------------------------------------------------------------------------------------

LOOK = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [LOOK]},
    {"role": "tool", "tool_call_id": "call_1", "content": "A cat."},
]


def stored_messages(api: Api, script: Script) -> tuple[str, list[dict[str, Any]]]:
    """Create a completion after a conversation and return its listed messages."""
    made = create(api, script, messages=CONVERSATION)["id"]
    listed: list[dict[str, Any]] = ok(api.get(f"{CHAT}/{made}/messages"))["data"]
    return made, listed


def test_messages_are_listed_in_order(api: Api, script: Script) -> None:
    made, listed = stored_messages(api, script)
    assert [one["id"] for one in listed] == [f"{made}-{index}" for index in range(4)]
    assert [one["role"] for one in listed] == ["developer", "user", "assistant", "tool"]
    assert (listed[0]["content"], listed[0]["content_parts"]) == ("Be brief.", None)
    assert (listed[1]["content"], listed[1]["content_parts"]) == (None, [{"type": "text", "text": "Hi"}])
    assert (listed[1]["name"], listed[2]["tool_calls"], listed[3]["tool_call_id"]) == ("Ada", [LOOK], "call_1")


def test_messages_are_listed_in_pages(api: Api, script: Script) -> None:
    made, listed = stored_messages(api, script)
    first = ok(api.get(f"{CHAT}/{made}/messages", limit=3))
    assert (first["data"], first["has_more"]) == (listed[:3], True)
    rest = ok(api.get(f"{CHAT}/{made}/messages", after=first["last_id"]))
    assert (rest["data"], rest["has_more"]) == (listed[3:], False)
    assert ok(api.get(f"{CHAT}/{made}/messages", order="desc"))["data"] == listed[::-1]
    assert error(api.get(f"{CHAT}/{made}/messages", after="x")) == (404, "after", None)


# -- scopes ------------------------------------------------------------------------------------------------------------


def test_reading_and_deleting_require_their_scopes(make_api: MakeApi) -> None:
    api = make_api(scopes=["chat_completions.write"])
    refused = (403, None, "insufficient_scope")
    assert error(api.get(CHAT)) == refused
    assert error(api.get(f"{CHAT}/chatcmpl-x")) == refused
    assert error(api.get(f"{CHAT}/chatcmpl-x/messages")) == refused
    assert error(api.delete(f"{CHAT}/chatcmpl-x")) == refused
    assert error(api.post(f"{CHAT}/chatcmpl-x", {"metadata": {}})) == (404, None, None)
