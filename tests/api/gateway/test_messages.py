"""`POST /v1/messages`: Anthropic's Messages API on the runs of responses."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.anthropic.message import MessageStream
from responses.models import Response
from tenants import scope
from tenants.models import UsageRecord
from tests.support.anthropic_types import folded
from tests.support.api import Api, Caller, MakeApi, ok
from tests.support.chunks import calls, chunk, completion, text, usage
from tests.support.documents import pdf
from tests.support.model_capabilities import describe
from tests.support.search_engine import SearchServer, engine, search_server
from tests.support.upstream import Gate, Script, stream, whole
from tests.support.waiting import eventually

HI = [{"role": "user", "content": "Hi"}]
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"at": {}}}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def search_engine(reaching: Api) -> Iterator[SearchServer]:
    """The search engine of the team."""
    with search_server() as running:
        engine(reaching.caller.team, running)
        yield running


def create(api: Api, script: Script, **body: Any) -> dict[str, Any]:
    """Return the message of a request; `messages` and `max_tokens` have defaults."""
    return ok(api.post("/messages", {"model": script.model, "max_tokens": 100, "messages": HI, **body}))


def streamed(api: Api, script: Script, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed message."""
    with api.stream("/messages", **{"model": script.model, "max_tokens": 100, "messages": HI, **body}) as live:
        return live.rest()


def test_a_message_is_returned(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    message = create(api, script)
    assert message["id"].startswith("msg_")
    assert {name: value for name, value in message.items() if name != "id"} == {
        "type": "message",
        "role": "assistant",
        "model": script.model,
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }


def test_a_message_is_streamed(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    events = streamed(api, script)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = folded(events)
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["usage"]["input_tokens"]) == ("end_turn", 7)


def test_a_stream_starts_with_the_estimated_input_tokens(api: Api, script: Script) -> None:
    script.say("Hello")
    question = [{"role": "user", "content": "What is a cat? " * 100}]
    usage = streamed(api, script, messages=question, system="Be kind.")[0]["message"]["usage"]
    body = {"model": script.model, "messages": question, "system": "Be kind."}
    assert usage == {
        "input_tokens": api.post("/messages/count_tokens", body).json()["input_tokens"],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert usage["input_tokens"] > 300


BLOCKS: dict[str, Any] = {
    "text": text("Hel", "lo"),
    "calls": calls(look='{"at": "sofa"}', find="{}"),
    "text and a call": [*text("Let me see.")[:-2], *calls(look='{"at": "sofa"}')[1:]],
    "thinking and text": [chunk(reasoning_content="Hm"), chunk(reasoning_content="m."), *text("Hello")],
    "a refusal": [chunk(refusal="I can"), chunk(refusal="not.", finish="stop"), usage()],
    "a limit": text("Hel", finish="length"),
    "a filter": text("Hel", finish="content_filter"),
    "no text": text(),
    "a call without arguments": calls(look=""),
}


@pytest.mark.parametrize("answer", BLOCKS)
def test_a_stream_describes_the_same_message_as_json(api: Api, script: Script, answer: str) -> None:
    options = {"tools": [LOOK, {**LOOK, "name": "find"}], "thinking": {"type": "adaptive"}}
    script.then(stream(*BLOCKS[answer])).then(stream(*BLOCKS[answer]))
    message, live = create(api, script, **options), folded(streamed(api, script, **options))
    for one in (message, live):
        del one["id"]
        for block in one["content"]:
            # Encrypted anew each time.
            assert block.pop("signature", "something")
    assert live == message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("text", "end_turn"),
        ("calls", "tool_use"),
        ("text and a call", "tool_use"),
        ("a refusal", "refusal"),
        ("a limit", "max_tokens"),
        ("a filter", "refusal"),
    ],
)
def test_the_stop_reason_says_why_the_model_stopped(api: Api, script: Script, answer: str, reason: str) -> None:
    script.then(stream(*BLOCKS[answer]))
    message = create(api, script, tools=[LOOK, {**LOOK, "name": "find"}])
    assert message["stop_reason"] == reason
    assert ("stop_details" in message) is (reason == "refusal")


