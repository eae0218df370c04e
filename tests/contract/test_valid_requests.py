"""Random valid requests, generated from the SDK's types: each succeeds, or fails with an error of the documented table.

Every success is validated strictly against the types of openai-python, and against those of openai-node and the schemas
of the AI SDK. `python -m benchmarks valid-requests` sends 2,000, with any seed.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
import pytest
from openai.types import (
    batch_create_params,
    batch_list_params,
    container_create_params,
    container_list_params,
    file_create_params,
    file_list_params,
    image_generate_params,
    vector_store_create_params,
    vector_store_list_params,
    vector_store_search_params,
    vector_store_update_params,
)
from openai.types.audio import speech_create_params, transcription_create_params
from openai.types.chat import completion_create_params
from openai.types.containers import file_list_params as container_file_list_params
from openai.types.conversations import (
    conversation_create_params,
    conversation_update_params,
    item_create_params,
    item_list_params,
)
from openai.types.responses import (
    input_item_list_params,
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from openai.types.vector_stores import (
    file_batch_create_params,
    file_batch_list_files_params,
    file_update_params,
)
from openai.types.vector_stores import file_create_params as store_file_create_params
from openai.types.vector_stores import (
    file_list_params as store_file_list_params,
)
from pydantic import ValidationError

from core.errors import error_table
from demo_upstream.app import running
from tenants import scope, services
from tenants.models import Model, Team
from tests.support.api import Api, ok
from tests.support.client_types import Shape, rejections
from tests.support.faulty_upstream import FaultyUpstream
from tests.support.items import PIXEL
from tests.support.mcp_servers import McpServer
from tests.support.sampling import SEED, sized
from tests.support.sandboxes import Sandbox
from tests.support.typed_requests import RequestGenerator
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.slow
MODEL, EMBEDDINGS = "demo-reasoning-d0", "demo-embedding-d0"
MEDIA = "media-of-valid-requests"
MEDIA_PATHS = {"/images/generations", "/audio/speech", "/audio/transcriptions"}
"""Paths that the demo upstream does not have, with a model of another server."""
REQUESTS = sized(80, full=2000)
BODY = {"model": MODEL, "input": "Hi"}
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\0\0\0"
LINE = orjson.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": BODY})
DOCUMENTED = {(status, code) for status, _, code, _ in error_table()}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation: its weight, the type of its parameters, and of its result in openai-node.

    `but` names parameters in the path, `needs` required parameters that the type declares as optional. A result of
    `Page X` is a list of `X`.
    """

    method: str
    path: str
    parameters: Any = None
    result: str = ""
    weight: int = 1
    but: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


