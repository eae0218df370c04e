"""`/v1/vector_stores/{id}/files` and `/file_batches`: adding, ingesting, updating and removing files."""

import asyncio
import json
import threading
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from core.work import worker_loop
from providers.clients import close_clients
from responses.models.vector_stores import VectorStoreFile
from tenants import scope, services
from tenants.models import Team, UsageRecord
from tests.support import documents
from tests.support.aiohttp_server import serving
from tests.support.api import Api, error, ok
from tests.support.vector_stores import StoreClient, read_waiting_files, upload
from tools.vectors import ingestion

pytestmark = pytest.mark.usefixtures("no_worker")
WORDS = "Herons nest in old oaks."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", WORDS),
        ("a.md", f"# Birds\n\n{WORDS}"),
        ("a.html", f"<html><body><p>{WORDS}</p><script>no()</script></body></html>"),
        ("a.json", json.dumps({"birds": WORDS})),
        ("a.csv", f"kind,words\nbird,{WORDS}\n"),
        ("a.pdf", documents.pdf(WORDS)),
        ("a.docx", documents.docx(WORDS)),
        ("a.pptx", documents.pptx(WORDS)),
    ],
)
def test_files_of_many_types_are_ingested(store_client: StoreClient, name: str, content: str | bytes) -> None:
    file_id = store_client.add(name, content)
    entry = store_client.entry(file_id)
    assert (entry["status"], entry["last_error"]) == ("completed", None)
    assert entry["usage_bytes"] > len(WORDS)
    (found,) = store_client.search("where do herons nest?")
    assert (found["file_id"], found["filename"]) == (file_id, name)
    assert WORDS in found["content"][0]["text"]


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.bin", bytes(range(256)), "unsupported_file"),
        ("a.pdf", b"%PDF-1.4 no", "invalid_file"),
        ("b.txt", " ", "invalid_file"),
    ],
)
def test_a_file_without_text_fails_with_a_reason(
    store_client: StoreClient, name: str, content: str | bytes, code: str
) -> None:
    entry = store_client.entry(store_client.add(name, content))
    assert (entry["status"], entry["last_error"]["code"]) == ("failed", code)
    assert ok(store_client.api.get(store_client.path))["file_counts"]["failed"] == 1


def test_a_long_text_becomes_overlapping_passages(store_client: StoreClient) -> None:
    text = " ".join(f"Sentence number {number} stands here." for number in range(200))
    static = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}
    file_id = store_client.add("a.txt", text, chunking_strategy={"type": "static", "static": static})
    assert store_client.entry(file_id)["chunking_strategy"] == {"type": "static", "static": static}
    passages = [one["text"] for one in ok(store_client.api.get(f"{store_client.path}/files/{file_id}/content"))["data"]]
    assert len(passages) > 10
    assert all(len(passage) <= 400 for passage in passages)
    assert all(after.split(".")[0] in before for before, after in pairwise(passages))
    assert text.startswith(passages[0])
    assert text.endswith(passages[-1])


def test_attributes_are_stored_and_replaced(store_client: StoreClient) -> None:
    given = {"year": 2024, "draft": False, "kind": "report", "share": 0.5}
    file_id = store_client.add("a.txt", WORDS, attributes=given)
    assert store_client.entry(file_id)["attributes"] == given
    path = f"{store_client.path}/files/{file_id}"
    assert ok(store_client.api.post(path, {"attributes": {"year": 2025}}))["attributes"] == {"year": 2025}
    assert ok(store_client.api.post(path, {"attributes": None}))["attributes"] == {}


@pytest.mark.parametrize(
    ("attributes", "param", "code"),
    [
        ({"k": "x" * 513}, "attributes", "invalid_value"),
        ({"k" * 65: 1}, "attributes." + "k" * 65, "string_above_max_length"),
        ({str(number): 1 for number in range(17)}, "attributes", "object_above_max_properties"),
        ({"k": [1]}, "attributes.k", "invalid_type"),
    ],
)
def test_attributes_have_limits(store_client: StoreClient, attributes: dict[str, Any], param: str, code: str) -> None:
    answer = store_client.api.post(f"{store_client.path}/files", {"file_id": "file-f", "attributes": attributes})
    assert error(answer) == (400, param, code)