def test_parameters_reach_the_upstream(api: Api, script: Script) -> None:
    script.say("Hello")
    create(
        api,
        script,
        system=[
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Rhyme."},
        ],
        max_tokens=50,
        temperature=0.5,
        top_p=0.9,
        metadata={"user_id": "u1"},
        service_tier="standard_only",
    )
    (sent,) = script.bodies
    assert sent["messages"] == [{"role": "system", "content": "Be brief.\n\nRhyme."}, *HI]
    assert (sent["max_tokens"], sent["temperature"], sent["top_p"]) == (50, 0.5, 0.9)
    assert (sent["user"], sent["service_tier"]) == ("u1", "default")
    assert not sent.keys() & {"stop", "reasoning_effort", "tools", "tool_choice"}


def test_a_long_user_id_is_hashed_for_the_upstream(api: Api, script: Script) -> None:
    script.say("Hello")
    create(api, script, metadata={"user_id": "u" * 200})
    assert len(script.bodies[0]["user"]) == 64


@pytest.mark.parametrize("limit", [1, 15])
def test_small_output_limits_are_allowed(api: Api, script: Script, limit: int) -> None:
    script.then(stream(*text("H", finish="length")))
    assert create(api, script, max_tokens=limit)["stop_reason"] == "max_tokens"
    assert script.bodies[0]["max_tokens"] == limit


def test_an_output_limit_of_zero_generates_nothing(api: Api, script: Script) -> None:
    message = create(api, script, max_tokens=0)
    assert (message["content"], message["stop_reason"], script.bodies) == ([], "max_tokens", [])


# -- tools -------------------------------------------------------------------------------------------------------------

CONVERSATION = [
    {"role": "user", "content": "Where is the cat?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sofa"}},
            {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a cat"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "text", "text": "It is dark."}],
                "is_error": True,
            },
            {"type": "text", "text": "Answer briefly."},
        ],
    },
]


def test_a_tool_loop_reaches_the_upstream(api: Api, script: Script) -> None:
    script.say("On the sofa.")
    create(api, script, messages=CONVERSATION, tools=[LOOK])
    function = {"name": "look", "description": "Looks.", "parameters": LOOK["input_schema"]}
    assert script.bodies[0]["tools"] == [{"type": "function", "function": function}]
    assert script.messages[0] == [
        {"role": "user", "content": "Where is the cat?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sofa"}'}},
                {"id": "toolu_2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error:\nIt is dark."},
        {"role": "user", "content": "Answer briefly."},
    ]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_a_tool_choice_reaches_the_upstream(api: Api, script: Script, choice: dict[str, Any], sent: Any) -> None:
    script.then(stream(*(text("No.") if sent == "none" else calls(look="{}"))))
    message = create(api, script, tools=[LOOK], tool_choice=choice)
    assert script.bodies[0]["tool_choice"] == sent
    if sent != "none":
        assert message["content"] == [{"type": "tool_use", "id": "call_look", "name": "look", "input": {}}]


def test_fields_of_the_betas_of_claude_code_are_accepted(api: Api, script: Script) -> None:
    script.say("Hello")
    tool = {"name": "look", "input_schema": {"type": "object"}, "defer_loading": True}
    body = {
        "model": script.model,
        "max_tokens": 16,
        "tools": [tool],
        "thinking": {"type": "disabled", "display": "omitted"},
        "messages": [{"role": "user", "content": "Hi", "output_config": {"effort": "low"}}],
        "safeguards": {"type": "default"},
    }
    assert ok(api.post("/messages", body))["stop_reason"] == "end_turn"
    # There is no tool search, so the model gets all tools.
    assert [sent["function"]["name"] for sent in script.bodies[0]["tools"]] == ["look"]


