"""Answers in the formats that providers document, and the responses that clients get for them.

`wire_examples/README.md` describes the files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from tests.support.api import Api, Event
from tests.support.model_capabilities import describe
from tests.support.responses_upstream import responses_script
from tests.support.upstream import Answer, Script, ScriptedUpstream

FOLDER = Path(__file__).parent / "wire_examples"
_END_OF_BODY = "\n--- response\n"
_FIELDS = ("status", "output", "usage", "error", "incomplete_details")
_OMITTED = {"id", "encrypted_content"}
_GENERATED_CALL_ID = re.compile(r"call_[0-9a-v]{28}")


@dataclass(frozen=True, kw_only=True)
class Example:
    """An answer of an upstream with its expected response. `name` is the provider and the case."""

    name: str
    source: str
    body: str
    expected: Event
    wire_api: str = "chat_completions"
    capabilities: str = "{}"
    status: str = "200"

    @property
    def answer(self) -> Answer:
        """The answer of the scripted upstream."""
        is_document = self.body.startswith(("{", "["))
        return Answer(
            pieces=[self.body.encode()],
            status=int(self.status),
            content_type="application/json" if is_document else "text/event-stream",
            # Repeated requests would only make the test slower.
            headers={"x-should-retry": "false"},
            done=False,
        )


def read(path: Path) -> Example:
    """Return the example in a file."""
    head, _, rest = path.read_text().partition("\n\n")
    body, _, expected = rest.partition(_END_OF_BODY)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    return Example(name=f"{path.parent.name}/{path.stem}", body=body, expected=orjson.loads(expected), **fields)


EXAMPLES = [read(path) for path in sorted(FOLDER.glob("*/*.txt"))]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Example:
    assert isinstance(request.param, Example)
    return request.param


@pytest.fixture
def script(
    example: Example, upstream: ScriptedUpstream, responses_upstream: ScriptedUpstream, database: None
) -> Iterator[Script]:
    """The model of the example, which gives the same answer to streamed and other requests."""
    capabilities = orjson.loads(example.capabilities)
    if example.wire_api == "responses":
        with responses_script(responses_upstream, **capabilities) as script:
            yield script.always(example.answer)
        return
    with upstream.script() as script:
        if capabilities:
            describe(script, **capabilities)
        yield script.always(example.answer)


def compact(value: Any) -> Any:
    """Return a part of a response without what the files omit."""
    if isinstance(value, list):
        return [compact(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {name: compact(entry) for name, entry in value.items() if name not in _OMITTED}
    if _GENERATED_CALL_ID.fullmatch(str(kept.get("call_id"))):
        del kept["call_id"]
    if "type" in kept and kept.get("status") == "completed":
        del kept["status"]
    return {name: entry for name, entry in kept.items() if entry not in (None, [], {})}


def compact_response(response: Event) -> Event:
    """Return the compared fields of a response."""
    found: Event = compact({name: response[name] for name in _FIELDS})
    if usage := found.get("usage"):
        found["usage"] = {name: tokens for name, tokens in map(_without_zeros, usage.items()) if tokens}
    return found


def _without_zeros(entry: tuple[str, Any]) -> tuple[str, Any]:
    name, tokens = entry
    return name, {part: number for part, number in tokens.items() if number} if isinstance(tokens, dict) else tokens


def outcome(answer: httpx2.Response, *, model: str) -> Event:
    """Return a response, or an HTTP status and an error, as a client reads it."""
    text = answer.text.replace(model, "MODEL")
    if answer.status_code != 200:
        error = orjson.loads(text)["error"]
        return {"http_status": answer.status_code, "error": {"code": error["code"], "message": error["message"]}}
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, last = re.findall(r"^data: (\{.*)", text, re.MULTILINE)
        return compact_response(orjson.loads(last)["response"])
    return compact_response(orjson.loads(text))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name, indirect=True)
def test_clients_get_the_expected_response(api: Api, script: Script, example: Example) -> None:
    calls = [item for item in example.expected.get("output", ()) if item["type"] == "function_call"]
    tools = [{"type": "function", "name": name} for name in sorted({call["name"] for call in calls})]
    request = {"model": script.model, "input": "Hi", "tools": tools}
    streamed = outcome(api.post("/responses", {**request, "stream": True}), model=script.model)
    as_json = outcome(api.post("/responses", request), model=script.model)
    response = {name: value for name, value in example.expected.items() if name != "http_status"}
    error = {name: example.expected[name] for name in ("http_status", "error") if name in example.expected}
    assert streamed == (response if "status" in response else error)
    assert as_json == (error if "http_status" in error else response)


def test_the_examples_cover_forty_answers_of_twenty_providers() -> None:
    providers = {example.name.partition("/")[0] for example in EXAMPLES}
    assert (len(EXAMPLES) >= 40, len(providers) >= 20) == (True, True)
    assert len([example for example in EXAMPLES if example.wire_api == "responses"]) >= 3


def test_each_example_names_the_documentation_of_its_format() -> None:
    assert [example.name for example in EXAMPLES if not re.match(r"https://[\w.-]+/\S+$", example.source)] == []