OPERATIONS = (
    Operation(
        method="POST",
        path="/responses",
        parameters=response_create_params.ResponseCreateParamsNonStreaming,
        needs=("model", "input"),
        result="Response",
        weight=16,
    ),
    Operation(
        method="POST",
        path="/responses",
        parameters=response_create_params.ResponseCreateParamsStreaming,
        needs=("model", "input"),
        result="Response",
        weight=12,
    ),
    Operation(
        method="POST",
        path="/responses/input_tokens",
        parameters=input_token_count_params.InputTokenCountParams,
        needs=("model", "input"),
        result="InputTokenCountResponse",
        weight=3,
    ),
    Operation(
        method="POST",
        path="/responses/compact",
        parameters=response_compact_params.ResponseCompactParams,
        needs=("model", "input"),
        result="CompactedResponse",
        weight=2,
    ),
    Operation(method="GET", path="/responses/{response}", result="Response"),
    Operation(
        method="GET",
        path="/responses/{response}/input_items",
        parameters=input_item_list_params.InputItemListParams,
        result="Page ResponseItem",
    ),
    Operation(
        method="POST",
        path="/conversations",
        parameters=conversation_create_params.ConversationCreateParams,
        result="Conversation",
        weight=6,
    ),
    Operation(method="GET", path="/conversations/{conversation}", result="Conversation"),
    Operation(
        method="POST",
        path="/conversations/{conversation}",
        parameters=conversation_update_params.ConversationUpdateParams,
        result="Conversation",
    ),
    Operation(
        method="POST",
        path="/conversations/{conversation}/items",
        parameters=item_create_params.ItemCreateParams,
        result="Page ConversationItem",
        weight=8,
        but=("include",),
    ),
    Operation(
        method="GET",
        path="/conversations/{conversation}/items",
        parameters=item_list_params.ItemListParams,
        result="Page ConversationItem",
        weight=2,
    ),
    Operation(
        method="POST",
        path="/vector_stores",
        parameters=vector_store_create_params.VectorStoreCreateParams,
        result="VectorStore",
        weight=4,
    ),
    Operation(
        method="GET",
        path="/vector_stores",
        parameters=vector_store_list_params.VectorStoreListParams,
        result="Page VectorStore",
    ),
    Operation(
        method="POST",
        path="/vector_stores/{store}",
        parameters=vector_store_update_params.VectorStoreUpdateParams,
        result="VectorStore",
        weight=2,
    ),
    Operation(
        method="POST",
        path="/vector_stores/{store}/search",
        parameters=vector_store_search_params.VectorStoreSearchParams,
        result="Page VectorStoreSearchResponse",
        weight=3,
    ),
    Operation(
        method="POST",
        path="/vector_stores/{store}/files",
        parameters=store_file_create_params.FileCreateParams,
        result="VectorStoreFile",
        weight=2,
    ),
    Operation(
        method="GET",
        path="/vector_stores/{store}/files",
        parameters=store_file_list_params.FileListParams,
        result="Page VectorStoreFile",
    ),
    Operation(
        method="POST",
        path="/vector_stores/{store}/files/{file}",
        parameters=file_update_params.FileUpdateParams,
        result="VectorStoreFile",
        but=("vector_store_id",),
    ),
    Operation(
        method="POST",
        path="/vector_stores/{store}/file_batches",
        parameters=file_batch_create_params.FileBatchCreateParams,
        result="VectorStoreFileBatch",
        weight=2,
    ),
    Operation(
        method="GET",
        path="/vector_stores/{store}/file_batches/{batch_of_files}/files",
        parameters=file_batch_list_files_params.FileBatchListFilesParams,
        result="Page VectorStoreFile",
        but=("vector_store_id",),
    ),
    Operation(
        method="POST",
        path="/files",
        parameters=file_create_params.FileCreateParams,
        result="FileObject",
        weight=3,
        but=("file",),
    ),
    Operation(
        method="POST",
        path="/chat/completions",
        parameters=completion_create_params.CompletionCreateParamsNonStreaming,
        needs=("model", "messages"),
        weight=6,
    ),
    Operation(
        method="POST",
        path="/images/generations",
        parameters=image_generate_params.ImageGenerateParamsNonStreaming,
        needs=("model",),
        weight=2,
    ),
    Operation(method="POST", path="/audio/speech", parameters=speech_create_params.SpeechCreateParams, weight=2),
    Operation(
        method="POST",
        path="/audio/transcriptions",
        parameters=transcription_create_params.TranscriptionCreateParamsNonStreaming,
        but=("file",),
        weight=2,
    ),
    Operation(method="GET", path="/files", parameters=file_list_params.FileListParams, result="Page FileObject"),
    Operation(
        method="POST", path="/batches", parameters=batch_create_params.BatchCreateParams, result="Batch", weight=3
    ),
    Operation(method="GET", path="/batches", parameters=batch_list_params.BatchListParams, result="Page Batch"),
    Operation(
        method="POST",
        path="/containers",
        parameters=container_create_params.ContainerCreateParams,
        result="ContainerCreateResponse",
        weight=2,
    ),
    Operation(
        method="GET",
        path="/containers",
        parameters=container_list_params.ContainerListParams,
        result="Page ContainerListResponse",
    ),
    Operation(
        method="GET",
        path="/containers/{container}/files",
        parameters=container_file_list_params.FileListParams,
        result="Page FileListResponse",
    ),
)


