"""Thousands of requests made up from our own OpenAPI document, valid and not, by Schemathesis.

Nothing may answer with a 5xx, with something that the document does not describe, or not at all. The demo model
answers, since it does what a request asks for. The seed is fixed; another one is set by SCHEMATHESIS_SEED.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from demo_upstream.server import running
from responses.api.openapi import document
from responses.schema import CreateResponse
from tenants import scope, services
from tenants.models import Team
from tests.support.api import Api
from tests.support.web import WebProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SEED = int(os.environ.get("SCHEMATHESIS_SEED", "20261121"))
SECONDS = 15.0
ELSEWHERE = {
    "prompt",
    "previous_response_id",
    "conversation",
    "moderation",
    "top_k",
    "seed",
    "repetition_penalty",
    "min_p",
}
"""Parameters that name things which are not there, or need a model that can more."""
NEVER_GOOD = {
    "POST /moderations",  # the demo model judges nothing
    "POST /images/generations",  # no model is set for them
    "POST /images/edits",
    "POST /responses/{response_id}/cancel",  # nothing runs in the background
    "POST /uploads/{upload_id}/complete",  # no part has come
    "POST /webhook_endpoints/{endpoint_id}/test",  # nobody is there
}
LACKING = ("/containers", "/vector_stores/{store_id}/files/{file_id}", "/vector_stores/{store_id}/file_batches/{")
"""Below these nothing is there to be found: no sandbox runs, and stores have no files."""
SPOILT = {"POST /responses", "POST /responses/input_tokens"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODEL = "demo-d0"
EMBEDDINGS = "demo-embedding"
MESSAGES: Any = [{"role": "user", "content": "Hi"}]
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "demo-d0", "input": "Hi"}}'
TAKES_INPUT = {"/responses", "/responses/input_tokens", "/embeddings", "/moderations"}


def operations() -> dict[str, Any]:
    """Every operation by its method and path."""
    schema = schemathesis.openapi.from_dict(document())
    found: list[Any] = list(schema.get_all_operations())
    return {operation.ok().label: operation.ok() for operation in found}


OPERATIONS = operations()
WEIGHTS = {
    "POST /responses": 1000,
    "POST /responses/input_tokens": 400,
    "POST /chat/completions": 300,
}
EACH = 25
REQUESTS = {label: WEIGHTS.get(label, EACH) for label in OPERATIONS}
"""How many requests of each kind, valid and not: twice this."""


@pytest.fixture(scope="session")
def demo(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The demo upstream under its model's name, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = running()
    url = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    with django_db_blocker.unblock():
        models = [MODEL, "omni-moderation-latest", EMBEDDINGS]
        services.add_upstream(name="demo of schemathesis", base_url=url, models=models)
    yield
    asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture
def known(api: Api, demo: None) -> dict[str, str]:
    """What ids can stand for: things that are there."""
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(embedding_model=EMBEDDINGS)
    response = api.create(model=MODEL, input="Hi")
    form = {"file": ("a.txt", b"a")}
    file = api.request("POST", "/files", files=form, data={"purpose": "user_data"}).json()
    conversation = api.post("/conversations", {"items": [{"role": "user", "content": "Hi"}]}).json()["id"]
    (item,) = api.get(f"/conversations/{conversation}/items").json()["data"]
    completion = api.post("/chat/completions", {"model": MODEL, "messages": MESSAGES, "store": True}).json()
    lines = {"file": ("lines.jsonl", LINE)}
    requests = api.request("POST", "/files", files=lines, data={"purpose": "batch"}).json()["id"]
    batch = {"input_file_id": requests, "endpoint": "/v1/responses", "completion_window": "24h"}
    upload = {"bytes": 1, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    endpoint = {"name": "hook", "url": "https://example.com/hook", "event_types": ["response.completed"]}
    return {
        "response_id": response["id"],
        "requests": requests,
        "batch_id": api.post("/batches", batch).json()["id"],
        "upload_id": api.post("/uploads", upload).json()["id"],
        "endpoint_id": api.post("/webhook_endpoints", endpoint).json()["id"],
        # There is no sandbox here, and perhaps no pgvector.
        "container_id": "cntr_unknown",
        "store_id": api.post("/vector_stores", {}).json().get("id", "vs_unknown"),
        "file_id": file["id"],
        "conversation_id": conversation,
        "item_id": item["id"],
        "completion_id": completion.get("id", "chatcmpl-unknown"),
        "model": MODEL,
    }


def test_there_are_five_thousand_of_them() -> None:
    assert 2 * sum(REQUESTS.values()) >= 5000


BODIES: dict[str, Callable[[dict[str, str]], Any]] = {
    "/responses/compact": lambda known: {"model": MODEL, "input": "Hi"},
    "/vector_stores": lambda known: {"name": "store"},
    "/vector_stores/{store_id}/files": lambda known: {"file_id": known["file_id"]},
    "/vector_stores/{store_id}/file_batches": lambda known: {"file_ids": [known["file_id"]]},
    "/vector_stores/{store_id}/search": lambda known: {"query": "a"},
    "/webhook_endpoints": lambda known: {
        "name": "hook",
        "url": "https://example.com/hook",
        "event_types": ["response.completed"],
    },
    "/conversations/{conversation_id}/items": lambda known: {"items": MESSAGES},
}
"""Bodies whose values are no matter of a schema."""

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def cases(label: str, mode: GenerationMode) -> st.SearchStrategy[Any]:
    """Cases of an operation, valid or not.

    What is no request for a response Schemathesis cannot make up, the schema being too large; a valid one with
    something else in one of its places has to do.
    """
    if mode.is_negative and label in SPOILT:
        valid = OPERATIONS[label].as_strategy(generation_mode=GenerationMode.POSITIVE)
        return st.builds(_spoilt, valid, st.sampled_from(sorted(CreateResponse.model_fields)), JSON)
    strategy: st.SearchStrategy[Any] = OPERATIONS[label].as_strategy(generation_mode=mode)
    return strategy


def _spoilt(case: Case[Any], name: str, value: Any) -> Case[Any]:
    if isinstance(case.body, dict):
        case.body = {**case.body, name: value}
    return case


def make_sense(case: Case[Any], known: dict[str, str]) -> None:
    """Ids become those of things that are there, and a body gets what no schema can say: a model, something to read.

    Without this nearly every request would end at the first thing that is unknown.
    """
    case.path_parameters = {name: known[name] for name in case.path_parameters or {}}
    if case.media_type != "application/json" or not isinstance(case.body, dict):
        return
    case.body = {name: value for name, value in case.body.items() if name not in ELSEWHERE}
    if case.path in {*TAKES_INPUT, "/chat/completions"}:
        case.body["model"] = MODEL
    if case.path == "/chat/completions":
        case.body["messages"] = MESSAGES
    elif case.path in TAKES_INPUT and case.body.get("input") in (None, "", []):
        case.body["input"] = "Hi"
    elif case.path == "/batches":
        case.body |= {"input_file_id": known["requests"], "endpoint": "/v1/responses"}
    elif case.path in BODIES:
        case.body = BODIES[case.path](known)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "not valid"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_as_the_document_says(
    api: Api, web: WebProcess, known: dict[str, str], label: str, mode: GenerationMode
) -> None:
    sent: list[int] = []

    @hypothesis.seed(SEED)
    @settings(
        max_examples=REQUESTS[label],
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(label, mode), exists=st.booleans())
    def run(case: Case[Any], exists: bool) -> None:
        case.headers.update(api.headers)
        if exists:
            make_sense(case, known)
        answer = case.call(base_url=f"{web.url}/v1", headers=api.headers, timeout=SECONDS)
        case.validate_response(answer, checks=CHECKS)
        sent.append(answer.status_code)

    print(f"seed {SEED}")  # noqa: T201 - shown with a failure, to repeat it
    run()
    is_lacking = any(below in label for below in LACKING)
    assert mode.is_negative or is_lacking or label in NEVER_GOOD or 200 in sent, "no request was good enough"
