"""Finish reasons of chat-completions upstreams: only a complete answer is a success."""

from typing import Any

import pytest

from engine.converter.finish_reasons import FinishKind, finish_kind
from tests.support.chunks import Chunk, chunk
from tests.support.runs import Played, play
from tests.support.scripted import ScriptedTools

FAILED = [
    "error",
    "abort",
    "insufficient_system_resource",
    "ERROR",
    "network_error",
    "MALFORMED_FUNCTION_CALL",
    "OTHER",
]
FILTERED = ["SAFETY", "RECITATION", "content_filter: SAFETY", "sensitive", "guardrail_intervened", "refusal"]
LENGTH = ["max_tokens", "MAX_TOKENS", "model_length", "FinishReason.MAX_TOKENS", "model_context_window_exceeded"]
COMPLETE = ["stop", "STOP", "eos", "eos_token", "end_turn", "stop_sequence", "COMPLETE", "", None]
CALLED = ["tool_calls", "function_call", "tool_use", "stop", "mystery", "", None]


def call(arguments: str, *, name: str = "look", index: int = 0) -> Chunk:
    function = {"name": name, "arguments": arguments}
    return chunk(tool_calls=[{"index": index, "id": f"call_{index}", "type": "function", "function": function}])


async def ended(reason: str | None, *pieces: Chunk, **request: Any) -> Played:
    return await play([*pieces, chunk(finish=reason)], **request)


def statuses(played: Played) -> list[str]:
    return [item["status"] for item in played.output]


@pytest.mark.parametrize("reason", COMPLETE)
async def test_finish_reasons_of_complete_answers_complete_the_response(reason: str | None) -> None:
    played = await ended(reason, chunk(content="Hi"))
    assert (played.end.ending.status, statuses(played)) == ("completed", ["completed"])


@pytest.mark.parametrize("reason", CALLED)
async def test_a_complete_call_counts_unless_the_finish_reason_is_a_failure(reason: str | None) -> None:
    played = await ended(reason, call('{"a":1}'))
    assert (played.end.ending.status, [record.state for record in played.end.calls]) == ("completed", ["waiting"])


@pytest.mark.parametrize(
    ("reasons", "status", "detail"),
    [(FAILED, "failed", None), (FILTERED, "incomplete", "content_filter"), (LENGTH, "incomplete", "max_output_tokens")],
    ids=["failed", "filtered", "length"],
)
async def test_finish_reasons_of_incomplete_answers_do_not_complete_the_response(
    reasons: list[str], status: str, detail: str | None
) -> None:
    for reason in reasons:
        for pieces in ([chunk(content="Hel")], [call('{"a')], [call('{"a":1}')], [chunk(reasoning="Hm.")], []):
            played = await ended(reason, *pieces)
            assert played.end.ending.status == status, reason
            assert (played.end.response["incomplete_details"] or {"reason": None})["reason"] == detail
            assert set(statuses(played)) <= {"incomplete"}
            assert played.end.calls == []


@pytest.mark.parametrize("reason", ["error", "abort", "MAX_TOKENS", "SAFETY", "insufficient_system_resource"])
async def test_a_hosted_call_is_not_executed_after_an_error(reason: str) -> None:
    hosted = ScriptedTools(look=[])
    played = await play([call('{"a":1}'), chunk(finish=reason)], hosted=hosted)
    assert (hosted.calls, played.end.ending.status in {"failed", "incomplete"}) == ([], True)


@pytest.mark.parametrize("error", [{"message": "gone", "code": 502}, "gone"])
async def test_an_error_inside_of_a_choice_fails_the_turn(error: Any) -> None:
    broken = chunk(finish="stop")
    broken["choices"][0]["error"] = error
    hosted = ScriptedTools(look=[])
    played = await play([call('{"a":1}'), broken], hosted=hosted)
    assert (played.end.ending.status, hosted.calls) == ("failed", [])


async def test_a_later_stop_does_not_make_an_error_a_success() -> None:
    played = await play([chunk(content="Hel"), chunk(finish="error"), chunk(finish="stop")])
    assert played.end.ending.status == "failed"


@pytest.mark.parametrize("reason", ["mystery", "", None])
async def test_a_partial_call_without_a_known_finish_reason_is_not_a_success(reason: str | None) -> None:
    played = await ended(reason, call('{"a'))
    assert (played.end.ending.status, statuses(played), played.end.calls) == ("failed", ["incomplete"], [])


@pytest.mark.parametrize("word", ["null", "None", "FINISH_REASON_UNSPECIFIED"])
async def test_a_partial_call_with_a_null_like_finish_reason_is_not_a_success(word: str) -> None:
    played = await play([chunk(content="Hel", finish=word), call('{"a')])
    assert (played.end.ending.status, statuses(played)) == ("failed", ["completed", "incomplete"])


async def test_a_stream_without_an_answer_or_a_finish_reason_fails() -> None:
    assert (await play([chunk(role="assistant", content="")])).end.ending.status == "failed"


async def test_an_unknown_reason_completes_a_text() -> None:
    assert (await ended("mystery", chunk(content="Hi"))).end.ending.status == "completed"


@pytest.mark.parametrize("pieces", [[], [chunk(reasoning="Hm.")], [chunk(content=" \n")]])
async def test_an_unknown_reason_without_an_answer_fails(pieces: list[Chunk]) -> None:
    played = await ended("mystery", *pieces)
    assert played.end.response["error"]["message"] == (
        "The model's server ended its answer with the finish reason 'mystery' before it was complete."
    )


async def test_a_call_without_arguments_before_a_truncated_call_is_incomplete() -> None:
    named = chunk(tool_calls=[{"index": 0, "id": "call_0", "function": {"name": "look"}}])
    played = await ended("length", named, call('{"a', index=1))
    assert statuses(played) == ["incomplete", "incomplete"]


def test_finish_reasons_are_recognised_in_any_spelling() -> None:
    for words, kind in (
        (FAILED, FinishKind.FAILED),
        (FILTERED, FinishKind.CONTENT_FILTER),
        (LENGTH, FinishKind.LENGTH),
    ):
        assert {finish_kind(word) for word in words} == {kind}
    assert finish_kind("function_call_filter: MALFORMED_FUNCTION_CALL") is FinishKind.FAILED
    assert {finish_kind(word) for word in ("7", "mystery", "{}")} == {FinishKind.UNKNOWN}
