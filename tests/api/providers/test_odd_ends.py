"""Streams with an invalid event, and streams that break off after their finish reason."""

import pytest

from tests.support.api import Api
from tests.support.chunks import chunk, usage
from tests.support.targets import PATHS, Targets, is_complete, post, streamed_text
from tests.support.upstream import Answer, Cut, Piece, stream
from tests.support.usage_records import usage_record

INVALID = b'data: {"choices": [{\n\n'
WORDS = [chunk(content="One "), chunk(content="two "), chunk(content="three.")]
FINISH = chunk(finish="stop")
USED = usage(prompt_tokens=7, completion_tokens=3, total_tokens=10)

endpoints = pytest.mark.parametrize("path", PATHS)


def with_invalid(*pieces: Piece) -> Answer:
    """Return an answer with an event that is not JSON after its first piece."""
    return stream(pieces[0], INVALID, *pieces[1:])


@endpoints
def test_an_invalid_event_is_skipped_if_nothing_is_missing(api: Api, targets: Targets, path: str) -> None:
    targets.add().then(with_invalid(*WORDS, FINISH, USED))
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == ("One two three.", True)
    record = usage_record(api.caller)
    assert (record.outcome, record.output_tokens, record.estimated) == ("stop", 3, False)


@endpoints
@pytest.mark.parametrize(
    "pieces",
    [[*WORDS[:2], FINISH, USED], [*WORDS, FINISH], [*WORDS, USED], [WORDS[0], INVALID, *WORDS[1:], FINISH, USED]],
    ids=["a token is missing", "no usage", "no finish reason", "two invalid events"],
)
def test_an_invalid_event_may_have_had_output(api: Api, targets: Targets, path: str, pieces: list[Piece]) -> None:
    targets.add().then(with_invalid(*pieces))
    answer = post(api, path, targets.name, stream=True)
    # Nothing is sent after the place where something may be missing.
    assert (streamed_text(path, answer), is_complete(path, answer)) == ("One ", False)
    assert "error" in answer.text


@endpoints
def test_another_target_continues_where_output_may_be_missing(api: Api, targets: Targets, path: str) -> None:
    first, second = targets.two()
    first.then(with_invalid(WORDS[0], WORDS[2], FINISH, USED))
    second.say("One two three.")
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == ("One two three.", True)


@endpoints
@pytest.mark.parametrize("rest", [[USED], []], ids=["with usage", "without usage"])
def test_a_stream_that_breaks_after_its_finish_reason_is_complete(
    api: Api, targets: Targets, path: str, rest: list[Piece]
) -> None:
    first, second = targets.two()
    first.then(stream(*WORDS, FINISH, *rest, Cut()))
    answer = post(api, path, targets.name, stream=True)
    assert (streamed_text(path, answer), is_complete(path, answer)) == ("One two three.", True)
    assert second.received == []
    record = usage_record(api.caller)
    assert (record.outcome, record.output_tokens, record.estimated) == (
        "stop",
        3 if rest else record.output_tokens,
        not rest,
    )