def test_lists_can_be_filtered_by_status(store_client: StoreClient) -> None:
    good, bad = store_client.add("a.txt", WORDS), store_client.add("a.bin", bytes(range(256)))
    path = f"{store_client.path}/files"
    assert [one["id"] for one in ok(store_client.api.get(path))["data"]] == [bad, good]
    assert [one["id"] for one in ok(store_client.api.get(path, filter="completed"))["data"]] == [good]
    assert [one["id"] for one in ok(store_client.api.get(path, order="asc", after=good))["data"]] == [bad]
    assert error(store_client.api.get(path, filter="done")) == (400, "filter", "invalid_value")


def test_a_removed_file_is_not_found_in_searches(store_client: StoreClient) -> None:
    file_id = store_client.add("a.txt", WORDS)
    gone = ok(store_client.api.delete(f"{store_client.path}/files/{file_id}"))
    assert gone == {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}
    assert store_client.search("herons") == []
    assert ok(store_client.api.get(f"/files/{file_id}"))["id"] == file_id


def test_deleting_a_file_removes_it_from_its_stores(store_client: StoreClient) -> None:
    file_id = store_client.add("a.txt", WORDS)
    ok(store_client.api.delete(f"/files/{file_id}"))
    assert store_client.search("herons") == []
    assert ok(store_client.api.get(store_client.path))["file_counts"]["total"] == 0


def test_attaching_a_file_again_ingests_it_again(store_client: StoreClient) -> None:
    file_id = store_client.add("a.txt", WORDS, attributes={"old": True})
    ok(store_client.api.post(f"{store_client.path}/files", {"file_id": file_id}))
    read_waiting_files()
    assert (store_client.entry(file_id)["status"], store_client.entry(file_id)["attributes"]) == ("completed", {})
    assert len(store_client.search("herons")) == 1


def test_each_embedding_call_has_a_usage_record(store_client: StoreClient) -> None:
    store_client.add("a.txt", WORDS)
    with scope.team(store_client.api.caller.team.pk):
        row = UsageRecord.objects.get()
    assert (row.endpoint, row.object_id, row.outcome) == ("embeddings", store_client.id, "stop")
    assert row.input_tokens > 0


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_applies_its_settings_to_all_files(store_client: StoreClient) -> None:
    files = [store_client.upload(f"{number}.txt", WORDS) for number in range(2)]
    body = {"file_ids": files, "attributes": {"a": 1}}
    batch = ok(store_client.api.post(f"{store_client.path}/file_batches", body))
    assert (batch["status"], batch["file_counts"]["in_progress"]) == ("in_progress", 2)
    read_waiting_files()
    path = f"{store_client.path}/file_batches/{batch['id']}"
    assert (ok(store_client.api.get(path))["status"], ok(store_client.api.get(path))["file_counts"]["completed"]) == (
        "completed",
        2,
    )
    assert {one["id"] for one in ok(store_client.api.get(f"{path}/files"))["data"]} == set(files)
    assert store_client.entry(files[0])["attributes"] == {"a": 1}


def test_a_batch_may_set_each_files_settings(store_client: StoreClient) -> None:
    files = [store_client.upload(f"{number}.txt", WORDS) for number in range(2)]
    each = [{"file_id": file_id, "attributes": {"n": number}} for number, file_id in enumerate(files)]
    ok(store_client.api.post(f"{store_client.path}/file_batches", {"files": each}))
    assert [store_client.entry(file_id)["attributes"] for file_id in files] == [{"n": 0}, {"n": 1}]
    read_waiting_files()


