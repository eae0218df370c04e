"""Execution of batches by workers for all three endpoints: input validation, lines, output and error files."""

from datetime import timedelta
from typing import Any

import pytest
from openai import OpenAI

from conversations.models import File
from core.clock import now
from core.http.nulls import read
from gateway.batches.requests import CreateBatch
from gateway.batches.services import create_batch
from responses.models.batches import Batch, BatchLine
from responses.runs.identity import RequestInfo
from tenants import directory, scope, services
from tenants.models import ApiKey, UsageRecord
from tests.support.api import Api, Caller, MakeCaller, error, ok
from tests.support.batches import URL, answers, asked, ended, jsonl, line, retrieved, uploaded
from tests.support.chunks import chunk, completion, text
from tests.support.upstream import Gate, Script, refusal, running_upstream, stream, whole
from tests.support.waiting import eventually
from tests.support.webhooks import add_endpoint, delivering, running_receiver

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("worker")]
HI = line("a", model="m", input="Hi")
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.25]}],
    "model": "scripted",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}


def update_batch(api: Api, batch_id: str, **values: Any) -> None:
    with scope.team(api.caller.team.pk):
        assert Batch.objects.filter(pk=batch_id).update(**values) == 1


def codes(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the error code of each line of an error file."""
    return {name: (one["error"] or one["response"]["body"]["error"])["code"] for name, one in found.items()}


def test_a_batch_writes_an_output_file_and_an_error_file(client: OpenAI, script: Script, api: Api) -> None:
    script.say("Hello").say("Hello")
    lines = [line(name, model=script.model, input=name) for name in ("a", "b")]
    lines += [line("c", model=script.model, input="c", background=True), line("d", model="unknown-model", input="d")]
    file = client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    ended(api, batch.id)
    done = client.batches.retrieve(batch.id)
    assert (done.status, done.model, done.errors) == ("completed", None, None)
    assert done.request_counts and done.usage and done.output_file_id  # noqa: PT018 - for the types
    assert done.request_counts.model_dump() == {"total": 4, "completed": 2, "failed": 2}
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (14, 6, 20)
    output = client.files.retrieve(done.output_file_id)
    assert (output.filename, output.purpose) == (f"{batch.id}_output.jsonl", "batch_output")
    good = answers(api, done.output_file_id)
    assert {name: one["response"]["status_code"] for name, one in good.items()} == {"a": 200, "b": 200}
    body = good["a"]["response"]["body"]
    assert api.retrieve(body["id"]) == body
    assert good["a"]["id"].startswith("batch_req_")
    assert codes(answers(api, done.error_file_id)) == {"c": "invalid_value", "d": "model_not_found"}
    with scope.team(api.caller.team.pk):
        assert not BatchLine.objects.filter(batch=batch.id).exists()
        assert UsageRecord.objects.filter(team=api.caller.team, outcome="stop", batch=True).count() == 2


def test_a_chat_completion_of_a_batch_is_stored_on_request(api: Api, script: Script) -> None:
    script.then(whole(completion("Hello")))
    body: dict[str, Any] = {"model": script.model, "messages": [{"role": "user", "content": "Hi"}], "store": True}
    batch = ended(api, asked(api, line("a", url=CHAT, **body), endpoint=CHAT)["id"])
    assert (batch["status"], batch["model"], batch["error_file_id"]) == ("completed", script.model, None)
    found = answers(api, batch["output_file_id"])["a"]["response"]["body"]
    assert found["choices"][0]["message"]["content"] == "Hello"
    assert ok(api.get(f"/chat/completions/{found['id']}"))["id"] == found["id"]
    assert batch["usage"]["total_tokens"] == 10


def test_a_batch_can_create_embeddings(api: Api) -> None:
    with running_upstream(path="/v1/embeddings") as upstream, upstream.script() as script:
        services.add_upstream(name=script.model, base_url=upstream.url, models=[script.model])
        script.then(whole(VECTORS))
        lines = [line("a", url=EMBEDDINGS, model=script.model, input=["Hi", "there"])]
        expiry = {"anchor": "created_at", "seconds": 3600}
        batch = ended(api, asked(api, *lines, endpoint=EMBEDDINGS, output_expires_after=expiry)["id"])
    assert answers(api, batch["output_file_id"])["a"]["response"]["body"] == VECTORS
    output = ok(api.get(f"/files/{batch['output_file_id']}"))
    assert output["expires_at"] - output["created_at"] == 3600
    assert batch["usage"]["input_tokens"] == 5


def test_a_completed_batch_triggers_a_webhook(api: Api, script: Script) -> None:
    with running_receiver() as receiver, delivering():
        endpoint = add_endpoint(api.caller, receiver.url, "batch.completed")
        batch_id = asked(api, line("a", model=script.say("Hello").model, input="Hi"))["id"]
        [delivery] = receiver.wait_for(1)
    event = delivery.unwrap(endpoint.secret)
    assert (event.type, event.data.id) == ("batch.completed", batch_id)
    assert retrieved(api, batch_id)["status"] == "completed"


def test_an_invalid_input_file_fails_the_batch_with_all_defects(api: Api, script: Script) -> None:
    good = line("a", model=script.model, input="Hi")
    given: list[Any] = [
        b"{",
        good,
        good,
        {**good, "custom_id": "b", "url": CHAT},
        {**good, "custom_id": "c", "method": "GET"},
    ]
    body = good["body"]
    last = [
        {"custom_id": "d", "method": "POST", "url": URL},
        {"method": "POST", "url": URL, "body": body},
        {**good, "custom_id": "e", "body": {"input": "Hi"}},
        {**good, "custom_id": "f", "body": {**body, "stream": True}},
        {**good, "custom_id": "g", "body": {"input": "Hi", "prompt": {"id": "pmpt_1"}, "stream": False}},
    ]
    batch = ended(api, asked(api, *given, b"", {**good, "custom_id": 7}, {**good, "priority": 1}, b"[]", *last)["id"])
    assert (batch["status"], batch["output_file_id"], batch["request_counts"]["total"]) == ("failed", None, 0)
    assert [(one["line"], one["code"], one["param"]) for one in batch["errors"]["data"]] == [
        (1, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "invalid_url", "url"),
        (5, "invalid_request", "method"),
        (7, "invalid_request", "custom_id"),
        (8, "invalid_request", "priority"),
        (9, "invalid_json_line", None),
        (10, "missing_required_parameter", "body"),
        (11, "missing_required_parameter", "custom_id"),
        (12, "missing_required_parameter", "body.model"),
        (13, "streaming_unsupported", "body.stream"),
    ]
    assert batch["failed_at"] is not None
    assert error(api.post(f"/batches/{batch['id']}/cancel", {})) == (409, None, None)


@pytest.mark.parametrize(
    ("given", "endpoint", "code"),
    [
        ([b" "], "/v1/responses", "empty_batch"),
        ([line("a", url=EMBEDDINGS, input=["x"] * 50_001)], EMBEDDINGS, "too_many_tasks"),
        ([b"\n" * 10, *(line(str(number)) for number in range(50_001))], "/v1/responses", "too_many_tasks"),
    ],
    ids=["no lines", "too many inputs", "too many lines"],
)
def test_an_input_file_beyond_a_limit_fails_the_batch(api: Api, given: list[Any], endpoint: str, code: str) -> None:
    batch = ended(api, asked(api, *given, endpoint=endpoint)["id"])
    assert [one["code"] for one in batch["errors"]["data"]] == [code]
    with scope.team(api.caller.team.pk):
        assert not BatchLine.objects.filter(batch=batch["id"]).exists()


def test_cancelling_a_batch_stops_active_lines_and_keeps_results(api: Api, script: Script) -> None:
    script.say("One").always(stream(chunk(content="T"), Gate()))
    batch_id = asked(api, *(line(f"{n}", model=script.model, input="Hi") for n in range(4)))["id"]
    eventually(lambda: retrieved(api, batch_id)["request_counts"]["completed"] == 1)
    under_way = script.wait_for_call(1)
    cancelled = ok(api.post(f"/batches/{batch_id}/cancel", {}))
    assert cancelled["status"] in {"cancelling", "cancelled"}
    batch = ended(api, batch_id)
    assert under_way.was_closed()
    assert (batch["status"], batch["cancelling_at"]) == ("cancelled", cancelled["cancelling_at"])
    assert batch["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert len(answers(api, batch["output_file_id"])) == 1
    assert set(codes(answers(api, batch["error_file_id"])).values()) == {"batch_cancelled"}
    assert ok(api.post(f"/batches/{batch_id}/cancel", {})) == batch


def test_megabytes_of_results_are_written(api: Api, script: Script) -> None:
    script.always(stream(*text("Hello")))
    # Responses repeat their instructions.
    lines = [line(f"{n}", model=script.model, input="Hi", instructions="x" * 200_000) for n in range(60)]
    batch = ended(api, asked(api, *lines)["id"])
    assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    found = answers(api, batch["output_file_id"])
    assert {len(entry["response"]["body"]["instructions"]) for entry in found.values()} == {200_000}
    assert list(found) == [f"{n}" for n in range(60)]


def test_a_batch_of_thousands_of_lines_can_be_cancelled(api: Api, script: Script) -> None:
    script.always(stream(chunk(content="T"), Gate()))
    batch_id = asked(api, *(line(f"{n}", model=script.model, input="Hi") for n in range(10_000)))["id"]
    script.wait_for_call(0)
    ok(api.post(f"/batches/{batch_id}/cancel", {}))
    batch = ended(api, batch_id)
    assert (batch["status"], batch["request_counts"]["failed"]) == ("cancelled", 10_000)
    assert list(answers(api, batch["error_file_id"])) == [f"{n}" for n in range(10_000)]


def test_unfinished_lines_expire_with_the_batch(api: Api, script: Script) -> None:
    script.say("One").always(stream(chunk(content="T"), Gate()))
    batch_id = asked(api, *(line(f"{n}", model=script.model, input="Hi") for n in range(3)))["id"]
    eventually(lambda: retrieved(api, batch_id)["request_counts"]["completed"] == 1)
    update_batch(api, batch_id, expires_at=now() - timedelta(seconds=1))
    batch = ended(api, batch_id)
    assert (batch["status"], batch["completed_at"]) == ("expired", None)
    assert batch["expired_at"] is not None
    assert set(codes(answers(api, batch["error_file_id"])).values()) == {"batch_expired"}


def test_a_line_is_retried_after_429_but_not_after_400(api: Api, script: Script) -> None:
    script.then(refusal(429)).say("Hello")
    batch = ended(api, asked(api, line("a", model=script.model, input="Hi"))["id"])
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    script.then(refusal(400))
    batch = ended(api, asked(api, line("a", model=script.model, input="Hi"))["id"])
    assert codes(answers(api, batch["error_file_id"])) == {"a": "invalid_prompt"}


@pytest.mark.slow
def test_a_line_fails_after_repeated_429(api: Api, script: Script) -> None:
    script.then(*[refusal(429)] * 5)
    batch = ended(api, asked(api, line("a", model=script.model, input="Hi"))["id"])
    found = answers(api, batch["error_file_id"])["a"]["response"]
    assert (found["status_code"], found["body"]["error"]["code"]) == (429, "rate_limit_exceeded")


def created_by(caller: Caller, file_id: str) -> str:
    """Create a batch with this key in the test's own transaction; return its id."""
    principal = directory.principal(caller.secret)
    body = read(CreateBatch, {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"})
    return create_batch(principal=principal, body=body, request=RequestInfo(request_id="req_test")).pk


def test_lines_fail_when_the_key_of_the_batch_is_revoked(api: Api, make_caller: MakeCaller) -> None:
    file_id, revoked = uploaded(api, HI), make_caller(team=api.caller.team)
    with scope.every_team():
        batch_id = created_by(revoked, file_id)
        ApiKey.objects.filter(pk=revoked.key.pk).update(revoked_at=now())
    batch = ended(api, batch_id)
    found = answers(api, batch["error_file_id"])["a"]["response"]
    assert (found["status_code"], found["body"]["error"]["code"]) == (401, "api_key_revoked")


def test_an_expired_input_file_fails_the_batch(api: Api) -> None:
    with scope.team(api.caller.team.pk):
        batch_id = created_by(api.caller, file_id := uploaded(api, HI))
        File.objects.filter(pk=file_id).update(expires_at=now())
    assert [one["param"] for one in ended(api, batch_id)["errors"]["data"]] == ["input_file_id"]
