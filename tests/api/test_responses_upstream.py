"""A model behind an upstream that speaks Responses itself: what it gets, and what becomes of what it says."""

import pytest

from tests.support.api import Api
from tests.support.responses_upstream import (
    added,
    answer,
    called,
    custom_call,
    cut,
    done,
    end,
    event,
    function_call,
    message,
    reasoning,
    said,
    texts,
    thought,
    unstreamed,
)
from tests.support.streams import types
from tests.support.upstream import Answer, Script, stream

CITATION = {"type": "url_citation", "url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2}
RAW = {"output_index": 0, "content_index": 0, "item_id": "rs_theirs"}
REFUSAL = {"output_index": 0, "content_index": 0, "item_id": "msg_theirs"}
REFUSED = {**message(""), "content": [{"type": "refusal", "refusal": "I won't."}]}
PROGRAM = {"id": "prog_theirs", "type": "program", "call_id": "call_1", "code": "1", "fingerprint": "f"}
CUSTOM = {"output_index": 0, "item_id": "ctc_theirs"}
ANSWERS: dict[str, Answer] = {
    "text": answer(said("Hel", "lo")),
    "two parts": answer(
        [added(0, message("")), *texts(0, "One. "), *texts(0, "Two.", part=1), done(0, message("", content=[]))]
    ),
    "a message without a word": answer([added(0, message("")), done(0, message(""))]),
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
    "a summary": answer(thought("Hm. ", "Ah.", encrypted_content="theirs"), said("Yes", index=1)),
    "encrypted reasoning": answer(
        [added(0, reasoning()), done(0, reasoning(encrypted_content="theirs"))], said("Yes", index=1)
    ),
    "raw reasoning": answer(
        [
            added(0, reasoning()),
            event("content_part.added", **RAW, part={"type": "reasoning_text", "text": ""}),
            event("reasoning_text.delta", **RAW, delta="Hm. "),
            event("reasoning.delta", **RAW, delta="Ah."),
            done(0, reasoning(content=[{"type": "reasoning_text", "text": "Hm. Ah."}])),
        ],
        said("Yes", index=1),
    ),
    "one call": answer(called("look", '{"a"', ":1}")),
    "a call without arguments": answer(called("look")),
    "parallel calls": answer(called("look", '{"a":1}'), called("listen", '{"b":2}', index=1)),
    "a custom call": answer(
        [
            added(0, custom_call("sh", "")),
            event("custom_tool_call_input.delta", **CUSTOM, delta="ls "),
            event("custom_tool_call_input.delta", **CUSTOM, delta="-l"),
            done(0, custom_call("sh", "ls -l")),
        ]
    ),
    "words and a call": answer(said("Let me see."), called("look", "{}", index=1)),
    "items side by side": answer(
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
    "the response alone": stream(end(output=[reasoning("Hm."), message("Hello")]), done=False),
    "no stream": unstreamed(reasoning("Hm."), message("Hello"), function_call("look", '{"a":1}')),
    "items without ends": answer([added(0, message("")), *texts(0, "Hel", "lo")]),
    "an item of another type": answer([event("output_item.done", output_index=0, item=PROGRAM)]),
    "events that nobody knows": answer(event("weather.changed", to="rain"), said("Hello"), {"type": "keepalive"}),
    "named events": stream(b"event: response.created\n: comment\n\n", *answer(said("Hi")).pieces, done=True),
    "cut by its length": answer(said("Hel"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
    "a call that is cut": answer(
        [
            added(0, function_call("look", "")),
            event("function_call_arguments.delta", output_index=0, delta='{"a'),
            done(0, function_call("look", '{"a', status="incomplete")),
        ],
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "cut by a filter": answer(said("Hel"), status="incomplete", incomplete_details={"reason": "content_filter"}),
    "no end": cut(said("Hello")),
    "unicode": answer(said("Grüße", " 👋🏽", "\u2028", '"\\\n')),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_what_is_streamed_is_what_is_stored(api: Api, relayed: Script, what: str) -> None:
    relayed.then(ANSWERS[what])
    events = api.events(model=relayed.model, input="Hi", metadata={"a": "b"})
    assert types(events)[0] == "response.created"
    terminal = events[-1]["response"]
    assert api.retrieve(terminal["id"]) == terminal
    assert "theirs" not in str(terminal)
