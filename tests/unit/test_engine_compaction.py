"""Compaction in a run: when a pass is made, its request, and the context afterwards."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest

from conversations.items import StoredItem, from_wire
from core.errors import Failure, InvalidEncryptedContent
from engine.compaction.items import CompactionContent, CompactionPlan, from_latest_compaction, kept_items
from engine.converter.segments import ReasoningContent
from engine.events.response_body import Ending
from engine.state import Fragment, OutputItem, RunContext, RunState
from engine.steps import ContextCompacted
from tests.support import runs
from tests.support.chunks import calls, chunk, text, usage
from tests.support.runs import begin, context, events_of, on_the_wire
from tests.support.scripted import ScriptedModel, ScriptedTools

LONG = "so it was " * 1000
QUESTION = {"type": "message", "role": "user", "content": "Find the red car."}
ANSWER = {"type": "message", "role": "assistant", "content": LONG}
NEXT_QUESTION = {"type": "message", "role": "user", "content": "And the blue one?"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": LONG}
BUSY = Failure(code="server_is_overloaded", message="Too many requests.")


class PlainCipher:
    """Encrypts nothing, for tests that read the encrypted content."""

    def encrypt(self, content: ReasoningContent) -> str:
        """Fail: no test here has reasoning."""
        raise AssertionError(content)

    def decrypt(self, token: str) -> ReasoningContent | None:
        """Fail: no test here has reasoning."""
        raise AssertionError(token)

    def encrypt_compaction(self, compacted: CompactionContent) -> str:
        """Return the summary and the kept items as base64 of JSON."""
        return base64.b64encode(orjson.dumps([compacted.summary, [*compacted.kept]])).decode()

    def decrypt_compaction(self, token: str) -> CompactionContent | None:
        """Return the content that `encrypt_compaction` encoded."""
        try:
            summary, found = orjson.loads(base64.b64decode(token))
        except ValueError:
            return None
        return CompactionContent(summary=summary, kept=found)


def items(*bodies: dict[str, Any]) -> list[StoredItem]:
    """Return the items with these bodies."""
    return [from_wire(body) for body in bodies]


def compacted(summary: str, *held: dict[str, Any], name: str = "cmp_1") -> dict[str, Any]:
    """Return a compaction item with this content."""
    return {
        "type": "compaction",
        "id": name,
        "encrypted_content": PlainCipher().encrypt_compaction(CompactionContent(summary=summary, kept=held)),
    }


def texts(read: Any) -> list[str]:
    """Return the texts of messages, shortened."""
    return [item.wire()["content"][0]["text"][-40:] if item.type == "message" else str(item.type) for item in read]


def given(*bodies: dict[str, Any], threshold: int = 1000, **more: Any) -> RunContext:
    """Return the context of a run that compacts above a thousand tokens."""
    plan = CompactionPlan(threshold=threshold)
    return replaced(context(input=[*bodies]), **{"compaction": plan, **more})


def replaced(made: RunContext, **more: Any) -> RunContext:
    """Return the context with a cipher that encrypts nothing."""
    return replace(made, cipher=PlainCipher(), **more)


async def play(model: ScriptedModel, made: RunContext, tools: Any = None, state: RunState | None = None) -> runs.Played:
    """Play a run to its end; the script must be used up."""
    run = begin(model, tools, given=made, state=state)
    steps = [step async for step in run.steps()]
    model.verify()
    return runs.Played(steps=steps, events=on_the_wire(events_of(steps)))


# -- kept items and the start of a context -----------------------------------------------------------------------------


def test_messages_settings_and_open_calls_are_kept() -> None:
    rules = {"type": "message", "role": "developer", "content": "Be brief."}
    effort = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    waiting = {**CALL, "call_id": "call_2"}
    asked = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "n", "arguments": "{}"}
    all_of_them = items(rules, QUESTION, ANSWER, CALL, OUTPUT, effort, waiting, asked, NEXT_QUESTION)
    assert kept_items(all_of_them) == items(rules, QUESTION, effort, waiting, asked, NEXT_QUESTION)


def test_a_context_starts_at_its_latest_compaction() -> None:
    first, second = compacted("Old.", QUESTION), compacted("The red car was found.", QUESTION, NEXT_QUESTION)
    context = from_latest_compaction(items(ANSWER, first, ANSWER, second, ANSWER), PlainCipher().decrypt_compaction)
    assert texts(context.compacted)[:2] == ["Find the red car.", "And the blue one?"]
    assert texts(context.compacted)[2].endswith("The red car was found.")
    assert list(context.rest) == items(ANSWER)


def test_earlier_messages_are_kept_without_duplicates() -> None:
    rules = {"type": "message", "role": "developer", "content": "Be brief."}
    context = from_latest_compaction(
        items(rules, QUESTION, compacted("Done.", QUESTION)), PlainCipher().decrypt_compaction
    )
    assert texts(context.items)[:2] == ["Be brief.", "Find the red car."]
    assert len(context.items) == 3


def test_a_kept_item_that_is_not_sent_again_keeps_its_position() -> None:
    rules = {"type": "message", "role": "developer", "content": "Be brief."}
    context = from_latest_compaction(
        items(rules, QUESTION, NEXT_QUESTION, compacted("Done.", QUESTION, CALL, NEXT_QUESTION)),
        PlainCipher().decrypt_compaction,
    )
    assert [item.type for item in context.items] == ["message", "message", "function_call", "message", "message"]


def test_a_context_without_a_compaction_is_read_completely() -> None:
    context = from_latest_compaction(items(QUESTION, ANSWER), PlainCipher().decrypt_compaction)
    assert (context.compacted, list(context.rest)) == ((), items(QUESTION, ANSWER))


@pytest.mark.parametrize("token", ["", "garbled"])
def test_content_that_cannot_be_decrypted_is_rejected(token: str) -> None:
    item = {"type": "compaction", "id": "cmp_9", "encrypted_content": token}
    with pytest.raises(InvalidEncryptedContent, match="cmp_9"):
        from_latest_compaction(items(QUESTION, item), PlainCipher().decrypt_compaction)


# -- passes in a run ---------------------------------------------------------------------------------------------------


async def test_a_context_over_the_threshold_is_compacted_before_the_answer() -> None:
    model = ScriptedModel(text("A red car was looked for."), text("No."))
    played = await play(model, given(QUESTION, ANSWER, NEXT_QUESTION))
    assert [item["type"] for item in played.output] == ["compaction", "message"]
    assert played.types[:3] == ["output_item.added", "compaction.compacting", "output_item.done"]
    assert played.events[0]["item"]["encrypted_content"] == ""
    assert played.events[2]["item"] == played.output[0]
    assert texts(model.requests[1].items)[:2] == ["Find the red car.", "And the blue one?"]
    assert texts(model.requests[1].items)[2].endswith("A red car was looked for.")


async def test_the_summary_request_has_the_whole_context_and_offers_no_tools() -> None:
    model = ScriptedModel(text("Notes."), calls(look="{}"))
    functions = [{"type": "function", "name": "look"}]
    made = context(
        input=[QUESTION, ANSWER, NEXT_QUESTION], tools=functions, max_output_tokens=50, tool_choice="required"
    )
    loose = replaced(made, compaction=CompactionPlan(threshold=1000))
    run = begin(model, given=loose)
    steps = [step async for step in run.steps() if isinstance(step, ContextCompacted)]
    asked = model.requests[0]
    assert len(steps) == 1
    assert list(asked.items[:-1]) == list(loose.items)
    assert (asked.sampling.tool_choice, asked.sampling.max_output_tokens) == ("none", None)
    assert (model.requests[1].sampling.tool_choice, model.requests[1].sampling.max_output_tokens) == ("required", 50)


@pytest.mark.parametrize("threshold", [2600, 100_000])
async def test_a_context_below_the_threshold_is_not_compacted(threshold: int) -> None:
    played = await play(ScriptedModel(text("No.")), given(QUESTION, ANSWER, NEXT_QUESTION, threshold=threshold))
    assert [item["type"] for item in played.output] == ["message"]


async def test_a_context_of_user_messages_only_is_not_compacted() -> None:
    played = await play(ScriptedModel(text("No.")), given({**QUESTION, "content": LONG}))
    assert [item["type"] for item in played.output] == ["message"]


async def test_a_pass_between_turns_keeps_calls_and_outputs_together() -> None:
    first = calls(look="{}")
    model, tools = ScriptedModel(first, text("A car."), text("Red.")), ScriptedTools(look=[LONG])
    played = await play(model, given(QUESTION), tools)
    assert [item["type"] for item in played.output] == ["mcp_call", "compaction", "message"]
    assert [item.type for item in model.requests[1].items] == ["message", "mcp_call", "message"]
    assert texts(model.requests[2].items)[0] == "Find the red car."
    assert len(model.requests[2].items) == 2


async def test_a_context_that_stays_over_the_threshold_is_not_compacted_in_every_turn() -> None:
    first = calls(look="{}")[:-1]
    huge = {**QUESTION, "content": LONG}
    model, tools = ScriptedModel(text("Notes."), first, text("Red.")), ScriptedTools(look=["a car"])
    played = await play(model, given(huge, ANSWER, NEXT_QUESTION), tools)
    assert [item["type"] for item in played.output] == ["compaction", "mcp_call", "message"]


async def test_reported_token_counts_take_precedence_over_estimates() -> None:
    first = [*calls(look="{}")[:-1], usage(prompt_tokens=5000, completion_tokens=10)]
    model, tools = ScriptedModel(first, text("Notes."), text("Red.")), ScriptedTools(look=["a car"])
    played = await play(model, given(QUESTION, threshold=4000), tools)
    assert [item["type"] for item in played.output] == ["mcp_call", "compaction", "message"]


async def test_the_usage_of_a_run_includes_the_summary() -> None:
    notes = [chunk(content="Notes."), chunk(finish="stop"), usage(prompt_tokens=3000, completion_tokens=40)]
    answer = [chunk(content="No."), chunk(finish="stop"), usage(prompt_tokens=30, completion_tokens=2)]
    played = await play(ScriptedModel(notes, answer), given(QUESTION, ANSWER, NEXT_QUESTION))
    assert (played.end.usage.input_tokens, played.end.usage.output_tokens) == (3030, 42)


# -- failed passes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [[BUSY], [*text("")], [chunk(refusal="I cannot."), chunk(finish="stop")][1:]])
async def test_a_failed_pass_continues_with_the_whole_context(broken: list[Any]) -> None:
    model = ScriptedModel(broken, text("No."))
    played = await play(model, given(QUESTION, ANSWER, NEXT_QUESTION))
    assert [item["type"] for item in played.output] == ["message"]
    assert "compaction.compacting" not in played.types
    assert list(model.requests[1].items) == items(QUESTION, ANSWER, NEXT_QUESTION)


async def test_a_failed_pass_is_not_repeated() -> None:
    first = calls(look="{}")
    model, tools = ScriptedModel([BUSY], first, text("No.")), ScriptedTools(look=["a car"])
    played = await play(model, given(QUESTION, ANSWER, NEXT_QUESTION), tools)
    assert [item["type"] for item in played.output] == ["mcp_call", "message"]


async def test_a_failed_announced_compaction_fails_the_run() -> None:
    played = await play(ScriptedModel([chunk(content="No"), BUSY]), given(QUESTION, ANSWER, NEXT_QUESTION))
    assert played.end.ending.status == "failed"
    assert played.end.response["error"]["code"] == BUSY.code
    assert [item["type"] for item in played.output] == ["compaction"]


async def test_a_run_cancelled_during_a_pass_records_its_usage() -> None:
    run = begin(ScriptedModel([chunk(content="No"), *text("tes.")]), given=given(QUESTION, ANSWER, NEXT_QUESTION))
    steps = run.steps()
    await anext(steps)
    end = run.interrupt(Ending(status="cancelled"))
    await steps.aclose()
    assert end.turn is not None
    assert (end.turn.compacts, end.response["output"][0]["encrypted_content"]) == (True, "")


# -- resumed runs ------------------------------------------------------------------------------------------------------


async def test_a_resumed_run_repeats_the_announced_pass() -> None:
    begun = {"id": "cmp_1", "type": "compaction", "encrypted_content": ""}
    state = RunState(fragments=[Fragment(output_index=0, body=begun, is_open=True)])
    played = await play(ScriptedModel(text("Notes."), text("No.")), given(QUESTION, ANSWER, NEXT_QUESTION), state=state)
    assert played.types[:2] == ["output_item.done", "output_item.added"]
    assert (played.output[0]["type"], played.output[0]["id"]) == ("compaction", "cmp_1")


async def test_a_resumed_run_continues_after_the_compaction() -> None:
    state = RunState(turn=1, compactions=1, output=[OutputItem(body=compacted("Notes.", QUESTION, NEXT_QUESTION))])
    model = ScriptedModel(text("No."))
    await play(model, given(QUESTION, ANSWER, NEXT_QUESTION), state=state)
    assert texts(model.requests[0].items)[:2] == ["Find the red car.", "And the blue one?"]
    assert len(model.requests[0].items) == 3


# -- responses that only compact ---------------------------------------------------------------------------------------


async def test_an_immediate_compaction_runs_one_pass_without_an_answer() -> None:
    model = ScriptedModel(text("Notes."))
    played = await play(model, given(QUESTION, ANSWER, compaction=CompactionPlan(at_once=True)))
    assert played.end.ending.status == "completed"
    assert [item["type"] for item in played.output] == ["compaction"]


async def test_an_immediate_compaction_without_a_summary_fails() -> None:
    played = await play(ScriptedModel([BUSY]), given(QUESTION, ANSWER, compaction=CompactionPlan(at_once=True)))
    assert (played.end.ending.status, played.output) == ("failed", [])


async def test_a_run_resumed_after_its_compaction_only_ends() -> None:
    state = RunState(turn=1, compactions=1, output=[OutputItem(body=compacted("Notes.", QUESTION))])
    made = given(QUESTION, ANSWER, compaction=CompactionPlan(at_once=True))
    assert (await play(ScriptedModel(), made, state=state)).end.ending.status == "completed"
