"""Proof that the validation in tests finds defects, and validation of bodies that other tests do not cover.

`Api` and `Socket` validate everything automatically (tests/support/validation.py).
"""

import copy
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from openai.types import CreateEmbeddingResponse, ModerationCreateResponse
from openai.types.moderation import Categories, CategoryAppliedInputTypes, CategoryScores
from openai.types.responses import Response
from pydantic import BaseModel, ValidationError

from tests.support.api import Api, Event, ok
from tests.support.chunks import calls, chunk, text
from tests.support.streams import check_stream
from tests.support.upstream import Answer, Script, stream
from tests.support.validation import check_body, check_event

LOGPROB = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"type": "json_schema", "name": "thing", "schema": {"type": "object"}, "strict": True}
ANSWER = stream(chunk(reasoning="Hm."), chunk(content="Hel"), chunk(content="lo"), *calls(look="{}"))
Spoil = Callable[[Any], object]


def with_logprobs() -> Answer:
    written = chunk(content="Hi", finish="stop")
    written["choices"][0]["logprobs"] = {"content": [{**LOGPROB, "top_logprobs": [LOGPROB]}]}
    return stream(written)


CASES: dict[str, tuple[Answer, dict[str, Any]]] = {
    "every parameter that is echoed": (
        stream(*text("{", "}")),
        {
            "instructions": "Be kind.",
            "metadata": {"a": "b"},
            "tools": [TOOL],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
            "text": {"format": SCHEMA, "verbosity": "low"},
            "reasoning": {"effort": "minimal"},
            "temperature": 0,
            "max_output_tokens": 16,
            "max_tool_calls": 1,
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "service_tier": "flex",
        },
    ),
    "logprobs": (with_logprobs(), {"include": ["message.output_text.logprobs"], "top_logprobs": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_streamed_retrieved_and_listed_responses_match_their_types(api: Api, script: Script, case: str) -> None:
    answer, asks = CASES[case]
    script.then(answer)
    completed = api.events(model=script.model, input="Hi", **asks)[-1]["response"]
    assert completed == api.retrieve(completed["id"])
    assert completed in ok(api.get("/responses"))["data"]


def test_complete_moderations_and_embeddings_match_their_types() -> None:
    # Other tests forward incomplete bodies, whose types are the upstream's responsibility.
    values: list[tuple[type[BaseModel], Any]] = [
        (Categories, False),
        (CategoryScores, 0.5),
        (CategoryAppliedInputTypes, []),
    ]
    categories, scores, kinds = (
        {field.alias or name: value for name, field in kind.model_fields.items()} for kind, value in values
    )
    result = {
        "flagged": False,
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": kinds,
    }
    check_body(ModerationCreateResponse, orjson.dumps({"id": "modr_1", "model": "m", "results": [result]}))
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    check_body(CreateEmbeddingResponse, orjson.dumps({"object": "list", "model": "m", "data": data, "usage": usage}))


@pytest.fixture
def events(api: Api, script: Script) -> list[Event]:
    """Events of a stream with reasoning, text and a call."""
    script.then(ANSWER)
    return api.events(model=script.model, input="Hi", tools=[TOOL])


def find(events: list[Event], kind: str) -> Event:
    """Return the first event of a type."""
    return copy.deepcopy(next(event for event in events if event["type"] == f"response.{kind}"))


DEFECTS: dict[str, tuple[str, Spoil]] = {
    "an unknown type of event": ("output_text.delta", lambda e: e.update(type="response.output_text.dleta")),
    "a missing field": ("output_text.delta", lambda e: e.pop("content_index")),
    "a missing list": ("output_text.done", lambda e: e.pop("logprobs")),
    "a wrong type": ("output_text.delta", lambda e: e.update(output_index="0")),
    "an unknown key": ("output_item.added", lambda e: e["item"].update(colour="red")),
    "an unknown item": ("output_item.done", lambda e: e["item"].update(type="messages")),
    "an unknown part": ("content_part.added", lambda e: e["part"].update(type="input_text")),
    "an unknown status": ("completed", lambda e: e["response"].update(status="done")),
    "null for a phase": ("output_item.done", lambda e: e.update(item=e["item"] | {"encrypted_content": None})),
    "no penalty": ("created", lambda e: e["response"].pop("presence_penalty")),
    "null as a temperature": ("created", lambda e: e["response"].update(temperature=None)),
    "a half second": ("created", lambda e: e["response"].update(created_at=1.5)),
    "a tool without its description": ("created", lambda e: e["response"]["tools"][0].pop("description")),
    "null as a verbosity": ("created", lambda e: e["response"]["text"].update(verbosity=None)),
}


@pytest.mark.parametrize("what", DEFECTS)
def test_a_defective_event_fails_validation(events: list[Event], what: str) -> None:
    kind, spoil = DEFECTS[what]
    event = find(events, kind)
    check_event(event)
    spoil(event)
    with pytest.raises((AssertionError, ValidationError)):
        check_event(event)


def test_a_defective_body_fails_validation(events: list[Event]) -> None:
    body = events[-1]["response"]
    check_body(Response, orjson.dumps(body))
    with pytest.raises(AssertionError, match=r"Response\.colour"):
        check_body(Response, orjson.dumps({**body, "colour": "red"}))


def drop(events: list[Event], kind: str) -> list[Event]:
    """Return the events without the first of a type, renumbered."""
    gone = find(events, kind)
    kept = [event for event in events if event["sequence_number"] != gone["sequence_number"]]
    return [{**event, "sequence_number": number} for number, event in enumerate(kept)]


@pytest.mark.parametrize(
    "kind", ["output_text.delta", "output_text.done", "content_part.added", "output_item.done", "in_progress"]
)
def test_a_stream_with_a_missing_event_fails_validation(events: list[Event], kind: str) -> None:
    spoilt = drop(events, kind)
    with pytest.raises((AssertionError, IndexError, KeyError)):
        check_stream(spoilt, [check_event(event) for event in spoilt], lambda _: events[-1]["response"])


def test_a_stream_that_differs_from_the_stored_response_fails_validation(events: list[Event]) -> None:
    stored = {**events[-1]["response"], "model": "another"}
    with pytest.raises(AssertionError):
        check_stream(events, [check_event(event) for event in events], lambda _: stored)


def test_a_delta_that_differs_from_the_final_text_fails_validation(events: list[Event]) -> None:
    spoilt = copy.deepcopy(events)
    next(event for event in spoilt if event["type"] == "response.reasoning_text.delta")["delta"] = "Oh."
    with pytest.raises(AssertionError, match="than its deltas"):
        check_stream(spoilt, [check_event(event) for event in spoilt], lambda _: events[-1]["response"])
