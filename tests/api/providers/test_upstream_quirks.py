"""Unusual streams of real upstreams, over real HTTP.

Each case is requested as JSON and as a stream, and both must agree. `Api.events` also checks that every stream is well
formed and equals the stored response.
"""

import re
from typing import Any

import orjson
import pytest

from tests.support.api import Api, Event
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.streams import types
from tests.support.upstream import Answer, Cut, Gate, Pause, Piece, Script, stream, whole
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("only_streams")

STOP = chunk(finish="stop")
TOOLS = [{"type": "function", "name": name} for name in ("look", "listen")]
LOGPROBS: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
_MADE_UP = re.compile(rb'"(msg|fc|rs|resp|call)_[0-9a-v]{28}"|"(created|completed)_at":\d+')


class Ask:
    """Callable that asks the scripted upstream as JSON and as a stream and returns the common response."""

    def __init__(self, api: Api, script: Script) -> None:
        self.api = api
        self.script = script

    def __call__(self, *pieces: Piece, done: bool = True, **body: Any) -> Event:
        """Return the response to these chunks of a stream."""
        return self.to(stream(*pieces, done=done), **body)

    def to(self, answer: Answer, **body: Any) -> Event:
        """Return the response to this answer."""
        self.script.then(answer, answer)
        asked = {"model": self.script.model, "input": "Hi", **body}
        streamed: Event = self.api.events(**asked)[-1]["response"]
        as_json = self.api.post("/responses", asked)
        if streamed["status"] == "failed":
            assert as_json.json()["error"]["message"] == streamed["error"]["message"]
        else:
            assert _MADE_UP.sub(b"", as_json.content) == _MADE_UP.sub(b"", orjson.dumps(streamed))
        return streamed

    def events(self, *pieces: Piece, **body: Any) -> list[Event]:
        """Return the events of a streamed response to these chunks."""
        self.script.then(stream(*pieces))
        return self.api.events(model=self.script.model, input="Hi", **body)


@pytest.fixture
def ask(api: Api, script: Script) -> Ask:
    return Ask(api, script)


def message_texts(response: Event) -> list[str]:
    """Return the text of each message."""
    return ["".join(p["text"] for p in item["content"]) for item in response["output"] if item["type"] == "message"]


def item_types(response: Event) -> list[str]:
    """Return the types of the items."""
    return [item["type"] for item in response["output"]]


def call(index: int, name: str, *, id: str | None = None, arguments: str = "{}") -> Chunk:  # noqa: A002 - the wire's name
    """Return a complete call in one delta."""
    head = {"index": index, "id": id or f"call_{name}", "type": "function"}
    return chunk(tool_calls=[{**head, "function": {"name": name, "arguments": arguments}}])


def with_choice(given: Chunk, **changes: Any) -> Chunk:
    """Return the chunk with more fields in its choice."""
    return {**given, "choices": [{**given["choices"][0], **changes}]}


# -- the shape of chunks -----------------------------------------------------------------------------------------------


def test_chunks_without_choices_contribute_only_usage(ask: Ask) -> None:
    preamble = {**usage(prompt_tokens=5, completion_tokens=2), "prompt_filter_results": [{"prompt_index": 0}]}
    response = ask(preamble, chunk(content="Hi"), {"choices": []}, STOP)
    assert (message_texts(response), response["usage"]["input_tokens"]) == (["Hi"], 5)


@pytest.mark.parametrize("delta", [None, {}, {"content": None}, {"content": ""}])
def test_deltas_without_content_are_ignored(ask: Ask, delta: Any) -> None:
    empty = with_choice(STOP, delta=delta, finish_reason=None)
    assert message_texts(ask(empty, chunk(content="Hi"), empty, STOP)) == ["Hi"]


def test_only_the_first_choice_is_used(ask: Ask) -> None:
    other = with_choice(chunk(content="no", finish="length"), index=1)
    response = ask(chunk(content="yes"), other, STOP)
    assert (message_texts(response), response["status"]) == (["yes"], "completed")


def test_repeated_roles_and_unknown_fields_are_ignored(ask: Ask) -> None:
    noisy = {**chunk(role="assistant", content="Hi", obfuscation="xyz"), "system_fingerprint": "fp", "x_groq": {"a": 1}}
    assert message_texts(ask(noisy, noisy, {**STOP, "provider": "somebody"})) == ["HiHi"]