@pytest.fixture(scope="module")
def demo(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The demo upstream, and a server for images and audio, each in a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = running()
    url = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(60)
    with FaultyUpstream().running() as media:
        with django_db_blocker.unblock():
            upstream = services.add_upstream(name="demo of valid requests", base_url=url, models=[MODEL, EMBEDDINGS])
            services.add_upstream(name="media of valid requests", base_url=media.url, models=[MEDIA])
        yield
    with django_db_blocker.unblock():
        # Other tests have their own upstream for the embedding model, and this upstream ends now.
        Model.objects.filter(upstream=upstream).delete()
    asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture
def existing(reaching: Api, demo: None, sandbox: Sandbox) -> dict[str, str]:
    """Ids of existing objects of a team that can embed texts."""
    api = reaching
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(embedding_model=EMBEDDINGS)

    def upload(name: str, content: bytes, purpose: str) -> str:
        sent = api.request("POST", "/files", files={"file": (name, content)}, data={"purpose": purpose})
        return str(ok(sent)["id"])

    ids = {
        "response": api.create(model=MODEL, input="Hi")["id"],
        "conversation": ok(api.post("/conversations", {}))["id"],
        "file": upload("a.txt", b"A cat sleeps.", "user_data"),
        "requests": upload("lines.jsonl", LINE, "batch"),
        "store": ok(api.post("/vector_stores", {"name": "notes"}))["id"],
        "container": ok(api.post("/containers", {"name": "box"}))["id"],
    }
    ok(api.post(f"/vector_stores/{ids['store']}/files", {"file_id": ids["file"]}))
    batch = ok(api.post(f"/vector_stores/{ids['store']}/file_batches", {"file_ids": [ids["file"]]}))
    return {**ids, "batch_of_files": batch["id"]}


def generator(rng: random.Random, ids: Mapping[str, str], server_url: str) -> RequestGenerator:
    """Return a generator that names existing objects."""
    fixed: dict[str, Any] = {
        "model": MODEL,
        "previous_response_id": ids["response"],
        "response_id": ids["response"],
        "comparison_response_id": ids["response"],
        "conversation": ids["conversation"],
        "conversation_id": ids["conversation"],
        "file_id": ids["file"],
        "file_ids": ids["file"],
        "input_file_id": ids["requests"],
        "vector_store_ids": ids["store"],
        "container": ids["container"],
        "container_id": ids["container"],
        "image_url": PIXEL,
        "file_url": "http://127.0.0.1:9/a.pdf",
        "file_data": "data:text/plain;base64,aGk=",
        "url": "https://example.com/a",
        "server_url": server_url,
        "server_label": "box",
        "authorization": "token",
        "headers": {"x-note": "a"},
        "name": "look",
        "parameters": SCHEMA,
        "schema": SCHEMA,
        "input_schema": SCHEMA,
        "arguments": "{}",
        # A grammar of Lark, and a regular expression.
        "definition": 'start: "a"',
        "domain_secrets": "a",
        "allowed_domains": "example.com",
        "blocked_domains": "example.org",
        "timezone": "Europe/Berlin",
        "country": "DE",
        "size": "1024x1024",
        "token": "a",
        "background": "auto",
        "starting_after": 0,
        "tools": {"type": "function", "name": "look", "parameters": SCHEMA, "strict": True},
    }
    values = {name: (lambda _, value=value: value) for name, value in fixed.items()}
    call_ids = [f"call_{number}" for number in range(3)]
    numbers = {
        "temperature": (0, 2),
        "top_p": (0, 1),
        "top_logprobs": (0, 5),
        "max_output_tokens": (16, 500),
        "limit": (1, 100),
        "compact_threshold": (1000, 9000),
        "days": (1, 365),
        "seconds": (3600, 90000),
        "minutes": (1, 20),
        "frequency_penalty": (-2, 2),
        "presence_penalty": (-2, 2),
        "speed": (0.25, 4),
        "score_threshold": (0, 1),
        "embedding_weight": (0.1, 1),
        "text_weight": (0.1, 1),
        "max_chunk_size_tokens": (100, 4096),
        "chunk_overlap_tokens": (0, 50),
        "partial_images": (0, 3),
        "output_compression": (0, 100),
    }
    return RequestGenerator(rng=rng, values={**values, "call_id": lambda rng: rng.choice(call_ids)}, numbers=numbers)


def send(api: Api, operation: Operation, path: str, parameters: dict[str, Any]) -> httpx2.Response:
    """Send a request with parameters in its body, form or query."""
    if operation.method == "GET":
        cursors = {"after", "before"}
        query = {name: value for name, value in parameters.items() if value is not None and name not in cursors}
        return api.request("GET", path, params=query)
    if path == "/audio/transcriptions":
        return api.request("POST", path, files={"file": ("a.wav", WAV)}, data=dict(form_fields(parameters)))
    if path != "/files":
        return api.post(path, parameters)
    content = ("lines.jsonl", LINE) if parameters["purpose"] == "batch" else ("a.txt", b"A dog barks.")
    return api.request("POST", path, files={"file": content}, data=dict(form_fields(parameters)))


def form_fields(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters as the SDKs name them in forms. Objects and lists are not nested."""
    for name, value in parameters.items():
        if isinstance(value, dict):
            yield from ((f"{name}[{key}]", str(entry)) for key, entry in value.items())
        elif isinstance(value, list):
            yield f"{name}[]", [str(entry) for entry in value]
        elif value is not None:
            yield name, str(value).lower() if isinstance(value, bool) else str(value)


def shapes(operation: Operation, answer: httpx2.Response) -> Iterator[Shape]:
    """Return the bodies of an answer with their types in openai-node, which has none for forwarded answers."""
    if not operation.result:
        return
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
        yield Shape("ResponseStream", [orjson.loads(line) for line in lines])
    elif operation.result.startswith("Page "):
        for entry in answer.json()["data"]:
            yield Shape(operation.result.removeprefix("Page "), entry)
    else:
        body = answer.json()
        if operation.result == "CompactedResponse":
            # The SDK types messages of the user in it as output of the model.
            yield from (Shape("ResponseItem", item) for item in body["output"])
            body["output"] = []
        yield Shape(operation.result, body)


def test_valid_requests_succeed_or_get_a_documented_error(
    reaching: Api, existing: dict[str, str], served: McpServer, worker: WorkerProcess
) -> None:
    rng = random.Random(SEED)
    generate = generator(rng, existing, served.url)
    outcomes: Counter[tuple[str, int, str | None]] = Counter()
    accepted: list[Shape] = []
    examples: dict[Any, str] = {}
    failures: dict[str, str] = {}
    for _ in range(REQUESTS):
        (operation,) = rng.choices(OPERATIONS, [operation.weight for operation in OPERATIONS])
        path = operation.path.format(**existing)
        parameters = {}
        if operation.parameters:
            parameters = generate.object(operation.parameters, but=operation.but, needs=operation.needs)
        if path in MEDIA_PATHS:
            parameters["model"] = MEDIA
        request = f"{operation.method} {operation.path} {orjson.dumps(parameters).decode()}"
        try:
            answer = send(reaching, operation, path, dict(parameters))
        except (AssertionError, ValidationError, httpx2.HTTPError) as defect:
            failures.setdefault(f"{operation.path}: {str(defect)[:60]}", f"{request}\n{defect}")
            continue
        problem = answer.json()["error"] if answer.status_code >= 400 else {}
        code = problem.get("code")
        outcomes[operation.path, answer.status_code, code] += 1
        if answer.status_code < 300:
            accepted += shapes(operation, answer)
        elif answer.status_code >= 500 or (answer.status_code, code) not in DOCUMENTED:
            failures.setdefault(f"{operation.path}: {answer.status_code} {code}", f"{request}\n{answer.text}")
        else:
            examples.setdefault((operation.path, code, problem["message"][:50]), request[:300])
    for outcome, count in sorted(outcomes.items(), key=str):
        print(count, *outcome)  # noqa: T201 - shown with a failure
    for refusal, request in sorted(examples.items(), key=str):
        print(*refusal, request)  # noqa: T201 - the same
    assert not failures, "\n\n".join(failures.values())
    found = rejections(accepted)
    assert not found, found
    # Otherwise the test would show little.
    succeeded = sum(count for (_, status, _), count in outcomes.items() if status < 300)
    assert succeeded >= REQUESTS / 3, outcomes