def test_parallel_tool_use_can_be_disabled(api: Api, script: Script) -> None:
    script.then(stream(*calls(look="{}", find="{}")))
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = create(api, script, tools=[LOOK, {**LOOK, "name": "find"}], tool_choice=choice)
    assert [block["name"] for block in message["content"]] == ["look"]
    assert script.bodies[0]["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 1000},
        {"type": "memory_20250818", "name": "memory"},
    ],
)
def test_tools_with_a_known_schema_are_described_to_the_model(api: Api, script: Script, tool: dict[str, Any]) -> None:
    script.then(stream(*calls(**{tool["name"]: '{"command": "view"}'})))
    message = create(api, script, tools=[tool])
    (block,) = message["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", tool["name"], {"command": "view"})
    function = script.bodies[0]["tools"][0]["function"]
    assert function["name"] == tool["name"]
    assert "command" in function["parameters"]["properties"]
    assert ("1000" in function["description"]) is ("max_characters" in tool)


def test_examples_of_inputs_are_part_of_the_description(api: Api, script: Script) -> None:
    script.say("Hello")
    create(api, script, tools=[{**LOOK, "input_examples": [{"at": "sofa"}]}])
    description = script.bodies[0]["tools"][0]["function"]["description"]
    assert description == 'Looks.\nExamples of its input:\n{"at":"sofa"}'


# -- thinking ----------------------------------------------------------------------------------------------------------

THINKING = [chunk(reasoning_content="A cat "), chunk(reasoning_content="purrs."), *text("Purr.")]


def test_thinking_is_shown_on_request_only(api: Api, script: Script) -> None:
    script.then(stream(*THINKING)).then(stream(*THINKING)).then(stream(*THINKING))
    budget = {"type": "enabled", "budget_tokens": 1024}
    thinking, answer = create(api, script, thinking=budget, max_tokens=2000)["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "A cat purrs.")
    assert thinking["signature"]
    assert answer == {"type": "text", "text": "Purr."}
    assert create(api, script)["content"] == [answer]
    assert create(api, script, thinking={"type": "disabled"})["content"] == [answer]


def test_thinking_can_be_omitted(api: Api, script: Script) -> None:
    script.then(stream(*THINKING)).then(stream(*THINKING))
    options = {"thinking": {"type": "adaptive", "display": "omitted"}}
    for message in (create(api, script, **options), folded(streamed(api, script, **options))):
        assert message["content"][0]["thinking"] == ""
        assert message["content"][0]["signature"]


def test_thinking_is_sent_back_to_the_model_with_the_tool_result(api: Api, script: Script, database: None) -> None:
    describe(script, reasoning_field="reasoning_content")
    script.then(stream(chunk(reasoning_content="I should look."), *calls(look="{}"))).say("A cat.")
    options = {"tools": [LOOK], "thinking": {"type": "adaptive"}}
    message = create(api, script, **options)
    thinking, call = message["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a cat"}
    after = [*HI, {"role": "assistant", "content": [thinking, call]}, {"role": "user", "content": [result]}]
    create(api, script, messages=after, **options)
    assert script.messages[1][1]["reasoning_content"] == "I should look."


def test_data_of_a_call_is_sent_back_to_the_upstream(api: Api, script: Script) -> None:
    call = calls(look="{}")
    call[1]["choices"][0]["delta"]["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s1"}}
    script.then(stream(*call)).then(stream(*call)).say("A cat.")
    message, live = create(api, script, tools=[LOOK]), folded(streamed(api, script, tools=[LOOK]))
    assert [block["type"] for block in live["content"]] == ["redacted_thinking", "tool_use"]
    assert [block["type"] for block in message["content"]] == ["redacted_thinking", "tool_use"]
    result = {"type": "tool_result", "tool_use_id": "call_look", "content": "a cat"}
    after = [*HI, {"role": "assistant", "content": live["content"]}, {"role": "user", "content": [result]}]
    create(api, script, messages=after, tools=[LOOK])
    assert script.messages[2][1]["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s1"}}


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 64000}}, "medium"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"output_config": {"effort": "low"}}, "low"),
        ({}, None),
    ],
)
def test_a_budget_becomes_the_nearest_effort(
    api: Api, script: Script, database: None, options: dict[str, Any], effort: str | None
) -> None:
    describe(script, reasoning_efforts=["none", "low", "medium"])
    script.say("Hello")
    create(api, script, **options)
    assert script.bodies[0].get("reasoning_effort") == effort


