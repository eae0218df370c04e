"""Unusual streams of real upstreams, played through the converter.

Every stream must also be well formed, and folding its events must give its final response.
"""

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from core.errors import Failure
from tests.support.chunks import Chunk, calls, chunk, text, usage
from tests.support.runs import Played
from tests.support.runs import play as play_any
from tests.support.scripted import Piece
from tests.support.streams import assert_stream_equals_stored

LOGPROBS = "message.output_text.logprobs"
STOP = chunk(finish="stop")


async def play(*pieces: Piece, **request: Any) -> Played:
    """Play one turn and assert what holds for every stream."""
    played = await play_any(list(pieces), **request)
    assert_stream_equals_stored(copy.deepcopy(played.events), played.end.response)
    return played


def call(index: int | None = 0, *, name: str | None = None, arguments: Any = None, **given: Any) -> Chunk:
    """Return a chunk with one tool call delta; None values are left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    head = {} if index is None else {"index": index}
    return chunk(tool_calls=[{**head, **given, "function": function}])


def words(played: Played) -> list[str]:
    """Return the text of each message of the output."""
    return ["".join(p["text"] for p in item["content"]) for item in played.output if item["type"] == "message"]


def called(played: Played) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of each call of the output."""
    found = [item for item in played.output if item["type"] == "function_call"]
    return [(item["call_id"], item["name"], item["arguments"]) for item in found]


def deltas(played: Played, kind: str) -> list[str]:
    """Return the deltas of the events of this type."""
    return [event["delta"] for event in played.events if event["type"] == f"response.{kind}.delta"]


def with_choice(given: Chunk, **changes: Any) -> Chunk:
    """Return the chunk with other fields in its choice."""
    return {**given, "choices": [{**given["choices"][0], **changes}]}


def logprob(token: str, value: float = -0.5, tops: Sequence[str] = ()) -> dict[str, Any]:
    """Return a token's logprob as upstreams send it."""
    top_logprobs = [{"token": top, "logprob": value, "bytes": None} for top in tops]
    return {"token": token, "logprob": value, "bytes": None, "top_logprobs": top_logprobs}


# -- the shape of chunks -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_chunks_without_choices_contribute_only_usage() -> None:
    played = await play(usage(prompt_tokens=3, completion_tokens=1), *text("Hello")[:-1], {"choices": None})
    assert (words(played), played.end.response["usage"]["input_tokens"]) == (["Hello"], 3)


@pytest.mark.parametrize("delta", [None, {}, {"content": None}, {"content": ""}, {"role": "assistant"}])
async def test_a_delta_without_content_is_ignored(delta: dict[str, Any] | None) -> None:
    empty = with_choice(STOP, delta=delta, finish_reason=None)
    played = await play(empty, chunk(content="Hi"), empty, STOP)
    assert deltas(played, "output_text") == ["Hi"]


async def test_a_choice_without_a_delta_is_ignored() -> None:
    played = await play(chunk(content="Hi"), {"choices": [{"index": 0, "finish_reason": "stop"}]})
    assert words(played) == ["Hi"]


async def test_choices_other_than_the_first_are_ignored() -> None:
    other = with_choice(chunk(content="no", finish="length"), index=1)
    played = await play(chunk(content="yes"), other, STOP)
    assert (words(played), played.end.ending.status) == (["yes"], "completed")


async def test_repeated_roles_and_unknown_fields_are_ignored() -> None:
    noisy = {**chunk(role="assistant", content="Hi", obfuscation="xyz"), "system_fingerprint": "fp", "x_groq": {"a": 1}}
    played = await play(noisy, noisy, {**STOP, "provider": "somebody"})
    assert words(played) == ["HiHi"]


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(content="Hi"), {**STOP, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}],
        [chunk(content="Hi"), STOP, usage(prompt_tokens=7, completion_tokens=3)],
        [{**chunk(content=c), "usage": {"prompt_tokens": 7, "completion_tokens": n}} for n, c in ((1, "H"), (3, "i"))],
    ],
    ids=["with the last content", "in a chunk of its own", "cumulative in every chunk"],
)
async def test_usage_is_read_from_any_chunk(chunks: list[Chunk]) -> None:
    played = await play(*chunks)
    assert (played.end.usage.input_tokens, played.end.usage.output_tokens) == (7, 3)
    assert not played.end.usage.estimated