@pytest.mark.parametrize(
    "pieces",
    [
        [chunk(content="Hi"), {**STOP, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}],
        [chunk(content="Hi"), STOP, usage(prompt_tokens=7, completion_tokens=3)],
        [
            *({**chunk(content="H"), "usage": {"prompt_tokens": 7, "completion_tokens": n}} for n in (1, 3)),
            STOP,
        ],
    ],
    ids=["with the last chunk", "apart", "in every chunk"],
)
def test_usage_is_read_from_any_chunk(ask: Ask, pieces: list[Chunk]) -> None:
    found = ask(*pieces)["usage"]
    assert (found["input_tokens"], found["output_tokens"], found["total_tokens"]) == (7, 3, 10)


@pytest.mark.parametrize(
    "last",
    [
        with_choice(STOP, usage={"prompt_tokens": 7, "completion_tokens": 3}),
        {**STOP, "x_groq": {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}},
        {**STOP, "usage": {"input_tokens": "7", "output_tokens": 3.0}},
    ],
    ids=["of the choice", "of Groq", "in other words"],
)
def test_usage_is_found_in_other_places(ask: Ask, last: Chunk) -> None:
    found = ask(chunk(content="Hi"), last)["usage"]
    assert (found["input_tokens"], found["output_tokens"]) == (7, 3)


@pytest.mark.parametrize("number", [None, 0, -4, 10**12, "many"])
def test_usage_without_numbers_is_estimated(ask: Ask, number: Any) -> None:
    numbers = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), number)
    found = ask(chunk(content="12345678"), STOP, usage(**numbers), input="1234")["usage"]
    assert (found["input_tokens"], found["output_tokens"]) == (1, 2)


def test_an_output_of_0_beside_an_answer_is_estimated(ask: Ask) -> None:
    found = ask(chunk(content="12345678"), STOP, usage(prompt_tokens=5, completion_tokens=0))["usage"]
    assert (found["input_tokens"], found["output_tokens"]) == (5, 2)


def test_missing_usage_is_estimated(ask: Ask) -> None:
    found = ask(chunk(content="12345678"), STOP, input="1234")["usage"]
    assert (found["input_tokens"], found["output_tokens"]) == (1, 2)


def test_done_or_a_finish_reason_completes_a_turn(ask: Ask) -> None:
    assert ask(chunk(content="Hi"), done=True)["status"] == "completed"
    assert ask(chunk(content="Hi"), STOP, done=False)["status"] == "completed"


def test_a_stream_without_done_or_finish_reason_fails(ask: Ask) -> None:
    response = ask(chunk(content="Hi"), done=False)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert (message_texts(response), response["output"][0]["status"]) == (["Hi"], "incomplete")


def test_sse_comments_carriage_returns_and_multi_line_data_are_parsed(ask: Ask) -> None:
    spread = orjson.dumps(chunk(content="Hi"), option=orjson.OPT_INDENT_2).split(b"\n")
    raw = b": hello\r\n\r\nevent: x\r\n" + b"".join(b"data: " + line + b"\r\n" for line in spread) + b"\r\n"
    assert message_texts(ask(raw, STOP)) == ["Hi"]


BROKEN: dict[str, Answer] = {
    "an error in the stream": stream(chunk(content="Hel"), {"error": {"message": "gone", "code": 500}}),
    "an error inside of a 200": whole({"error": {"message": "gone", "code": 500}}),
    "what is no JSON": stream(chunk(content="Hel"), b"data: oops\n\n"),
    "half a line": stream(chunk(content="Hel"), b'data: {"choices": [{"del', Cut()),
    "half a line at the end": stream(chunk(content="Hel"), b'data: {"choices": [{"del', done=False),
    "a broken stream": stream(chunk(content="Hel"), Cut()),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_stream_fails_and_keeps_earlier_output(ask: Ask, what: str) -> None:
    response = ask.to(BROKEN[what])
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert message_texts(response) in (["Hel"], [])


ODD_VALUES = {
    "NaN": (b'{"index":0,"delta":{"content":"Hi"},"logprobs":{"content":[{"token":"Hi","logprob":NaN}]}}', "Hi"),
    "a small probability": (
        b'{"index":0,"delta":{"content":"Hi"},"logprobs":{"content":[{"token":"Hi","logprob":-Infinity}]}}',
        "Hi",
    ),
    "half a character": (b'{"index":0,"delta":{"content":"Gr\xc3"}}', "Gr\ufffd"),
    "no UTF-8": (b'{"index":0,"delta":{"content":"\xff\xfe"}}', "\ufffd\ufffd"),
    "half of a pair": (rb'{"index":0,"delta":{"content":"a\ud83d"}}', "a\ufffd"),
    "control characters": (b'{"index":0,"delta":{"content":"a\x01b"}}', "a\x01b"),
    "a huge number": (b'{"index":0,"delta":{"content":"Hi"},"x":1' + b"0" * 400 + b"}", "Hi"),
}


@pytest.mark.parametrize("what", ODD_VALUES)
def test_an_unexpected_value_does_not_discard_the_answer(ask: Ask, what: str) -> None:
    choice, expected = ODD_VALUES[what]
    response = ask(b'data: {"choices":[%b]}\n\n' % choice, STOP, **LOGPROBS)
    assert (response["status"], message_texts(response)) == ("completed", [expected])


# -- text --------------------------------------------------------------------------------------------------------------


def test_a_message_opens_with_its_first_text_and_closes_in_order(ask: Ask) -> None:
    events = ask.events(chunk(role="assistant", content=""), chunk(content="Hi"), STOP)
    assert [name.removeprefix("response.") for name in types(events)[2:-1]] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]