def test_a_budget_is_not_translated_for_models_with_unknown_efforts(api: Api, script: Script) -> None:
    script.say("Hello")
    create(api, script, thinking={"type": "enabled", "budget_tokens": 2048})
    assert "reasoning_effort" not in script.bodies[0]


# -- stop sequences ----------------------------------------------------------------------------------------------------


def test_the_text_ends_before_a_stop_sequence(api: Api, script: Script, caller: Caller) -> None:
    script.then(stream(*text("one E", "N", "D two")[:4], Gate()))
    message = create(api, script, stop_sequences=["END", "two"])
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert script.received[0].was_closed()
    assert "stop" not in script.bodies[0]
    with scope.team(caller.team.pk):
        record = UsageRecord.objects.get()
    assert (record.outcome, record.estimated) == ("stop", True)


@pytest.mark.parametrize("answer", [stream(*text("one END two")), whole(completion("one END two"))])
def test_a_stop_sequence_ends_a_streamed_message(api: Api, script: Script, answer: Any) -> None:
    script.then(answer)
    message = folded(streamed(api, script, stop_sequences=["END"]))
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_text_that_looks_like_a_stop_sequence_is_kept(api: Api, script: Script) -> None:
    script.then(stream(*text("one E", "N")[:-2], *calls(look="{}")[1:]))
    message = create(api, script, stop_sequences=["END"], tools=[LOOK])
    assert [block.get("text") for block in message["content"]] == ["one EN", None]
    assert message["stop_reason"] == "tool_use"


# -- images, documents and other blocks --------------------------------------------------------------------------------


def test_images_and_documents_reach_the_upstream(api: Api, script: Script) -> None:
    script.say("Hello")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    document = {
        "type": "document",
        "title": "Notes",
        "context": "From May.",
        "source": {"type": "text", "media_type": "text/plain", "data": "Cats purr."},
    }
    found = {
        "type": "search_result",
        "title": "Dogs",
        "source": "https://example.com/dogs",
        "content": [{"type": "text", "text": "They bark."}],
    }
    question = {"type": "text", "text": "Why?", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    create(api, script, messages=[{"role": "user", "content": [image, document, found, question]}])
    assert script.messages[0][0]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "text", "text": "Notes\nFrom May."},
        {"type": "text", "text": "Cats purr."},
        {"type": "text", "text": "Dogs\nhttps://example.com/dogs\nThey bark."},
        {"type": "text", "text": "Why?"},
    ]


def test_the_text_of_a_pdf_reaches_the_upstream(api: Api, script: Script) -> None:
    script.say("Hello")
    data = b64encode(pdf("Cats purr.")).decode()
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    create(api, script, messages=[{"role": "user", "content": [{"type": "document", "source": source}]}])
    assert "Cats purr." in str(script.messages[0][0]["content"])