def test_cancelling_a_batch_skips_waiting_files(store_client: StoreClient) -> None:
    file_id = store_client.upload("a.txt", WORDS)
    batch = ok(store_client.api.post(f"{store_client.path}/file_batches", {"file_ids": [file_id]}))
    cancelled = ok(store_client.api.post(f"{store_client.path}/file_batches/{batch['id']}/cancel", {}))
    assert (cancelled["status"], cancelled["file_counts"]["cancelled"]) == ("cancelled", 1)
    read_waiting_files()
    assert store_client.entry(file_id)["status"] == "cancelled"
    assert store_client.search("herons") == []


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "file_ids", "missing_required_parameter"),
        ({"file_ids": []}, "file_ids", "empty_array"),
        ({"file_ids": ["file-f"], "files": [{"file_id": "file-f"}]}, None, "mutually_exclusive_parameters"),
        ({"files": [{"file_id": "file-f"}], "attributes": {"a": 1}}, None, "mutually_exclusive_parameters"),
    ],
)
def test_file_ids_and_files_are_mutually_exclusive(
    store_client: StoreClient, body: Any, param: str | None, code: str
) -> None:
    assert error(store_client.api.post(f"{store_client.path}/file_batches", body)) == (400, param, code)


# -- workers -----------------------------------------------------------------------------------------------------------


def test_another_worker_takes_over_after_the_lease_expires(store_client: StoreClient) -> None:
    file_id = store_client.upload("a.txt", WORDS)
    ok(store_client.api.post(f"{store_client.path}/files", {"file_id": file_id}))
    claimed = ingestion.claim_file()  # the state that a worker leaves if it dies here
    assert claimed is not None
    read_waiting_files()
    assert store_client.entry(file_id)["status"] == "in_progress"
    change(store_client, lease_until=claimed.entry.created_at)
    read_waiting_files()
    assert store_client.entry(file_id)["status"] == "completed"
    ingestion._finish(claimed, ["late"], [[1.0]])  # the first worker was slow, not dead
    assert [one["content"][0]["text"] for one in store_client.search("herons")] == [WORDS]


def test_a_stopping_worker_releases_its_files(store_client: StoreClient, api: Api) -> None:
    asked = threading.Event()

    async def embed(_: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    silent = web.Application()
    silent.router.add_post("/v1/embeddings", embed)
    with serving(silent) as url:
        services.add_upstream(name="silent embedder", base_url=url, models=["silent-embedding"])
        with scope.every_team():
            Team.objects.filter(pk=api.caller.team.pk).update(embedding_model="silent-embedding")
        file_id = store_client.upload("a.txt", WORDS)
        ok(store_client.api.post(f"{store_client.path}/files", {"file_id": file_id}))
        ingestions = ingestion.Ingestion()
        running = worker_loop.submit(ingestions.run())
        assert asked.wait(30)
        ingestions.stop()
        running.result(30)
        worker_loop.submit(close_clients()).result(30)
    with scope.every_team():
        entry = VectorStoreFile.objects.get(store_id=store_client.id)
    assert (entry.status, entry.lease_until, entry.attempt) == ("in_progress", None, 0)
    change(store_client, status="cancelled")


def test_a_file_that_kills_workers_fails_after_five_attempts(store_client: StoreClient) -> None:
    file_id = store_client.upload("a.txt", WORDS)
    ok(store_client.api.post(f"{store_client.path}/files", {"file_id": file_id}))
    change(store_client, attempt=5)
    read_waiting_files()
    entry = store_client.entry(file_id)
    assert (entry["status"], entry["last_error"]["code"]) == ("failed", "server_error")


def test_a_file_fails_if_no_upstream_serves_the_embedding_model(store_client: StoreClient, api: Api) -> None:
    with scope.every_team():
        Team.objects.filter(pk=api.caller.team.pk).update(embedding_model="nobody-answers-for-this")
    file_id = store_client.upload("a.txt", WORDS)
    ok(store_client.api.post(f"{store_client.path}/files", {"file_id": file_id}))
    read_waiting_files()
    entry = store_client.entry(file_id)
    assert (entry["status"], entry["last_error"]["code"]) == ("failed", "server_error")


def change(store_client: StoreClient, **values: Any) -> None:
    with scope.every_team():
        assert VectorStoreFile.objects.filter(store_id=store_client.id).update(**values) == 1


def test_another_teams_store_files_are_not_found(store_client: StoreClient, outsider: Api) -> None:
    foreign = upload(outsider, "a.txt", WORDS)
    body = {"file_ids": [store_client.upload("b.txt", WORDS), foreign]}
    assert error(store_client.api.post(f"{store_client.path}/file_batches", body)) == (404, "file_id", None)
    assert ok(store_client.api.get(store_client.path))["file_counts"]["total"] == 0