def test_text_around_tool_calls_becomes_separate_messages(ask: Ask) -> None:
    first, second = call(0, "look"), call(1, "listen")
    text = [chunk(content=word) for word in ("before", "between", "after")]
    response = ask(text[0], first, text[1], second, text[2], STOP, tools=TOOLS)
    assert item_types(response) == ["message", "function_call"] * 2 + ["message"]
    assert message_texts(response) == ["before", "between", "after"]


def test_whitespace_after_reasoning_is_equal_in_deltas_and_final_text(ask: Ask) -> None:
    events = ask.events(chunk(reasoning_content="Hm."), chunk(content="\n\n"), chunk(content="Hi"), STOP)
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert message_texts(events[-1]["response"]) == [text] == ["\n\nHi"]


def test_citations_become_text_annotations(ask: Ask) -> None:
    cited = {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2}
    annotation = {"type": "url_citation", "url_citation": cited}
    events = ask.events(chunk(content="Hi"), chunk(annotations=[annotation]), STOP)
    shown = {"type": "url_citation", **cited}
    assert [e["annotation"] for e in events if e["type"] == "response.output_text.annotation.added"] == [shown]
    assert events[-1]["response"]["output"][0]["content"][0]["annotations"] == [shown]


@pytest.mark.parametrize(
    "annotation",
    [
        {"type": "url_citation", "url": "https://a.example"},
        {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": None, "content": "More."}},
        {"type": "url_citation", "url": "https://a.example", "title": "", "start_index": None, "favicon": "x"},
        {"url": "https://a.example"},
    ],
    ids=["flat", "more fields", "null fields", "no type"],
)
def test_citations_with_more_or_fewer_fields_are_kept(ask: Ask, annotation: dict[str, Any]) -> None:
    response = ask(chunk(content="Hi", annotations=[annotation, None, {"type": "mood"}]), STOP)
    expected = {"type": "url_citation", "url": "https://a.example", "title": "https://a.example"}
    (found,) = response["output"][0]["content"][0]["annotations"]
    assert found == {**expected, "start_index": 0, "end_index": 0}


FOUND: dict[str, Any] = {
    "citations": ["https://a.example", "https://b.example"],
    "search_results": [{"url": "https://a.example", "title": "A"}],
}


@pytest.mark.parametrize(
    "pieces",
    [
        [{**chunk(content="Cats"), **FOUND}, {**chunk(content=" purr.[1]"), **FOUND}, {**STOP, **FOUND}],
        [chunk(content="Cats purr.[1]"), STOP, {**usage(), **FOUND}],
        [
            chunk(content="Cats purr.[1]"),
            {**STOP, "search_results": [{"url": "https://a.example", "title": "A"}, FOUND["citations"][1]]},
        ],
    ],
    ids=["in every chunk", "at the end", "only results"],
)
def test_sources_beside_the_choices_become_citations(ask: Ask, pieces: list[Chunk]) -> None:
    (part,) = ask(*pieces)["output"][0]["content"]
    assert part["annotations"] == [
        {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 10, "end_index": 13},
        {
            "type": "url_citation",
            "url": "https://b.example",
            "title": "https://b.example",
            "start_index": 0,
            "end_index": 0,
        },
    ]


def test_sources_that_are_also_annotations_are_cited_once(ask: Ask) -> None:
    cited = {"type": "url_citation", "url": "https://a.example"}
    (part,) = ask(chunk(content="Hi", annotations=[cited]), {**STOP, "citations": ["https://a.example", 5]})["output"][
        0
    ]["content"]
    assert [annotation["url"] for annotation in part["annotations"]] == ["https://a.example"]


def test_logprobs_are_returned_only_if_included_and_limited_to_top_logprobs(ask: Ask) -> None:
    tops = [{"token": token, "logprob": -0.5, "bytes": [72]} for token in ("Hi", "Ho", "Ha")]
    given = {"content": [{**tops[0], "top_logprobs": tops}]}
    written = with_choice(chunk(content="Hi"), logprobs=given)
    assert ask(written, STOP)["output"][0]["content"][0]["logprobs"] == []
    asked = ask(written, STOP, top_logprobs=2, **LOGPROBS)["output"][0]["content"][0]["logprobs"]
    assert [top["token"] for top in asked[0]["top_logprobs"]] == ["Hi", "Ho"]


def test_logprobs_without_text_are_kept(ask: Ask) -> None:
    given = {"content": [{"token": "\ufffd", "logprob": -0.5, "bytes": [240], "top_logprobs": []}]}
    silent = with_choice(chunk(), logprobs=given)
    (part,) = ask(silent, chunk(content="Hi"), STOP, **LOGPROBS)["output"][0]["content"]
    assert [one["token"] for one in part["logprobs"]] == ["\ufffd"]


# -- refusals and filters ----------------------------------------------------------------------------------------------


def test_text_and_a_refusal_are_two_parts_of_one_message(ask: Ask) -> None:
    (message,) = ask(chunk(content="Well, "), chunk(refusal="I "), chunk(refusal="won't."), STOP)["output"]
    assert [part["type"] for part in message["content"]] == ["output_text", "refusal"]
    assert message["content"][1]["refusal"] == "I won't."


@pytest.mark.parametrize("text", ["Well", ""])
def test_a_content_filter_leaves_the_response_incomplete(ask: Ask, text: str) -> None:
    response = ask(chunk(content=text), chunk(finish="content_filter"))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert message_texts(response) == [text][: bool(text)]


# -- tool calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [
        [
            {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{"}},
            {"index": 0, "function": {"arguments": "}"}},
        ],
        [{"index": 7, "id": "call_1", "function": {"name": "look", "arguments": "{}"}}],
        [{"id": "call_1", "function": {"name": "look", "arguments": "{}"}}],
        [
            {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{"}},
            {"index": 0, "id": "call_1", "function": {"arguments": "}"}},
        ],
    ],
    ids=["two entries", "another index", "no index", "the id again"],
)
def test_tool_call_deltas_are_joined_by_index_or_id(ask: Ask, entries: list[Any]) -> None:
    (item,) = ask(chunk(tool_calls=entries), chunk(tool_calls=[]), STOP, tools=TOOLS)["output"]
    assert (item["call_id"], item["name"], item["arguments"]) == ("call_1", "look", "{}")


def test_the_same_index_with_a_new_id_starts_another_call(ask: Ask) -> None:
    response = ask(call(0, "look"), call(0, "listen"), STOP, tools=TOOLS)
    assert [item["call_id"] for item in response["output"]] == ["call_look", "call_listen"]


@pytest.mark.parametrize("names", [["look"], ["lo", "ok"], ["look", "look"], [None, "look"]])
def test_a_function_name_may_arrive_split_repeated_or_late(ask: Ask, names: list[str | None]) -> None:
    deltas = [chunk(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": name}}]) for name in names]
    arguments = chunk(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])
    (item,) = ask(*deltas, arguments, STOP, tools=TOOLS)["output"]
    assert (item["name"], item["arguments"]) == ("look", "{}")


@pytest.mark.parametrize(
    "pieces", [[None], [""], ['{"a": 1}'], list('{"a": 1}')], ids=["null", "empty", "whole", "pieces"]
)
def test_arguments_in_any_chunking_are_joined_and_never_empty(ask: Ask, pieces: list[str | None]) -> None:
    opening = chunk(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "look"}}])
    rest = [chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces]
    (item,) = ask(opening, *rest, STOP, tools=TOOLS)["output"]
    assert item["arguments"] == ("".join(piece or "" for piece in pieces) or "{}")


def test_interleaved_calls_are_emitted_one_after_the_other(ask: Ask) -> None:
    opening = [call(0, "look", arguments="{"), call(1, "listen", arguments="{")]
    rest = [chunk(tool_calls=[{"index": index, "function": {"arguments": "}"}}]) for index in (0, 1)]
    response = ask(*opening, *rest, STOP, tools=TOOLS)
    assert [(item["name"], item["arguments"]) for item in response["output"]] == [("look", "{}"), ("listen", "{}")]


def test_calls_with_a_wrong_finish_reason_or_legacy_shape_are_accepted(ask: Ask) -> None:
    old = chunk(function_call={"name": "look", "arguments": "{}"})
    assert item_types(ask(call(0, "look"), STOP, tools=TOOLS)) == ["function_call"]
    assert item_types(ask(old, chunk(finish="function_call"), tools=TOOLS)) == ["function_call"]


def test_a_tool_calls_finish_reason_without_calls_fails(ask: Ask) -> None:
    assert ask(chunk(content="Hm."), chunk(finish="tool_calls"), tools=TOOLS)["status"] == "failed"


def test_a_truncated_call_is_incomplete(ask: Ask) -> None:
    response = ask(call(0, "look", arguments='{"a'), chunk(finish="length"), tools=TOOLS)
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert response["output"][0]["arguments"] == '{"a'


def test_invalid_json_arguments_of_client_functions_are_passed_through(ask: Ask) -> None:
    response = ask(call(0, "look", arguments="{oops"), chunk(finish="tool_calls"), tools=TOOLS)
    assert (response["status"], response["output"][0]["arguments"]) == ("completed", "{oops")


# -- the envelope ------------------------------------------------------------------------------------------------------


def test_created_is_sent_before_the_upstream_call_and_the_last_event_has_the_status(api: Api, script: Script) -> None:
    for finish, status in (("stop", "completed"), ("length", "incomplete")):
        gate = Gate()
        script.then(stream(gate, *text("Hi", finish=finish)))
        with api.stream(model=script.model, input="Hi") as live:
            assert types([live.next(), live.next()]) == ["response.created", "response.in_progress"]
            gate.open()
            assert live.rest()[-1]["type"] == f"response.{status}"


def test_the_first_events_carry_every_parameter_and_no_output(ask: Ask) -> None:
    created, running, *_, last = ask.events(*text("Hi"), temperature=0.25, metadata={"a": "b"}, tools=TOOLS)
    assert created["response"] == running["response"]
    assert (created["response"]["output"], created["response"]["usage"]) == ([], None)
    changed = {"status", "output", "usage", "completed_at", "service_tier"}
    assert {key for key in last["response"] if last["response"][key] != created["response"][key]} == changed


def test_a_replayed_stream_is_byte_identical(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning="Hm."), chunk(content="Hi"), *calls(look="{}")))
    with api.stream(model=script.model, input="Hi", tools=TOOLS) as live:
        events = live.rest()
    replay = api.get(f"/responses/{events[0]['response']['id']}", stream="true")
    assert replay.text == "\n".join([*live.raw, ""])


