"""Models of an upstream with the Responses API: the responses that clients get."""

import pytest

from responses.models import Turn
from tenants import scope
from tests.support.api import Api, Caller
from tests.support.responses_upstream import (
    USAGE,
    added,
    answer,
    call_events,
    custom_call,
    cut,
    done,
    end,
    event,
    function_call,
    message,
    message_events,
    reasoning,
    reasoning_events,
    response,
    texts,
    unstreamed,
)
from tests.support.streams import types
from tests.support.upstream import Answer, Gate, Script, stream

CITATION = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2}
RAW = {"output_index": 0, "content_index": 0, "item_id": "rs_theirs"}
REFUSAL = {"output_index": 0, "content_index": 0, "item_id": "msg_theirs"}
REFUSED = {**message(""), "content": [{"type": "refusal", "refusal": "I won't."}]}
PROGRAM = {"id": "prog_theirs", "type": "program", "call_id": "call_1", "code": "1", "fingerprint": "f"}
HELLO = message("Hello")
CUSTOM = {"output_index": 0, "item_id": "ctc_theirs"}


ANSWERS: dict[str, Answer] = {
    "text": answer(message_events("Hel", "lo")),
    "two parts": answer(
        [added(0, message("")), *texts(0, "One. "), *texts(0, "Two.", part=1), done(0, message("", content=[]))]
    ),
    "an empty message": answer([added(0, message("")), done(0, message(""))]),
    "nothing": answer(),
    "a citation": answer(
        [
            added(0, message("")),
            event("output_text.delta", output_index=0, content_index=0, delta="Hel", logprobs=[]),
            event("output_text.annotation.added", output_index=0, content_index=0, annotation=CITATION),
            event("output_text.delta", output_index=0, content_index=0, delta="lo", logprobs=[]),
            done(0, message("Hello")),
        ]
    ),
    "a refusal": answer(
        [
            added(0, message("")),
            event("content_part.added", **REFUSAL, part={"type": "refusal", "refusal": ""}),
            event("refusal.delta", **REFUSAL, delta="I "),
            event("refusal.delta", **REFUSAL, delta="won't."),
            done(0, REFUSED),
        ]
    ),
    "a summary": answer(reasoning_events("Hm. ", "Ah.", encrypted_content="theirs"), message_events("Yes", index=1)),
    "encrypted reasoning": answer(
        [added(0, reasoning()), done(0, reasoning(encrypted_content="theirs"))], message_events("Yes", index=1)
    ),
    "raw reasoning": answer(
        [
            added(0, reasoning()),
            event("content_part.added", **RAW, part={"type": "reasoning_text", "text": ""}),
            event("reasoning_text.delta", **RAW, delta="Hm. "),
            event("reasoning.delta", **RAW, delta="Ah."),
            done(0, reasoning(content=[{"type": "reasoning_text", "text": "Hm. Ah."}])),
        ],
        message_events("Yes", index=1),
    ),
    "one call": answer(call_events("look", '{"a"', ":1}")),
    "a call without arguments": answer(call_events("look")),
    "parallel calls": answer(call_events("look", '{"a":1}'), call_events("listen", '{"b":2}', index=1)),
    "a custom call": answer(
        [
            added(0, custom_call("sh", "")),
            event("custom_tool_call_input.delta", **CUSTOM, delta="ls "),
            event("custom_tool_call_input.delta", **CUSTOM, delta="-l"),
            done(0, custom_call("sh", "ls -l")),
        ]
    ),
    "text and a call": answer(message_events("Let me see."), call_events("look", "{}", index=1)),
    "interleaved items": answer(
        [
            added(0, message("")),
            added(1, function_call("look", "")),
            event("output_text.delta", output_index=0, content_index=0, delta="Let ", logprobs=[]),
            event("function_call_arguments.delta", output_index=1, delta="{"),
            event("output_text.delta", output_index=0, content_index=0, delta="me see.", logprobs=[]),
            event("function_call_arguments.delta", output_index=1, delta="}"),
            done(1, function_call("look", "{}")),
            done(0, message("Let me see.")),
        ]
    ),
    "items without deltas": answer(
        [done(0, reasoning("Hm.")), done(1, message("Hello")), done(2, function_call("look", "{}"))]
    ),
    "only the response": stream(end(output=[reasoning("Hm."), message("Hello")]), done=False),
    "no stream": unstreamed(reasoning("Hm."), message("Hello"), function_call("look", '{"a":1}')),
    "items without done events": answer([added(0, message("")), *texts(0, "Hel", "lo")]),
    "an item of an unknown type": answer([event("output_item.done", output_index=0, item=PROGRAM)]),
    "unknown events": answer(event("weather.changed", to="rain"), message_events("Hello"), {"type": "keepalive"}),
    "named events": stream(b"event: response.created\n: comment\n\n", *answer(message_events("Hi")).pieces, done=True),
    "truncated by length": answer(
        message_events("Hel"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}
    ),
    "a truncated call": answer(
        [
            added(0, function_call("look", "")),
            event("function_call_arguments.delta", output_index=0, delta='{"a'),
            done(0, function_call("look", '{"a', status="incomplete")),
        ],
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "stopped by a content filter": answer(
        message_events("Hel"), status="incomplete", incomplete_details={"reason": "content_filter"}
    ),
    "no final event": cut(message_events("Hello")),
    "unicode": answer(message_events("Grüße", " 👋🏽", "\u2028", '"\\\n')),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_streamed_and_stored_response_are_equal(api: Api, responses_api_script: Script, what: str) -> None:
    responses_api_script.then(ANSWERS[what])
    events = api.events(model=responses_api_script.model, input="Hi", metadata={"a": "b"})
    assert types(events)[0] == "response.created"
    terminal = events[-1]["response"]
    assert api.retrieve(terminal["id"]) == terminal
    assert "theirs" not in str(terminal)


def test_interleaved_items_are_emitted_one_after_the_other(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(ANSWERS["interleaved items"])
    events = api.events(model=responses_api_script.model, input="Hi")
    deltas = [(event["output_index"], event["delta"]) for event in events if "delta" in event]
    assert deltas == [(0, "Let "), (0, "me see."), (1, "{}")]


def test_deltas_are_forwarded_immediately(api: Api, responses_api_script: Script) -> None:
    gate = Gate()
    place = {"output_index": 0, "content_index": 0, "logprobs": []}
    first, second = (event("output_text.delta", **place, delta=piece) for piece in ("Hel", "lo"))
    responses_api_script.then(answer([added(0, message("")), first], gate, [second, done(0, message("Hello"))]))
    with api.stream(model=responses_api_script.model, input="Hi") as live:
        assert next(event for event in live.events if "delta" in event)["delta"] == "Hel"
        gate.open()
        assert live.rest()[-1]["type"] == "response.completed"


def test_item_ids_are_replaced_and_call_ids_are_kept(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Let me see."), call_events("look", "{}", index=1)))
    text, call = api.create(model=responses_api_script.model, input="Hi")["output"]
    assert text["id"].startswith("msg_")
    assert call["id"].startswith("fc_")
    assert "theirs" not in str([text, call])
    assert call["call_id"] == "call_look"


def test_duplicate_call_ids_are_made_unique(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(
        answer(call_events("look", "{}"), call_events("look", "{}", index=1), call_events("l" * 70, "{}", index=2))
    )
    output = api.create(model=responses_api_script.model, input="Hi")["output"]
    assert len({call["call_id"] for call in output}) == 3
    assert all(len(call["call_id"]) <= 64 for call in output)


def test_annotation_events_follow_their_text(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(ANSWERS["a citation"])
    events = api.events(model=responses_api_script.model, input="Hi")
    kinds = [kind.removeprefix("response.") for kind in types(events)[4:-3]]
    assert kinds == [
        "output_text.delta",
        "output_text.delta",
        "output_text.annotation.added",
        "output_text.done",
    ]
    assert events[-1]["response"]["output"][0]["content"][0]["annotations"] == [CITATION]


def test_logprobs_are_returned_only_if_included(api: Api, responses_api_script: Script) -> None:
    logprob = {"token": "Hi", "logprob": -0.5, "top_logprobs": [{"token": "Ho", "logprob": -1.0}] * 3}
    delta = event("output_text.delta", output_index=0, content_index=0, delta="Hi", logprobs=[logprob])
    responses_api_script.always(answer([added(0, message("")), delta, done(0, message("Hi"))]))
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    for sent, expected in ((include, [2]), ({}, [])):
        (text,) = api.create(model=responses_api_script.model, input="Hi", **sent)["output"]
        assert [len(entry["top_logprobs"]) for entry in text["content"][0]["logprobs"]] == expected


def test_phases_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer([done(0, message("Wait.", phase="commentary")), done(1, message("Yes."))]))
    first, second = api.create(model=responses_api_script.model, input="Hi")["output"]
    assert first["phase"] == "commentary"
    assert "phase" not in second


def test_usage_and_service_tier_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(answer(message_events("Hello"), service_tier="flex"))
    made = api.create(model=responses_api_script.model, input="Hi")
    assert (made["usage"], made["service_tier"]) == (USAGE, "flex")
    assert api.retrieve(made["id"])["usage"] == USAGE


@pytest.mark.parametrize(
    ("what", "reason"),
    [("truncated by length", "max_output_tokens"), ("stopped by a content filter", "content_filter")],
)
def test_a_truncated_answer_is_incomplete(api: Api, responses_api_script: Script, what: str, reason: str) -> None:
    responses_api_script.then(ANSWERS[what])
    made = api.create(model=responses_api_script.model, input="Hi")
    assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": reason})


def test_an_incomplete_answer_in_a_completed_event_is_incomplete(api: Api, responses_api_script: Script) -> None:
    cut_short = response("incomplete", incomplete_details={"reason": "max_output_tokens"})
    responses_api_script.then(stream(*message_events("Hel"), event("completed", response=cut_short), done=False))
    assert api.create(model=responses_api_script.model, input="Hi")["status"] == "incomplete"


def test_items_of_unknown_types_are_passed_on(api: Api, responses_api_script: Script) -> None:
    responses_api_script.then(ANSWERS["an item of an unknown type"])
    (item,) = api.create(model=responses_api_script.model, input="Hi")["output"]
    assert {**item, "id": ""} == {**PROGRAM, "id": ""}
    assert item["id"] != PROGRAM["id"]


def test_the_upstream_request_id_is_stored(api: Api, responses_api_script: Script, caller: Caller) -> None:
    whole = answer(message_events("Hello"))
    responses_api_script.then(stream(*whole.pieces, done=False, headers={"x-request-id": "req_theirs"}))
    api.create(model=responses_api_script.model, input="Hi")
    with scope.team(caller.team.pk):
        assert Turn.objects.get().upstream_request_id == "req_theirs"


def test_a_stream_with_reasoning_at_a_message_does_not_break_its_conversation(
    api: Api, responses_api_script: Script
) -> None:
    summary = event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="Hm.")
    odd = answer([added(0, message("")), summary, *texts(0, "Hel", "lo"), done(0, message("Hello"))])
    responses_api_script.then(odd, odd, answer(message_events("84")))
    name = api.post("/conversations", {}).json()["id"]
    for stream_it in (True, False):
        asked = {"model": responses_api_script.model, "input": "Hi", "conversation": name}
        made = api.events(**asked)[-1]["response"] if stream_it else api.create(**asked)
        assert [(item["type"], item["content"][0]["text"]) for item in made["output"]] == [("message", "Hello")]
    assert api.create(model=responses_api_script.model, input="Hi", conversation=name)["status"] == "completed"


def test_the_finished_response_replaces_events_that_match_no_item(api: Api, responses_api_script: Script) -> None:
    lost = event("output_text.delta", output_index=3, content_index=0, delta="Hello", logprobs=[])
    responses_api_script.then(
        stream(
            *reasoning_events("Hm."), lost, event("completed", response=response("completed", reasoning("Hm."), HELLO))
        )
    )
    made = api.events(model=responses_api_script.model, input="Hi")[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["reasoning", "message"]