async def test_usage_details_are_kept() -> None:
    prompt, completion = {"cached_tokens": 6}, {"reasoning_tokens": 2}
    numbers = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": prompt}
    played = await play(*text("Hi")[:-1], usage(**numbers, completion_tokens_details=completion))
    assert played.end.response["usage"]["input_tokens_details"]["cached_tokens"] == 6
    assert played.end.response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2


async def test_missing_usage_is_estimated_from_character_counts() -> None:
    played = await play(chunk(content="12345678"), STOP, input="1234", instructions="1234")
    assert (played.end.usage.input_tokens, played.end.usage.output_tokens) == (2, 2)
    assert played.end.usage.estimated


@pytest.mark.parametrize("tokens", [None, -1, "7", 2**40])
async def test_invalid_token_counts_are_ignored(tokens: Any) -> None:
    played = await play(*text("Hi")[:-1], usage(prompt_tokens=tokens, completion_tokens=3.0))
    assert 0 <= played.end.usage.input_tokens < 2**31
    assert played.end.usage.output_tokens == 3


async def test_done_without_a_finish_reason_completes_a_turn() -> None:
    assert (await play(chunk(content="Hi"))).end.ending.status == "completed"


# -- text --------------------------------------------------------------------------------------------------------------


async def test_a_message_opens_with_its_first_text_and_closes_in_order() -> None:
    played = await play(chunk(role="assistant", content=""), chunk(content="a"), chunk(content="b"), STOP)
    assert played.types[2:-1] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]


async def test_text_around_tool_calls_becomes_separate_messages() -> None:
    played = await play(
        chunk(content="before"),
        call(0, name="f", arguments="{}", id="call_f"),
        chunk(content="between"),
        call(1, name="g", arguments="{}", id="call_g"),
        chunk(content="after"),
        STOP,
    )
    assert [item["type"] for item in played.output] == ["message", "function_call"] * 2 + ["message"]
    assert words(played) == ["before", "between", "after"]


async def test_whitespace_after_reasoning_is_equal_in_deltas_and_final_text() -> None:
    played = await play(chunk(reasoning_content="hm"), chunk(content="\n\n"), chunk(content="Hi"), STOP)
    assert (deltas(played, "output_text"), words(played)) == (["\n\nHi"], ["\n\nHi"])


async def test_whitespace_only_text_after_reasoning_is_not_a_message() -> None:
    played = await play(chunk(reasoning_content="hm"), chunk(content="\n\n"), *calls(f="{}")[1:])
    assert [item["type"] for item in played.output] == ["reasoning", "function_call"]


# -- logprobs ----------------------------------------------------------------------------------------------------------


async def test_logprobs_are_omitted_unless_included() -> None:
    played = await play(with_choice(chunk(content="Hi"), logprobs={"content": [logprob("Hi")]}), STOP)
    assert played.output[0]["content"][0]["logprobs"] == []


async def test_top_logprobs_are_limited_to_the_requested_number() -> None:
    given = with_choice(chunk(content="Hi"), logprobs={"content": [logprob("Hi", tops=["Hi", "Ho", "Ha"])]})
    played = await play(given, STOP, include=[LOGPROBS], top_logprobs=2)
    tops = played.output[0]["content"][0]["logprobs"][0]["top_logprobs"]
    assert [top["token"] for top in tops] == ["Hi", "Ho"]