def test_a_disconnect_cancels_only_unstored_responses(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), Gate()), stream(chunk(content="Hel"), gate, *text("lo")))
    body = {"model": script.model, "input": "Hi"}
    with api.open("/responses", {**body, "stream": True, "store": False}):
        script.wait_for_call()
    assert script.received[0].was_closed()
    with api.stream(**body) as live:
        response_id = live.next()["response"]["id"]
        gate.wait_until_reached()
    gate.open()
    assert eventually(lambda: api.retrieve(response_id)["status"] == "completed")


@pytest.mark.slow
def test_keepalive_comments_are_sent_while_the_upstream_is_silent(api: Api, script: Script) -> None:
    script.then(stream(Pause(11), *text("Hi")))
    with api.stream(model=script.model, input="Hi") as live:
        assert live.rest()[-1]["type"] == "response.completed"
    assert ": ping" in live.raw


def test_an_idle_upstream_times_out(short_timeout_api: Api, script: Script) -> None:
    script.then(stream(chunk(content="Hel"), Gate()))
    response = short_timeout_api.events(model=script.model, input="Hi")[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert script.received[0].was_closed()


@pytest.mark.parametrize("content", ["Hi", [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]])
def test_a_json_body_instead_of_a_stream_is_accepted(ask: Ask, content: Any) -> None:
    answer = whole(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}
    )
    assert message_texts(ask.to(answer)) == ["Hi"]


def test_a_json_body_with_calls_and_null_content_is_accepted(ask: Ask) -> None:
    asked = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    message = {"role": "assistant", "content": None, "tool_calls": asked}
    answer = whole({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    assert item_types(ask.to(answer, tools=TOOLS)) == ["function_call"]


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": None}, {"error": {"message": "gone"}}])
def test_a_json_body_without_choices_fails(ask: Ask, body: Any) -> None:
    response = ask.to(whole(body))
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
