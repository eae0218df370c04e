"""Reasoning of different upstreams as items: raw text, summaries, think tags, and what is sent back to the model."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.model_capabilities import describe
from tests.support.upstream import Script, stream

pytestmark = pytest.mark.usefixtures("only_streams")

STOP = [chunk(finish="stop"), usage()]
LOGPROBS = "message.output_text.logprobs"


def summary(words: str, index: int = 0) -> Chunk:
    """A chunk with a part of a summary, in both fields that servers use."""
    return chunk(reasoning=words, reasoning_details=[{"type": "reasoning.summary", "summary": words, "index": index}])


def detail(**entry: Any) -> Chunk:
    return chunk(reasoning_details=[{"index": 0, **entry}])


def shapes(response: dict[str, Any]) -> list[Any]:
    """Return type and texts of each output item."""
    found: list[Any] = []
    for item in response["output"]:
        words = ["".join(part.get("text", "") for part in item.get(key) or ()) for key in ("summary", "content")]
        found.append((item["type"], *words) if item["type"] == "reasoning" else (item["type"], words[1]))
    return found


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "signature": "s"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]},
        {"reasoning_content": "Hm.", "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}]},
    ],
)
def test_reasoning_is_read_from_every_known_field(api: Api, script: Script, thought: dict[str, Any]) -> None:
    script.then(stream(chunk(**thought), *text("84")))
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert shapes(response) == [("reasoning", "", "Hm."), ("message", "84")]


def test_one_chunk_may_contain_reasoning_and_text(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning_content="Hm.", content="84"), *STOP))
    assert shapes(api.create(model=script.model, input="Hi")) == [("reasoning", "", "Hm."), ("message", "84")]


def test_reasoning_after_text_is_a_new_item(api: Api, script: Script) -> None:
    pieces = [chunk(reasoning="a"), chunk(content="b"), chunk(reasoning="c"), chunk(content="d")]
    script.then(stream(*pieces, *STOP))
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert shapes(response) == [("reasoning", "", "a"), ("message", "b"), ("reasoning", "", "c"), ("message", "d")]


def test_reasoning_without_text_creates_no_message(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning="a"), *STOP)).then(stream(chunk(reasoning="a"), chunk(finish="length")))
    whole, cut = (api.create(model=script.model, input="Hi") for _ in range(2))
    assert (whole["status"], shapes(whole)) == ("completed", [("reasoning", "", "a")])
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["status"] == "incomplete"


# -- summaries ---------------------------------------------------------------------------------------------------------


def test_a_summary_is_streamed_part_by_part(api: Api, script: Script) -> None:
    script.then(stream(summary("Mul"), summary("tiply."), summary("Check.", 1), chunk(content="84"), *STOP))
    events = api.events(model=script.model, input="Hi")
    part = ["reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done"]
    added = "reasoning_summary_part.added"
    inside = [added, part[0], *part, added, *part]
    assert types(events)[2:12] == ["output_item.added", *inside][:10]
    item = events[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": words} for words in ("Multiply.", "Check.")]
    assert item["content"] == []


def test_a_summary_precedes_raw_reasoning_in_its_item(api: Api, script: Script) -> None:
    script.then(stream(summary("Short."), detail(type="reasoning.text", text="Long.", index=1), *text("84")))
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert shapes(response) == [("reasoning", "Short.", "Long."), ("message", "84")]


def test_a_summary_after_raw_reasoning_is_another_item(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning="Long."), summary("Short."), *text("84")))
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert shapes(response) == [("reasoning", "", "Long."), ("reasoning", "Short.", ""), ("message", "84")]


def test_a_summary_is_shown_even_if_raw_reasoning_is_hidden(api: Api, script: Script) -> None:
    describe(script, raw_reasoning=False)
    script.then(stream(chunk(reasoning="Long."), summary("Short."), chunk(reasoning="More."), *text("84")))
    events = api.events(model=script.model, input="Hi")
    (thought, _) = events[-1]["response"]["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "Short."}]
    assert "Long." not in str(events)


# -- think tags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        ["<think>Hm.</think>84"],
        ["<thi", "nk>H", "m.</th", "ink>8", "4"],
        list("<think>Hm.</think>84"),
        ["\n", "<think>", "Hm.", "</think>", "84"],
    ],
)
def test_think_tags_may_be_split_across_chunks(api: Api, script: Script, pieces: list[str]) -> None:
    describe(script, think_tags=True).say(*pieces)
    response = api.events(model=script.model, input="Hi")[-1]["response"]
    assert shapes(response) == [("reasoning", "", "Hm."), ("message", "84")]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("84", [("message", "84")]),
        ("a `<think>`b", [("message", "a `<think>`b")]),
        ("<thoughts>", [("message", "<thoughts>")]),
        ("<thi", [("message", "<thi")]),
        ("<think>Hm. </thin", [("reasoning", "", "Hm. </thin")]),
        ("<think></think>84", [("message", "84")]),
        ("<b>84</b>", [("message", "<b>84</b>")]),
    ],
)
@pytest.mark.parametrize("chunks", ["one", "many"])
def test_text_that_resembles_a_think_tag_stays_text(
    api: Api, script: Script, words: str, output: list[Any], chunks: str
) -> None:
    describe(script, think_tags=True).say(*(list(words) if chunks == "many" else [words]))
    assert shapes(api.events(model=script.model, input="Hi")[-1]["response"]) == output


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("Hm.</think>84", [("reasoning", "", "Hm."), ("message", "84")]),
        ("8<think>Hm.</think>4", [("message", "8"), ("reasoning", "", "Hm."), ("message", "4")]),
        ("<think>a</think>b<think>c</think>", [("reasoning", "", "a"), ("message", "b"), ("reasoning", "", "c")]),
        ("<THINK>Hm.</THINK>84", [("reasoning", "", "Hm."), ("message", "84")]),
        ("<thought>Hm.</thought>84", [("reasoning", "", "Hm."), ("message", "84")]),
        ("[THINK]Hm.[/THINK]84", [("reasoning", "", "Hm."), ("message", "84")]),
        ("<think>Hm.</think></think>84", [("reasoning", "", "Hm."), ("message", "84")]),
    ],
)
@pytest.mark.parametrize("chunks", ["one", "many"])
def test_reasoning_in_tags_is_never_text(api: Api, script: Script, words: str, output: list[Any], chunks: str) -> None:
    describe(script, think_tags=True).say(*(list(words) if chunks == "many" else [words]))
    assert shapes(api.events(model=script.model, input="Hi")[-1]["response"]) == output


def test_think_tags_are_text_unless_the_model_is_configured_for_them(api: Api, script: Script) -> None:
    script.say("<think>Hm.</think>84")
    assert shapes(api.create(model=script.model, input="Hi")) == [("message", "<think>Hm.</think>84")]


def test_logprobs_of_think_tags_and_reasoning_are_dropped(api: Api, script: Script) -> None:
    describe(script, think_tags=True)
    pieces = []
    for token in ("<th", "ink>", "Hm", "</think>", "8", "4"):
        piece = chunk(content=token)
        piece["choices"][0]["logprobs"] = {"content": [{"token": token, "logprob": -0.5, "bytes": None}]}
        pieces.append(piece)
    script.then(stream(*pieces, *STOP))
    response = api.create(model=script.model, input="Hi", include=[LOGPROBS])
    assert [entry["token"] for entry in response["output"][1]["content"][0]["logprobs"]] == ["8", "4"]


# -- back to the model -------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def test_reasoning_is_sent_back_only_to_models_configured_for_it(api: Api, script: Script) -> None:
    script.then(stream(chunk(reasoning="Look."), *calls(look="{}"))).say("A cat.")
    first = api.create(model=script.model, input="Hi", tools=[TOOL])
    output = {"type": "function_call_output", "call_id": "call_look", "output": "cat"}
    api.create(model=script.model, input=[output], previous_response_id=first["id"])
    assert "Look." not in str(script.messages[1])


def test_reasoning_before_a_call_is_sent_back_with_it(api: Api, script: Script) -> None:
    describe(script, reasoning_field="reasoning_content")
    script.then(stream(chunk(reasoning="Look."), *calls(look="{}"))).say("A cat.")
    first = api.create(model=script.model, input="Hi", tools=[TOOL])
    output = {"type": "function_call_output", "call_id": "call_look", "output": "cat"}
    api.create(model=script.model, input=[output], previous_response_id=first["id"])
    asked = script.messages[1][1]
    assert (asked["role"], asked["reasoning_content"]) == ("assistant", "Look.")
    assert [call["id"] for call in asked["tool_calls"]] == ["call_look"]


@pytest.mark.parametrize(
    ("asked", "shown", "sent"),
    [(None, None, []), ("auto", "current_turn", []), ("current_turn",) * 2 + ([],), ("all_turns",) * 2 + (["Hm."],)],
)
def test_earlier_reasoning_is_sent_back_only_on_request(
    api: Api, script: Script, asked: str | None, shown: str | None, sent: list[str]
) -> None:
    describe(script, reasoning_field="reasoning").then(stream(chunk(reasoning="Hm."), *text("84"))).say("Yes.")
    first = api.create(model=script.model, input="12*7?")
    reasoning = {"context": asked} if asked else None
    second = api.create(model=script.model, input="Sure?", previous_response_id=first["id"], reasoning=reasoning)
    assert second["reasoning"].get("context") == shown
    assert [m["reasoning"] for m in script.messages[1] if "reasoning" in m] == sent


def test_signatures_are_sent_back_with_the_reasoning_they_sign(api: Api, script: Script) -> None:
    describe(script, reasoning_field="reasoning_details", raw_reasoning=False)
    pieces = [
        detail(type="reasoning.text", text="Lo", format="x"),
        detail(type="reasoning.text", text="ok."),
        detail(type="reasoning.text", signature="signed"),
        detail(type="reasoning.encrypted", data="blob", index=1),
    ]
    script.then(stream(*pieces, *calls(look="{}"))).say("A cat.")
    first = api.create(model=script.model, input="Hi", tools=[TOOL])
    output = {"type": "function_call_output", "call_id": "call_look", "output": "cat"}
    api.create(model=script.model, input=[output], previous_response_id=first["id"])
    assert script.messages[1][1]["reasoning_details"] == [
        {"index": 0, "type": "reasoning.text", "text": "Look.", "format": "x", "signature": "signed"},
        {"index": 1, "type": "reasoning.encrypted", "data": "blob"},
    ]


def test_a_late_signature_creates_no_item(api: Api, script: Script) -> None:
    late = detail(type="reasoning.text", signature="signed")
    script.then(stream(chunk(reasoning="Hm."), chunk(content="84"), late, *STOP))
    response = api.create(model=script.model, input="Hi")
    assert shapes(response) == [("reasoning", "", "Hm."), ("message", "84")]