async def test_logprobs_without_text_belong_to_the_next_text_delta() -> None:
    first = with_choice(STOP, logprobs={"content": [logprob("\xf0")]}, finish_reason=None)
    second = with_choice(chunk(content="Hi"), logprobs={"content": [logprob("Hi")]})
    played = await play(first, second, STOP, include=[LOGPROBS])
    assert [found["token"] for found in played.output[0]["content"][0]["logprobs"]] == ["\xf0", "Hi"]


async def test_trailing_logprobs_are_kept() -> None:
    last = with_choice(STOP, logprobs={"content": [logprob("<end>")]})
    played = await play(
        with_choice(chunk(content="Hi"), logprobs={"content": [logprob("Hi")]}), last, include=[LOGPROBS]
    )
    assert [found["token"] for found in played.output[0]["content"][0]["logprobs"]] == ["Hi", "<end>"]


async def test_chunks_of_one_read_keep_their_own_logprobs() -> None:
    from engine.converter.chat import ChatConverter
    from engine.turn import Sampling

    chunks = [with_choice(chunk(content=c), logprobs={"content": [logprob(c)]}) for c in ("a", "b")]
    events = ChatConverter(first_output_index=0, sampling=Sampling(logprobs=True)).feed(chunks)
    found = [getattr(event, "logprobs", None) for event in events]
    assert [len(logprobs) for logprobs in found if logprobs] == [1, 1]


# -- refusals and filters ----------------------------------------------------------------------------------------------


async def test_text_and_refusal_become_parts_in_arrival_order() -> None:
    played = await play(chunk(content="Well"), chunk(refusal="no"), chunk(refusal="pe"), STOP)
    text_part, refusal_part = played.output[0]["content"]
    assert (text_part["text"], refusal_part["refusal"]) == ("Well", "nope")
    assert [e["content_index"] for e in played.events if e["type"] == "response.refusal.delta"] == [1, 1]


async def test_a_content_filter_after_text_leaves_the_response_incomplete() -> None:
    played = await play(chunk(content="Well"), chunk(finish="content_filter"))
    assert played.end.response["incomplete_details"] == {"reason": "content_filter"}
    assert played.output[0]["status"] == "incomplete"


async def test_a_content_filter_without_text_leaves_the_response_incomplete() -> None:
    played = await play(chunk(finish="content_filter"))
    assert (played.end.response["status"], played.output) == ("incomplete", [])


# -- reasoning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]},
        {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
    ],
)
async def test_reasoning_is_read_from_every_known_field(delta: dict[str, Any]) -> None:
    played = await play(chunk(**delta), *text("Hi"))
    assert played.output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


async def test_reasoning_and_content_of_one_chunk_are_both_read() -> None:
    played = await play(chunk(reasoning_content="hm", content="Hi"), STOP)
    assert [item["type"] for item in played.output] == ["reasoning", "message"]


async def test_reasoning_closes_before_a_message_and_reopens_as_a_new_item() -> None:
    played = await play(chunk(reasoning="a"), chunk(content="Hi"), chunk(reasoning="b"), chunk(content="Ho"), STOP)
    assert [item["type"] for item in played.output] == ["reasoning", "message"] * 2
    assert played.types[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]


async def test_reasoning_alone_completes_without_a_message() -> None:
    played = await play(chunk(reasoning="hm"), STOP)
    assert ([item["type"] for item in played.output], played.end.ending.status) == (["reasoning"], "completed")


async def test_truncated_reasoning_is_incomplete() -> None:
    played = await play(chunk(reasoning="hm"), chunk(finish="length"))
    assert played.end.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert played.output[0]["status"] == "incomplete"


# -- tool calls --------------------------------------------------------------------------------------------------------


async def test_an_id_may_be_sent_once_or_in_each_delta() -> None:
    once = await play(call(name="f", arguments="{", id="call_1"), call(arguments="}"), STOP)
    each = await play(call(name="f", arguments="{", id="call_1"), call(arguments="}", id="call_1"), STOP)
    assert called(once) == called(each) == [("call_1", "f", "{}")]


