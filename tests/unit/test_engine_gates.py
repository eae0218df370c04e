"""Turns that are held back: what is let through when, what is discarded, and how often a model is asked again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conversations.items import AssistantMessage, InputMessage
from kernel.errors import Failure
from responses.engine.events.response_body import Ending
from responses.engine.state import ModelTraits, RunContext
from responses.engine.steps import Emitted, RunEnded, Step, TurnDiscarded
from tests.support.chunks import Chunk, calls, chunk, text
from tests.support.runs import Played, begin, context, on_the_wire, play
from tests.support.scripted import ScriptedModel, ScriptedTools
from tests.support.streams import assert_well_formed

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
LOOK: dict[str, Any] = {"type": "function", "name": "look", "parameters": {}, "strict": False}
LISTEN: dict[str, Any] = {**LOOK, "name": "listen"}
TOO_LONG = Failure(code="context_length_exceeded", message="too long", param="input", status=400)
REQUIRED: dict[str, Any] = {"tools": [LOOK, LISTEN], "tool_choice": "required"}
NAMED: dict[str, Any] = {"tools": [LOOK, LISTEN], "tool_choice": {"type": "function", "name": "listen"}}
DIGITS = {
    "type": "custom",
    "name": "dial",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"},
}


def emitted(steps: Sequence[Step]) -> list[str]:
    """The types of what went out before its turn was over."""
    return [event.type for step in steps if isinstance(step, Emitted) for event in step.events]


def discarded(played: Played) -> list[str | None]:
    """What was wrong with the turns that do not count."""
    steps = [step for step in played.steps if isinstance(step, TurnDiscarded)]
    return [step.turn.discarded.defect if step.turn.discarded else None for step in steps]


def trusted(**traits: Any) -> RunContext:
    """The context of a request with a strict format, to a model of these traits."""
    return replace(context(text=FORMAT), traits=ModelTraits(**traits))


async def ended(model: ScriptedModel, given: RunContext) -> RunEnded:
    """The last step of such a run."""
    end = [step async for step in begin(model, given=given).steps()][-1]
    model.verify()
    assert isinstance(end, RunEnded)
    return end


async def test_an_answer_with_a_format_is_told_when_it_was_checked() -> None:
    played = await play(text('{"a"', ":1}"), text=FORMAT)
    assert (emitted(played.steps), played.end.ending.status) == ([], "completed")
    assert_well_formed(played.events)


async def test_reasoning_is_told_at_once() -> None:
    played = await play([chunk(reasoning="hm"), *text('{"a":1}')], text=FORMAT)
    assert "response.reasoning_text.delta" in emitted(played.steps)
    assert "response.output_text.delta" not in emitted(played.steps)
    assert_well_formed(played.events)


async def test_an_answer_that_breaks_its_format_is_discarded_and_asked_for_once_more() -> None:
    played = await play(text("It is 1."), text('{"a":1}'), text=FORMAT)
    assert discarded(played) == ["The model's answer is not JSON, as its format requires."]
    assert [item["content"][0]["text"] for item in played.output] == ['{"a":1}']
    assert_well_formed(played.events)


async def test_a_discarded_turn_costs_its_tokens_and_counts_as_a_turn() -> None:
    played = await play(text("It is 1."), text('{"a":1}'), text=FORMAT)
    assert (played.end.usage.output_tokens, played.end.turn and played.end.turn.number) == (6, 1)


async def test_the_model_is_told_what_it_said_and_what_was_wrong_with_it() -> None:
    model = ScriptedModel(text("It is 1."), text('{"a":1}'))
    await ended(model, trusted())
    said, complaint = model.requests[1].items[-2:]
    assert isinstance(said, AssistantMessage)
    assert isinstance(complaint, InputMessage)
    assert "is not JSON" in complaint.parts()[0].text  # type: ignore[union-attr]
    assert model.requests[1].first_output_index == 0


async def test_a_second_broken_answer_fails_the_run_and_is_not_shown() -> None:
    played = await play(text("It is 1."), text("Still 1."), text=FORMAT)
    assert (played.end.ending.status, played.output) == ("failed", [])
    assert played.end.turn is not None
    assert played.end.turn.discarded is not None
    assert_well_formed(played.events)


async def test_a_model_whose_server_enforces_formats_streams_and_fails_if_it_does_not() -> None:
    model = ScriptedModel(text("It is 1."))
    steps = [step async for step in begin(model, given=trusted(structured_output="native")).steps()]
    assert "response.output_text.delta" in emitted(steps)
    assert isinstance(end := steps[-1], RunEnded)
    assert end.ending.status == "failed"


async def test_a_model_that_knows_no_formats_is_asked_in_words() -> None:
    model = ScriptedModel(text('{"a":1}'))
    await ended(model, trusted(structured_output="prompted"))
    request = model.requests[0]
    assert request.sampling.response_format is None
    assert '"required":["a"]' in (request.instructions or "")


async def test_what_was_cut_is_shown_though_it_was_held() -> None:
    played = await play(text('{"a"', finish="length"), text=FORMAT)
    assert (played.end.ending.status, played.output[0]["status"]) == ("incomplete", "incomplete")
    assert_well_formed(played.events)


async def test_a_run_that_is_stopped_shows_what_was_held() -> None:
    run = begin(ScriptedModel([chunk(reasoning="hm"), chunk(content='{"a"'), chunk(content=":1}")]), text=FORMAT)
    steps = run.steps()
    told = [await anext(steps), await anext(steps)]
    await steps.aclose()
    assert "response.output_text.delta" not in emitted(told)
    end = run.interrupt(Ending(status="cancelled"))
    assert [event.type for event in end.events][:3] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ]
    assert [item["status"] for item in end.response["output"]] == ["completed", "incomplete"]


async def test_words_beside_a_call_are_no_answer_yet() -> None:
    played = await play([chunk(content="Let me look."), *calls(look="{}")], text=FORMAT, tools=[LOOK])
    assert [item["type"] for item in played.output] == ["message", "function_call"]
    assert played.end.ending.status == "completed"


async def test_what_was_told_already_cannot_be_taken_back() -> None:
    given = replace(context(text=FORMAT, tools=[DIGITS]), traits=ModelTraits(structured_output="native"))
    end = await ended(ScriptedModel(text("It is 1.")), given)
    assert (end.ending.status, len(end.response["output"])) == ("failed", 1)


# -- calls that are due ------------------------------------------------------------------------------------------------


async def test_a_call_that_is_due_is_told_from_its_beginning() -> None:
    played = await play(calls(look="{}"), **REQUIRED)
    assert "response.function_call_arguments.delta" in emitted(played.steps)
    assert discarded(played) == []


async def test_words_before_the_call_that_is_due_wait_for_it() -> None:
    words, made = text("Let me look.")[:2], calls(look="{}")
    played = await play([*words, *made], **REQUIRED)
    assert [item["type"] for item in played.output] == ["message", "function_call"]
    first = next(step for step in played.steps if isinstance(step, Emitted))
    assert [event["type"].rsplit(".", 1)[1] for event in on_the_wire(first.events)][-2:] == ["added", "delta"]
    assert_well_formed(played.events)


async def test_text_instead_of_a_required_call_is_discarded_and_the_turn_repeated() -> None:
    model = ScriptedModel(text("No."), calls(look="{}"))
    steps = [step async for step in begin(model, **REQUIRED).steps()]
    assert [request.sampling.tool_choice for request in model.requests] == ["required", "required"]
    assert isinstance(end := steps[-1], RunEnded)
    assert [item["type"] for item in end.response["output"]] == ["function_call"]


async def test_a_model_that_never_makes_the_call_fails_the_run() -> None:
    played = await play(text("No."), text("No!"), **REQUIRED)
    assert played.end.ending.error == {
        "code": "server_error",
        "message": "The model did not call a tool, as `tool_choice` requires.",
    }


async def test_the_wrong_function_is_not_the_named_one() -> None:
    played = await play(calls(look="{}"), calls(listen="{}"), **NAMED)
    assert discarded(played) == ["The model did not call the tool 'listen', as `tool_choice` requires."]
    assert [item["name"] for item in played.output] == ["listen"]
    assert_well_formed(played.events)


async def test_a_model_that_cannot_be_forced_is_asked_in_words() -> None:
    model = ScriptedModel(calls(listen="{}"))
    await ended(model, replace(context(**NAMED), traits=ModelTraits(forced_tool_choice=False)))
    request = model.requests[0]
    assert request.sampling.tool_choice == "auto"
    assert "'listen'" in (request.instructions or "")


async def test_a_hosted_call_is_a_call_and_the_next_turn_is_free() -> None:
    model, tools = ScriptedModel(calls(search="{}"), text("Done")), ScriptedTools(search=["a page"])
    _ = [step async for step in begin(model, tools, **REQUIRED).steps()]
    assert [request.sampling.tool_choice for request in model.requests] == ["required", "auto"]


# -- calls that are wrong ----------------------------------------------------------------------------------------------


async def test_a_call_of_an_unknown_tool_is_answered_and_the_run_continues() -> None:
    model = ScriptedModel(calls(smell="{}"), text("Sorry"))
    end = [step async for step in begin(model, tools=[LOOK]).steps()][-1]
    assert isinstance(end, RunEnded)
    assert [item["type"] for item in end.response["output"]] == ["message"]
    assert "no tool named 'smell'" in str(model.requests[1].items[-1].wire()["output"])


async def test_repeated_calls_of_an_unknown_tool_fail_the_run() -> None:
    played = await play(*[calls(smell="{}")] * 3, tools=[LOOK])
    assert (played.end.ending.status, played.output) == ("failed", [])
    assert "no tool named 'smell'" in played.end.response["error"]["message"]


def dials(number: str) -> list[Chunk]:
    """Some words, and a call of the custom tool."""
    return [chunk(content="Dialling."), *calls(dial=f'{{"input":"{number}"}}')]


async def test_input_that_breaks_its_grammar_is_not_shown_and_asked_for_again() -> None:
    played = await play(dials("one"), dials("11"), tools=[DIGITS])
    assert [item["type"] for item in played.output] == ["message", "message", "custom_tool_call"]
    assert played.output[2]["input"] == "11"
    assert_well_formed(played.events)


async def test_the_model_reads_the_wrong_input_as_arguments_that_it_knows() -> None:
    model = ScriptedModel(dials("one"), text("Never mind"))
    _ = [step async for step in begin(model, tools=[DIGITS]).steps()]
    called, answered = model.requests[1].items[-2:]
    assert called.wire()["arguments"] == '{"input":"one"}'
    assert "does not match its grammar" in answered.wire()["output"]


async def test_words_before_a_call_with_a_grammar_are_told_at_once() -> None:
    played = await play(dials("11"), tools=[DIGITS])
    assert "response.output_text.delta" in emitted(played.steps)
    assert "response.custom_tool_call_input.delta" not in emitted(played.steps)


async def test_input_that_goes_on_breaking_its_grammar_fails_the_run() -> None:
    played = await play(*[dials("one")] * 3, tools=[DIGITS])
    assert "grammar" in played.end.response["error"]["message"]
    assert {item["type"] for item in played.output} == {"message"}
    assert_well_formed(played.events)


async def test_the_calls_beside_a_wrong_one_are_asked_for_again_with_it() -> None:
    both = [*calls(dial='{"input":"one"}', look="{}")]
    played = await play(both, text("Never mind"), tools=[DIGITS, LOOK])
    assert [item["type"] for item in played.output] == ["message"]
    assert played.end.ending.status == "completed"


# -- inputs that are too long ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("truncation", "status"), [("auto", "completed"), ("disabled", "failed")])
async def test_an_input_that_the_upstream_cannot_read_is_cut_once_where_that_is_wanted(
    truncation: str, status: str
) -> None:
    items = [{"role": "user", "content": f"{number}" * 400} for number in range(4)]
    given = context(input=items)
    given = replace(given, parameters={**given.parameters, "truncation": truncation})
    model = ScriptedModel([TOO_LONG], *([text("Hi")] if status == "completed" else []))
    end = await ended(model, given)
    assert end.ending.status == status
    assert [len(request.items) for request in model.requests] == ([4, 2] if status == "completed" else [4])


async def test_an_input_that_stays_too_long_fails_the_run() -> None:
    given = context(input=[{"role": "user", "content": "x" * 400}] * 4)
    given = replace(given, parameters={**given.parameters, "truncation": "auto"})
    end = await ended(ScriptedModel([TOO_LONG], [TOO_LONG]), given)
    assert (end.ending.status, end.ending.error and end.ending.error["code"]) == ("failed", "context_length_exceeded")


async def test_a_known_window_is_never_overrun() -> None:
    given = context(input=[{"role": "user", "content": "x" * 400}] * 4)
    traits = ModelTraits(context_window=250)
    given = replace(given, parameters={**given.parameters, "truncation": "auto"}, traits=traits)
    model = ScriptedModel(text("Hi"))
    await ended(model, given)
    assert len(model.requests[0].items) == 2
