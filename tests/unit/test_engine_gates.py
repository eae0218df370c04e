"""Gates: buffered output, discarded turns and retries."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conversations.items import AssistantMessage, InputMessage
from core.errors import Failure
from engine.events.response_body import Ending
from engine.state import ModelTraits, RunContext
from engine.steps import Emitted, RunEnded, Step, TurnDiscarded
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
    """Return the types of the events that were emitted before their turn ended."""
    return [event.type for step in steps if isinstance(step, Emitted) for event in step.events]


def discarded(played: Played) -> list[str | None]:
    """Return the defects of the discarded turns."""
    steps = [step for step in played.steps if isinstance(step, TurnDiscarded)]
    return [step.turn.discarded.defect if step.turn.discarded else None for step in steps]


def trusted(**traits: Any) -> RunContext:
    """Return the context of a request with a strict format to a model with these traits."""
    return replace(context(text=FORMAT), traits=ModelTraits(**traits))


async def ended(model: ScriptedModel, given: RunContext) -> RunEnded:
    """Return the last step of a run with this context."""
    end = [step async for step in begin(model, given=given).steps()][-1]
    model.verify()
    assert isinstance(end, RunEnded)
    return end


async def test_an_answer_with_a_format_is_streamed_only_after_validation() -> None:
    played = await play(text('{"a"', ":1}"), text=FORMAT)
    assert (emitted(played.steps), played.end.ending.status) == ([], "completed")
    assert_well_formed(played.events)


async def test_reasoning_is_never_held_back() -> None:
    played = await play([chunk(reasoning="hm"), *text('{"a":1}')], text=FORMAT)
    assert "response.reasoning_text.delta" in emitted(played.steps)
    assert "response.output_text.delta" not in emitted(played.steps)
    assert_well_formed(played.events)


async def test_an_answer_that_violates_its_format_is_discarded_and_retried() -> None:
    played = await play(text("It is 1."), text('{"a":1}'), text=FORMAT)
    assert discarded(played) == ["The model's answer is not JSON, as its format requires."]
    assert [item["content"][0]["text"] for item in played.output] == ['{"a":1}']
    assert_well_formed(played.events)


async def test_a_discarded_turn_counts_for_usage_and_turns() -> None:
    played = await play(text("It is 1."), text('{"a":1}'), text=FORMAT)
    assert (played.end.usage.output_tokens, played.end.turn and played.end.turn.number) == (6, 1)


async def test_a_retry_sends_the_rejected_answer_and_its_defect() -> None:
    model = ScriptedModel(text("It is 1."), text('{"a":1}'))
    await ended(model, trusted())
    rejected, feedback = model.requests[1].items[-2:]
    assert isinstance(rejected, AssistantMessage)
    assert isinstance(feedback, InputMessage)
    assert "is not JSON" in feedback.parts()[0].text  # type: ignore[union-attr]
    assert model.requests[1].first_output_index == 0


async def test_a_second_invalid_answer_fails_the_run_and_is_not_shown() -> None:
    played = await play(text("It is 1."), text("Still 1."), text=FORMAT)
    assert (played.end.ending.status, played.output) == ("failed", [])
    assert played.end.turn is not None
    assert played.end.turn.discarded is not None
    assert_well_formed(played.events)


async def test_native_structured_output_is_streamed_and_fails_when_invalid() -> None:
    model = ScriptedModel(text("It is 1."))
    steps = [step async for step in begin(model, given=trusted(structured_output="native")).steps()]
    assert "response.output_text.delta" in emitted(steps)
    assert isinstance(end := steps[-1], RunEnded)
    assert end.ending.status == "failed"


async def test_prompted_structured_output_is_described_in_the_instructions() -> None:
    model = ScriptedModel(text('{"a":1}'))
    await ended(model, trusted(structured_output="prompted"))
    request = model.requests[0]
    assert request.sampling.response_format is None
    assert '"required":["a"]' in (request.instructions or "")


async def test_buffered_text_is_sent_when_the_answer_is_truncated() -> None:
    played = await play(text('{"a"', finish="length"), text=FORMAT)
    assert (played.end.ending.status, played.output[0]["status"]) == ("incomplete", "incomplete")
    assert_well_formed(played.events)


async def test_buffered_text_is_sent_when_the_run_is_interrupted() -> None:
    run = begin(ScriptedModel([chunk(reasoning="hm"), chunk(content='{"a"'), chunk(content=":1}")]), text=FORMAT)
    steps = run.steps()
    steps_so_far = [await anext(steps), await anext(steps)]
    await steps.aclose()
    assert "response.output_text.delta" not in emitted(steps_so_far)
    end = run.interrupt(Ending(status="cancelled"))
    assert [event.type for event in end.events][:3] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ]
    assert [item["status"] for item in end.response["output"]] == ["completed", "incomplete"]


async def test_text_next_to_a_call_need_not_match_the_format() -> None:
    played = await play([chunk(content="Let me look."), *calls(look="{}")], text=FORMAT, tools=[LOOK])
    assert [item["type"] for item in played.output] == ["message", "function_call"]
    assert played.end.ending.status == "completed"


async def test_an_invalid_answer_that_was_streamed_fails_the_run() -> None:
    given = replace(context(text=FORMAT, tools=[DIGITS]), traits=ModelTraits(structured_output="native"))
    end = await ended(ScriptedModel(text("It is 1.")), given)
    assert (end.ending.status, len(end.response["output"])) == ("failed", 1)


# -- required calls ----------------------------------------------------------------------------------------------------


async def test_a_required_call_is_streamed_from_its_start() -> None:
    played = await play(calls(look="{}"), **REQUIRED)
    assert "response.function_call_arguments.delta" in emitted(played.steps)
    assert discarded(played) == []


async def test_text_before_a_required_call_is_held_back_until_the_call() -> None:
    words, made = text("Let me look.")[:2], calls(look='{"at":1}')
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


async def test_a_model_that_never_makes_the_required_call_fails_the_run() -> None:
    played = await play(text("No."), text("No!"), **REQUIRED)
    assert played.end.ending.error == {
        "code": "server_error",
        "message": "The model did not call a tool, as `tool_choice` requires.",
    }


async def test_a_call_of_another_function_does_not_satisfy_a_named_choice() -> None:
    played = await play(calls(look="{}"), calls(listen="{}"), **NAMED)
    assert discarded(played) == ["The model did not call the tool 'listen', as `tool_choice` requires."]
    assert [item["name"] for item in played.output] == ["listen"]
    assert_well_formed(played.events)


async def test_a_choice_that_cannot_be_forced_is_described_in_the_instructions() -> None:
    model = ScriptedModel(calls(listen="{}"))
    await ended(model, replace(context(**NAMED), traits=ModelTraits(forced_tool_choice=False)))
    request = model.requests[0]
    assert request.sampling.tool_choice == "auto"
    assert "'listen'" in (request.instructions or "")


async def test_a_hosted_call_satisfies_required_for_the_later_turns() -> None:
    model, tools = ScriptedModel(calls(search="{}"), text("Done")), ScriptedTools(search=["a page"])
    _ = [step async for step in begin(model, tools, **REQUIRED).steps()]
    assert [request.sampling.tool_choice for request in model.requests] == ["required", "auto"]


# -- invalid calls -----------------------------------------------------------------------------------------------------


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


def dial_turn(number: str) -> list[Chunk]:
    """Return a turn with text and a call of the custom tool."""
    return [chunk(content="Dialling."), *calls(dial=f'{{"input":"{number}"}}')]


async def test_input_that_violates_its_grammar_is_hidden_and_retried() -> None:
    played = await play(dial_turn("one"), dial_turn("11"), tools=[DIGITS])
    assert [item["type"] for item in played.output] == ["message", "message", "custom_tool_call"]
    assert played.output[2]["input"] == "11"
    assert_well_formed(played.events)


async def test_a_refused_custom_call_is_sent_back_as_a_function_call() -> None:
    model = ScriptedModel(dial_turn("one"), text("Never mind"))
    _ = [step async for step in begin(model, tools=[DIGITS]).steps()]
    called, answered = model.requests[1].items[-2:]
    assert called.wire()["arguments"] == '{"input":"one"}'
    assert "does not match its grammar" in answered.wire()["output"]


async def test_text_before_a_call_with_a_grammar_is_not_held_back() -> None:
    played = await play(dial_turn("11"), tools=[DIGITS])
    assert "response.output_text.delta" in emitted(played.steps)
    assert "response.custom_tool_call_input.delta" not in emitted(played.steps)


async def test_repeated_grammar_violations_fail_the_run() -> None:
    played = await play(*[dial_turn("one")] * 3, tools=[DIGITS])
    assert "grammar" in played.end.response["error"]["message"]
    assert {item["type"] for item in played.output} == {"message"}
    assert_well_formed(played.events)


async def test_valid_calls_next_to_an_invalid_one_are_retried_with_it() -> None:
    both = [*calls(dial='{"input":"one"}', look="{}")]
    played = await play(both, text("Never mind"), tools=[DIGITS, LOOK])
    assert [item["type"] for item in played.output] == ["message"]
    assert played.end.ending.status == "completed"


# -- long inputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("truncation", "status"), [("auto", "completed"), ("disabled", "failed")])
async def test_truncation_auto_shortens_a_rejected_input_once(truncation: str, status: str) -> None:
    items = [{"role": "user", "content": f"{number}" * 400} for number in range(4)]
    given = context(input=items)
    given = replace(given, parameters={**given.parameters, "truncation": truncation})
    model = ScriptedModel([TOO_LONG], *([text("Hi")] if status == "completed" else []))
    end = await ended(model, given)
    assert end.ending.status == status
    assert [len(request.items) for request in model.requests] == ([4, 2] if status == "completed" else [4])


async def test_an_input_that_is_still_too_long_after_truncation_fails_the_run() -> None:
    given = context(input=[{"role": "user", "content": "x" * 400}] * 4)
    given = replace(given, parameters={**given.parameters, "truncation": "auto"})
    end = await ended(ScriptedModel([TOO_LONG], [TOO_LONG]), given)
    assert (end.ending.status, end.ending.error and end.ending.error["code"]) == ("failed", "context_length_exceeded")


async def test_truncation_auto_fits_the_input_into_a_known_context_window() -> None:
    given = context(input=[{"role": "user", "content": "x" * 400}] * 4)
    traits = ModelTraits(context_window=250)
    given = replace(given, parameters={**given.parameters, "truncation": "auto"}, traits=traits)
    model = ScriptedModel(text("Hi"))
    await ended(model, given)
    assert len(model.requests[0].items) == 2