async def test_a_missing_call_id_is_generated() -> None:
    played = await play(call(name="f", arguments="{}"), STOP)
    assert called(played)[0][0].startswith("call_")


async def test_a_late_call_id_is_used() -> None:
    played = await play(call(name="f"), call(arguments="{}", id="call_1"), STOP)
    assert called(played) == [("call_1", "f", "{}")]


async def test_the_same_index_with_a_new_id_starts_another_call() -> None:
    played = await play(call(name="f", arguments="{}", id="call_1"), call(name="g", arguments="{}", id="call_2"), STOP)
    assert called(played) == [("call_1", "f", "{}"), ("call_2", "g", "{}")]


async def test_whole_calls_without_ids_or_indexes_stay_separate() -> None:
    whole = [call(None, name="f", arguments=arguments) for arguments in ('{"a":1}', '{"a":2}')]
    assert [arguments for _, _, arguments in called(await play(*whole, STOP))] == ['{"a":1}', '{"a":2}']


async def test_two_calls_with_the_same_id_get_distinct_ids() -> None:
    played = await play(call(0, name="f", arguments="{}", id="f"), call(1, name="f", arguments="{}", id="f"), STOP)
    ids = [call_id for call_id, _, _ in called(played)]
    assert (ids[0], len(set(ids))) == ("f", 2)


async def test_an_overlong_call_id_is_replaced_but_still_matches_later_deltas() -> None:
    long = "call_" + "x" * 100
    played = await play(call(name="f", arguments="{", id=long), call(arguments="}", id=long), STOP)
    assert [(len(call_id) <= 64, arguments) for call_id, _, arguments in called(played)] == [(True, "{}")]


async def test_missing_and_non_zero_first_indexes_are_accepted() -> None:
    missing = await play(call(None, name="f", arguments="{", id="call_1"), call(None, arguments="}"), STOP)
    seven = await play(call(7, name="f", arguments="{", id="call_1"), call(7, arguments="}"), STOP)
    assert called(missing) == called(seven) == [("call_1", "f", "{}")]


async def test_two_entries_of_one_call_in_one_chunk_are_joined() -> None:
    entries = [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{"}}]
    entries.append({"index": 0, "function": {"arguments": "}"}})
    assert called(await play(chunk(tool_calls=entries), STOP)) == [("call_1", "f", "{}")]


async def test_an_empty_tool_calls_list_is_ignored() -> None:
    assert called(await play(chunk(content="Hi", tool_calls=[]), STOP)) == []


@pytest.mark.parametrize(
    "names",
    [["get_time"], ["get_", "time"], ["get_time", "get_time", "get_time"], ["get", "get_time"], [None, "get_time"]],
)
async def test_a_function_name_may_arrive_split_repeated_or_late(names: list[str | None]) -> None:
    named = [call(name=name, id="call_1") for name in names]
    played = await play(*named, call(arguments="{}", id="call_1", name=names[-1] if len(names) > 2 else None), STOP)
    assert called(played) == [("call_1", "get_time", "{}")]
    added = next(event for event in played.events if event["type"] == "response.output_item.added")
    assert added["item"]["name"] == "get_time"


async def test_arguments_before_the_name_are_buffered() -> None:
    played = await play(call(arguments='{"a"', id="call_1"), call(arguments=":1}"), call(name="f"), STOP)
    assert called(played) == [("call_1", "f", '{"a":1}')]
    assert deltas(played, "function_call_arguments") == ['{"a":1}']


async def test_a_call_without_a_name_fails() -> None:
    played = await play(call(arguments="{}", id="call_1"), STOP)
    assert (played.end.ending.status, played.output) == ("failed", [])


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ([], "{}"),
        ([""], "{}"),
        (['{"a":1}'], '{"a":1}'),
        (list('{"a":1}'), '{"a":1}'),
        (["", "", '{"a":1}'], '{"a":1}'),
        ([{"a": 1}], '{"a":1}'),
    ],
    ids=["null", "empty", "whole", "char by char", "only in the last chunk", "parsed"],
)
async def test_arguments_in_any_chunking_are_joined(pieces: list[Any], whole: str) -> None:
    played = await play(call(name="f", id="call_1"), *(call(arguments=piece) for piece in pieces), STOP)
    assert called(played) == [("call_1", "f", whole)]
    assert "".join(deltas(played, "function_call_arguments")) == whole


