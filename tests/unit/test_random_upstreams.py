"""Random answers that combine all quirks of upstreams, through the converter and the loop."""

import copy
import re
from collections.abc import AsyncGenerator, Callable
from random import Random
from typing import Any

import orjson
import pytest

from conversations.items import from_wire, readable_items
from core.clock import now
from core.ids import new_id
from engine.converter.base import TurnConverter
from engine.converter.chat import ChatConverter
from engine.converter.responses_api import ResponsesConverter
from engine.events.response_body import opening
from engine.events.types import Event
from engine.loop import Run
from engine.state import RunState
from engine.turn import TurnRequest, TurnResult
from providers.chat_messages import MessageFormat, messages
from providers.upstream_errors import failure_from_error
from tests.support.chunks import text
from tests.support.odd_responses import odd_response
from tests.support.odd_upstreams import HOSTED, OWN, OddAnswer, odd_answer
from tests.support.runs import Played, context, events_of, on_the_wire
from tests.support.sampling import SEED, sized
from tests.support.scripted import ScriptedTools, toolbox
from tests.support.streams import assert_stream_equals_stored

BATCHES = 4
ANSWERS = sized(25, full=2_500)
TOOLS = [{"type": "function", "name": OWN, "parameters": {"type": "object", "properties": {}}}]


class OddModel:
    """Model that gives one odd answer and then a plain answer. `read` is the number of events in a network read."""

    def __init__(self, answer: OddAnswer, *, read: int) -> None:
        self._read = read
        self._answers = [answer, OddAnswer(pieces=text("end"))]

    def open(self, request: TurnRequest) -> "OddTurn":
        """Open the next turn, as a strict server accepts it."""
        assert_strict(messages(request.instructions, request.items))
        return OddTurn(request, self._answers.pop(0), read=self._read)


def converter_of(request: TurnRequest, answer: OddAnswer) -> TurnConverter:
    """Return the converter of a turn with this answer."""
    index, sampling = request.first_output_index, request.sampling
    if answer.api == "chat":
        return ChatConverter(first_output_index=index, sampling=sampling, think_tags=answer.tags)
    return ResponsesConverter(
        first_output_index=index, sampling=sampling, upstream_id="upstream", to_failure=failure_from_error
    )


class OddTurn:
    """Turn of an odd answer."""

    def __init__(self, request: TurnRequest, answer: OddAnswer, *, read: int) -> None:
        self._answer, self._read = answer, read
        self._converter = converter_of(request, answer)

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of each read, as `UpstreamTurn` does; the texts in a read of several events are joined."""
        converter, pieces = self._converter, self._answer.pieces
        for start in range(0, len(pieces), self._read):
            read = pieces[start : start + self._read]
            if self._answer.is_document:
                yield converter.whole(*pieces)
            else:
                yield converter.feed(read, joins_texts=self._read > 1)
            if converter.over:
                break
        yield converter.end(done=self._answer.has_done and not self._answer.is_document)

    def result(self) -> TurnResult:
        """Return the result of the turn."""
        return self._converter.result()

    def interrupt(self) -> tuple[list[Event], TurnResult]:
        """Close open items."""
        return self._converter.interrupt(), self._converter.result(interrupted=True)


async def played(answer: OddAnswer, hosted: ScriptedTools, *, read: int) -> Played:
    """Run a response whose first turn has this answer."""
    given = context(tools=TOOLS)
    run = Run(given, RunState(), model=OddModel(answer, read=read), tools=toolbox(hosted), now=now)
    steps = [step async for step in run.steps()]
    return Played(steps=steps, events=on_the_wire([*opening(given.parameters), *events_of(steps)]))


def texts(items: list[dict[str, Any]], kind: str) -> str:
    """Return the text of all items of a type."""
    parts = [
        part
        for item in items
        if item["type"] == kind
        for name in ("summary", "content")
        for part in item.get(name) or ()
    ]
    return "".join(part["text"] for part in parts)


def assert_strict(history: list[dict[str, Any]], *, ids: str = ".+") -> None:
    """Assert what strict servers demand of a history: calls with JSON objects, and each answered directly after it."""
    waiting: list[str] = []
    for message in history:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            continue
        assert waiting == []
        calls = message.get("tool_calls", [])
        assert message.get("content") or calls
        for call in calls:
            assert isinstance(orjson.loads(call["function"]["arguments"]), dict)
            assert re.fullmatch(r"[\w-]{1,64}", call["function"]["name"])
            assert re.fullmatch(ids, call["id"])
        waiting = [call["id"] for call in calls]
        assert len(set(waiting)) == len(waiting)
    assert waiting == []
    orjson.dumps(history)


def assert_history_is_accepted(output: list[dict[str, Any]]) -> None:
    """Assert that a strict server accepts the output in the next request, with and without the client's outputs."""
    items = readable_items(output)
    assert len(items) == len(output)
    calls = [item for item in output if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "told"} for call in calls]
    for answers in ([], outputs):
        history = [*items, *(from_wire({"id": new_id("fco"), **body}) for body in answers)]
        assert_strict(messages(None, history))
        assert_strict(messages(None, history, message_format=MessageFormat(short_call_ids=True)), ids="[a-zA-Z0-9]{9}")


async def check(answer: OddAnswer, *, read: int) -> None:
    """Assert what holds for every answer."""
    hosted = ScriptedTools(look=["found"] * 3)
    run = await played(answer, hosted, read=read)
    assert_stream_equals_stored(copy.deepcopy(run.events), run.end.response)
    assert_history_is_accepted(run.output)
    executed = [call.arguments for call in hosted.calls]
    own = [item for item in run.output if item["type"] == "function_call"]
    words, thoughts = texts(run.output, "message"), texts(run.output, "reasoning")
    if answer.is_cut:
        assert run.end.ending.status in {"failed", "incomplete"}
        assert executed == []
        assert run.end.calls == [] or {call.state for call in run.end.calls} <= {"refused", "waiting"}
        # A partial tag may belong to either, and so may the text before a missing tag.
        assert answer.tags or (answer.text.startswith(words) and answer.reasoning.startswith(thoughts))
        assert all(item["status"] == "incomplete" or (OWN, item["arguments"]) in answer.calls for item in own)
        return
    assert run.end.ending.status == "completed"
    assert executed == [arguments for name, arguments in answer.calls if name == HOSTED]
    assert [item["arguments"] for item in own] == [arguments for name, arguments in answer.calls if name == OWN]
    only_hosted = {name for name, _ in answer.calls} == {HOSTED}
    assert (words, thoughts) == (answer.text + ("end" if only_hosted else ""), answer.reasoning)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("answer", [odd_answer, odd_response])
@pytest.mark.parametrize("read", [1, 5])
async def test_an_answer_with_all_quirks_is_read_correctly(
    answer: Callable[[Random], OddAnswer], batch: int, read: int
) -> None:
    for number in range(ANSWERS):
        seed = f"{SEED} {batch} {number}"
        try:
            await check(answer(Random(seed)), read=read)
        except Exception as error:
            error.add_note(f"the answer: {answer(Random(seed))}")
            raise
