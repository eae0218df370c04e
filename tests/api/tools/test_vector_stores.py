"""`/v1/vector_stores`: create, retrieve, update, list and delete."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from openai import OpenAI

from core.clock import now
from responses.models.vector_stores import VectorChunk, VectorEmbedding, VectorStore, VectorStoreFile
from tenants import scope
from tenants.models import Team
from tests.support.api import Api, MakeApi, error, ok
from tests.support.vector_stores import EMBEDDER, StoreClient, read_waiting_files, upload, use_demo_embeddings
from tools.vectors import services

pytestmark = pytest.mark.usefixtures("no_worker")
NOTHING = {"in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0, "total": 0}


def test_the_sdk_creates_searches_and_deletes_a_store(client: OpenAI, api: Api, store_client: StoreClient) -> None:
    file = client.files.create(file=("a.txt", b"Cats purr."), purpose="assistants")
    store = client.vector_stores.create(name="Pets", file_ids=[file.id], metadata={"kind": "test"})
    assert (store.name, store.status, store.file_counts.in_progress) == ("Pets", "in_progress", 1)
    read_waiting_files()
    assert client.vector_stores.files.poll(file.id, vector_store_id=store.id).status == "completed"
    (found,) = client.vector_stores.search(store.id, query="cats").data
    assert (found.file_id, found.content[0].text) == (file.id, "Cats purr.")
    assert client.vector_stores.retrieve(store.id).file_counts.completed == 1
    assert client.vector_stores.delete(store.id).deleted


def test_a_new_store_shows_all_parameters(api: Api, store_client: StoreClient) -> None:
    sent = {
        "name": "N",
        "description": "D",
        "metadata": {"a": "b"},
        "expires_after": {"anchor": "last_active_at", "days": 2},
    }
    made = ok(api.post("/vector_stores", sent))
    assert {key: made[key] for key in sent} == sent
    assert (made["status"], made["usage_bytes"], made["file_counts"]) == ("completed", 0, NOTHING)
    assert made["expires_at"] == made["last_active_at"] + 2 * 86_400
    assert ok(api.get(f"/vector_stores/{made['id']}")) == made


def test_an_update_changes_only_sent_fields(api: Api, store_client: StoreClient) -> None:
    changed = ok(api.post(store_client.path, {"metadata": {"a": "b"}}))
    assert (changed["name"], changed["metadata"]) == ("Library", {"a": "b"})
    assert ok(api.post(store_client.path, {"name": None, "expires_after": None}))["name"] == ""


def test_lists_support_both_orders_and_cursors(api: Api, store_client: StoreClient) -> None:
    ids = [store_client.id, *(ok(api.post("/vector_stores", {}))["id"] for _ in range(3))]
    first = ok(api.get("/vector_stores", limit=3))
    assert [one["id"] for one in first["data"]] == ids[:0:-1]
    assert first["has_more"]
    after = ok(api.get("/vector_stores", after=ids[1]))
    before = ok(api.get("/vector_stores", before=ids[1], limit=1))
    assert ([one["id"] for one in after["data"]], [one["id"] for one in before["data"]]) == ([ids[0]], [ids[2]])
    assert error(api.get("/vector_stores", after="vs_unknown")) == (404, "after", None)


def test_deleting_a_store_deletes_its_chunks_but_not_its_files(api: Api, store_client: StoreClient) -> None:
    file_id = store_client.add("a.txt", "Cats purr.")
    assert ok(api.delete(store_client.path)) == {
        "id": store_client.id,
        "object": "vector_store.deleted",
        "deleted": True,
    }
    assert error(api.get(store_client.path))[0] == 404
    with scope.team(api.caller.team.pk):
        left = [
            kind.objects.filter(store_id=store_client.id).exists()
            for kind in (VectorStoreFile, VectorChunk, VectorEmbedding)
        ]
    assert left == [False, False, False]
    assert ok(api.get(f"/files/{file_id}"))["id"] == file_id


def test_an_expired_store_is_reported_and_cleared(api: Api, store_client: StoreClient) -> None:
    store_client.add("a.txt", "Cats purr.")
    ok(api.post(store_client.path, {"expires_after": {"anchor": "last_active_at", "days": 1}}))
    with scope.every_team():
        VectorStore.objects.filter(pk=store_client.id).update(last_active_at=now() - timedelta(days=2))
    assert ok(api.get(store_client.path))["status"] == "expired"
    assert error(api.post(f"{store_client.path}/search", {"query": "cats"}))[0] == 400
    assert services.clear_expired_stores() >= 1
    assert ok(api.get(store_client.path))["file_counts"] == NOTHING


def test_a_search_postpones_expiration(api: Api, store_client: StoreClient) -> None:
    with scope.every_team():
        VectorStore.objects.filter(pk=store_client.id).update(last_active_at=now() - timedelta(days=2))
    before = ok(api.get(store_client.path))["last_active_at"]
    store_client.search("cats")
    assert ok(api.get(store_client.path))["last_active_at"] > before + 86_400


def test_the_error_without_an_embedding_model_names_the_settings(api: Api) -> None:
    answer = api.post("/vector_stores", {})
    assert error(answer) == (400, None, "unsupported_value")
    assert "EMBEDDING_MODEL" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"nam": "x"}, "nam", "unknown_parameter"),
        ({"name": 1}, "name", "invalid_type"),
        ({"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor", "invalid_value"),
        ({"expires_after": {"anchor": "last_active_at", "days": 0}}, "expires_after.days", "integer_below_min_value"),
        ({"chunking_strategy": {"type": "auto"}}, "", "invalid_value"),
        ({"file_ids": ["file-unknown"]}, "file_id", None),
        (
            {
                "file_ids": ["file-f"],
                "chunking_strategy": {
                    "type": "static",
                    "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51},
                },
            },
            "chunking_strategy.static",
            "invalid_value",
        ),
    ],
)
def test_invalid_stores_are_refused(
    api: Api, store_client: StoreClient, body: dict[str, Any], param: str, code: str | None
) -> None:
    assert error(api.post("/vector_stores", body))[1:] == (param, code)


EVERYTHING: list[Callable[[Api, str], Any]] = [
    lambda api, store: api.get(f"/vector_stores/{store}"),
    lambda api, store: api.post(f"/vector_stores/{store}", {"name": "Mine"}),
    lambda api, store: api.post(f"/vector_stores/{store}/search", {"query": "cats"}),
    lambda api, store: api.get(f"/vector_stores/{store}/files"),
    lambda api, store: api.post(f"/vector_stores/{store}/files", {"file_id": "file-f"}),
    lambda api, store: api.get(f"/vector_stores/{store}/files/file-a"),
    lambda api, store: api.get(f"/vector_stores/{store}/files/file-a/content"),
    lambda api, store: api.post(f"/vector_stores/{store}/files/file-a", {"attributes": None}),
    lambda api, store: api.delete(f"/vector_stores/{store}/files/file-a"),
    lambda api, store: api.post(f"/vector_stores/{store}/file_batches", {"file_ids": ["file-f"]}),
    lambda api, store: api.get(f"/vector_stores/{store}/file_batches/vsfb_a"),
    lambda api, store: api.post(f"/vector_stores/{store}/file_batches/vsfb_a/cancel", {}),
    lambda api, store: api.get(f"/vector_stores/{store}/file_batches/vsfb_a/files"),
    lambda api, store: api.delete(f"/vector_stores/{store}"),
]


def test_another_teams_store_is_not_found(store_client: StoreClient, outsider: Api, demo_url: str) -> None:
    use_demo_embeddings(outsider.caller.team, url=demo_url)
    for call in EVERYTHING:
        foreign, unknown = call(outsider, store_client.id), call(outsider, "vs_unknown")
        assert foreign.status_code == unknown.status_code == 404
        assert foreign.text.replace(store_client.id, "…") == unknown.text.replace("vs_unknown", "…")


def test_another_teams_file_cannot_be_attached(store_client: StoreClient, outsider: Api) -> None:
    foreign = upload(outsider, "a.txt", "Theirs.")
    assert error(store_client.api.post(f"{store_client.path}/files", {"file_id": foreign})) == (404, "file_id", None)


@pytest.mark.parametrize(("scopes", "allowed"), [(["vector_stores.read"], 2), (["vector_stores.write"], 1), ([], 0)])
def test_each_endpoint_requires_its_scope(
    make_api: MakeApi, store_client: StoreClient, scopes: list[str], allowed: int
) -> None:
    api = make_api(team=store_client.api.caller.team, scopes=scopes or ["models.read"])
    answers = [
        api.get(store_client.path),
        api.post(store_client.path, {}),
        api.post(f"{store_client.path}/search", {"query": "cats"}),
        api.delete(store_client.path),
    ]
    assert sum(answer.status_code == 200 for answer in answers) == allowed
    assert all(answer.status_code in {200, 403} for answer in answers)


def test_a_changed_vector_size_of_the_model_is_reported(store_client: StoreClient) -> None:
    store_client.add("a.txt", "Cats purr.")
    with scope.every_team():
        VectorStore.objects.filter(pk=store_client.id).update(dimensions=128)
    answer = store_client.api.post(f"{store_client.path}/search", {"query": "cats"})
    assert error(answer)[0] == 400
    assert "does not match the vectors" in answer.json()["error"]["message"]


def test_existing_stores_keep_their_embedding_model(store_client: StoreClient) -> None:
    store_client.add("a.txt", "Cats purr.")
    with scope.every_team():
        Team.objects.filter(pk=store_client.api.caller.team.pk).update(embedding_model="another")
    assert len(store_client.search("cats")) == 1


def test_new_stores_use_the_teams_embedding_model(store_client: StoreClient) -> None:
    store_client.add("a.txt", "Cats purr.")
    with scope.every_team():
        store = VectorStore.objects.get(pk=store_client.id)
    assert (store.embedding_model, store.dimensions) == (EMBEDDER, 256)