def test_an_image_in_a_tool_result_reaches_the_upstream(api: Api, script: Script) -> None:
    script.say("A pixel.")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Here:"}, image]}
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    messages = [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    create(api, script, messages=messages, tools=[LOOK])
    assert PIXEL in str(script.messages[0])
    assert script.messages[0][2]["content"].startswith("Here:")


# -- structured output -------------------------------------------------------------------------------------------------


def test_output_matches_a_schema(api: Api, script: Script) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    script.say('{"cat": 1}').say('{"name": "Tom"}')
    message = create(api, script, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert message["content"] == [{"type": "text", "text": '{"name": "Tom"}'}]
    assert script.bodies[0]["response_format"]["json_schema"]["schema"] == schema


# -- runs, records, tenancy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
def test_a_message_is_a_run_with_a_usage_record(api: Api, script: Script, caller: Caller, live: bool) -> None:
    script.say("Hello")
    answer = api.post("/messages", {"model": script.model, "max_tokens": 9, "messages": HI, "stream": live})
    with scope.team(caller.team.pk):
        record, run = UsageRecord.objects.get(), Response.objects.get()
    assert (record.endpoint, record.outcome, record.object_id) == ("messages", "stop", run.pk)
    assert (record.input_tokens, record.output_tokens, record.estimated) == (7, 3, False)
    assert (record.api_key_id, record.request_id) == (caller.key.pk, answer.headers["request-id"])
    assert (run.endpoint, run.mode, run.status) == ("messages", "stream" if live else "json", "completed")
    # As with `store: false`, no content is kept.
    assert (run.stored, run.input_preview, run.output_preview, run.parameters) == (False, "", "", {})


def test_message_and_run_ids_differ_only_in_the_prefix(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    message = create(api, script)
    with scope.team(caller.team.pk):
        assert Response.objects.get().pk == message["id"].replace("msg_", "resp_")
    assert api.get(f"/responses/{message['id'].replace('msg_', 'resp_')}").status_code == 404


@pytest.mark.parametrize("live", [False, True])
def test_a_disconnect_cancels_the_run(api: Api, script: Script, caller: Caller, live: bool) -> None:
    script.then(stream(chunk(content="Hel"), Gate()))
    body = {"model": script.model, "max_tokens": 9, "messages": HI, "stream": live}
    with api.open("/messages", body):
        received = script.wait_for_call()
    assert received.was_closed()

    def is_cancelled() -> bool:
        with scope.team(caller.team.pk):
            return Response.objects.filter(status="cancelled").exists()

    assert eventually(is_cancelled)
    with scope.team(caller.team.pk):
        assert UsageRecord.objects.get().outcome == "interrupted"


def test_slow_models_are_bridged_with_pings() -> None:
    assert MessageStream.ping == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_web_search_results_return_with_the_next_request(
    reaching: Api, script: Script, search_engine: SearchServer
) -> None:
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    script.call(web_search='{"queries": ["cats"]}').say("They do.").call(web_search='{"queries": ["cats"]}')
    script.say("They do.").say("At 25 hertz.")
    message = create(reaching, script, tools=[tool])
    called, found, answer = message["content"]
    assert (called["type"], called["name"], called["input"]) == ("server_tool_use", "web_search", {"query": "cats"})
    assert (found["type"], found["tool_use_id"]) == ("web_search_tool_result", called["id"])
    assert found["content"][0]["url"] == search_engine.page
    assert answer["text"] == "They do."
    assert message["usage"]["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 0}
    live = folded(streamed(reaching, script, tools=[tool]))
    assert [block["type"] for block in live["content"]] == [block["type"] for block in message["content"]]
    after = [*HI, {"role": "assistant", "content": live["content"]}, {"role": "user", "content": "How fast?"}]
    create(reaching, script, messages=after, tools=[tool])
    assert "They purr." in str(script.messages[4])


def test_another_teams_file_is_unknown(api: Api, script: Script, make_api: MakeApi) -> None:
    other = make_api()
    file = ok(other.request("POST", "/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"secret")}))
    block = {"type": "document", "source": {"type": "file", "file_id": file["id"]}}
    body = {"model": script.model, "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
    answer = api.post("/messages", body)
    assert (answer.status_code, answer.json()["error"]["type"]) in {
        (400, "invalid_request_error"),
        (404, "not_found_error"),
    }
    unknown = {**block, "source": {"type": "file", "file_id": "file-000000000000000000000000000000000000"}}
    same = api.post("/messages", {**body, "messages": [{"role": "user", "content": [unknown]}]})
    assert same.status_code == answer.status_code


def test_thinking_of_another_team_is_rejected(api: Api, script: Script, make_api: MakeApi) -> None:
    script.then(stream(*THINKING))
    thinking = create(make_api(), script, thinking={"type": "adaptive"})["content"][0]
    after = [*HI, {"role": "assistant", "content": [thinking]}, *HI]
    answer = api.post("/messages", {"model": script.model, "max_tokens": 9, "messages": after})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