async def test_missing_arguments_become_one_delta_with_an_empty_object() -> None:
    played = await play(call(name="f", id="call_1"), STOP)
    assert deltas(played, "function_call_arguments") == ["{}"]


async def test_interleaved_parallel_calls_are_emitted_one_after_the_other() -> None:
    opening = [call(0, name="f", id="call_f"), call(1, name="g", id="call_g")]
    mixed = [call(i, arguments=piece) for i, piece in ((0, "{"), (1, "{"), (0, "}"), (1, "}"))]
    played = await play(*opening, *mixed, STOP)
    assert called(played) == [("call_f", "f", "{}"), ("call_g", "g", "{}")]
    assert deltas(played, "function_call_arguments") == ["{", "}", "{}"]


async def test_finish_reason_stop_with_calls_counts_as_tool_calls() -> None:
    played = await play(*calls(f="{}")[:-2], STOP)
    assert [record.kind for record in played.end.calls] == ["function"]


@pytest.mark.parametrize("reason", ["tool_calls", "function_call"])
async def test_a_tool_calls_finish_reason_without_calls_fails(reason: str) -> None:
    played = await play(chunk(content="I will call"), chunk(finish=reason))
    assert played.end.response["error"]["code"] == "server_error"


async def test_a_legacy_function_call_delta_is_a_call() -> None:
    old = [chunk(function_call={"name": "f", "arguments": "{"}), chunk(function_call={"arguments": "}"})]
    played = await play(*old, chunk(finish="function_call"))
    assert [(name, arguments) for _, name, arguments in called(played)] == [("f", "{}")]


async def test_a_truncated_call_is_listed_but_not_run() -> None:
    played = await play(call(name="f", arguments='{"a', id="call_1"), chunk(finish="length"))
    assert (played.output[0]["status"], played.end.calls) == ("incomplete", [])
    assert played.end.response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item.in_context for item in played.end.items] == [False]


async def test_each_truncated_interleaved_call_is_incomplete() -> None:
    opening = [call(i, name=name, arguments='{"a"', id=name) for i, name in enumerate("fgh")]
    played = await play(*opening, call(1, arguments=":1}"), chunk(finish="length"))
    assert [item["status"] for item in played.output] == ["incomplete", "completed", "incomplete"]


async def test_invalid_json_arguments_of_client_functions_are_passed_through() -> None:
    played = await play(call(name="f", arguments="{oops", id="call_1"), chunk(finish="tool_calls"))
    assert (called(played), played.end.ending.status) == ([("call_1", "f", "{oops")], "completed")


# -- the envelope ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "terminal"),
    [
        (STOP, "completed"),
        (chunk(finish="length"), "incomplete"),
        (chunk(finish="content_filter"), "incomplete"),
        (Failure(code="server_error", message="gone"), "failed"),
    ],
)
async def test_the_terminal_event_matches_the_status(ending: Piece, terminal: str) -> None:
    played = await play(chunk(content="Hi"), ending)
    assert (played.types[-1], played.end.response["status"]) == (terminal, terminal)


async def test_the_first_events_carry_every_parameter_and_no_output() -> None:
    played = await play(*text("Hi"), temperature=0.25, metadata={"a": "b"}, instructions="Be brief.")
    for event in played.events[:2]:
        response = event["response"]
        assert (response["temperature"], response["metadata"]) == (0.25, {"a": "b"})
        assert (response["instructions"], response["output"], response["usage"]) == ("Be brief.", [], None)
    final = played.events[-1]["response"]
    assert set(final) == set(played.events[0]["response"])
