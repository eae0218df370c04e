"""`POST /v1/vector_stores/{id}/search`: results, ranking and filters."""

import random
import uuid
from typing import Any

import httpx2
import pytest
from pytest_django import DjangoDbBlocker

from demo_upstream.embeddings import embed
from tenants import services
from tests.support.api import Api, Caller, error, ok
from tests.support.vector_stores import StoreClient, use_demo_embeddings
from tests.support.waiting import eventually
from tests.support.web import WebProcess
from tests.support.workers import WorkerProcess

TOPICS = ["herons", "oaks", "rivers", "ferries", "lanterns", "kites", "drums", "bread", "clocks", "snow"]


def words_of(number: int) -> str:
    """Return a text about topics selected by the number."""
    choice = random.Random(number)
    return " ".join(choice.choices(TOPICS, k=12)) + f" note{number}"


@pytest.fixture(scope="module")
def shared(web: WebProcess, http: httpx2.Client, demo_url: str, django_db_blocker: DjangoDbBlocker) -> StoreClient:
    """A store with thirty files in one batch and one added later."""
    with django_db_blocker.unblock():
        team = services.ensure_team(name=f"team {uuid.uuid4().hex}")
        new = services.create_key(team=team, spec=services.KeySpec(name="test"))
        api = Api(http, url=web.url, caller=Caller(team=team, key=new.key, secret=new.secret))
        use_demo_embeddings(team, url=demo_url)
        return fill(StoreClient(api, ok(api.post("/vector_stores", {}))["id"]))


@pytest.fixture
def filled(shared: StoreClient, database: None) -> StoreClient:
    """The shared store, for tests that only read it."""
    return shared


def fill(store_client: StoreClient) -> StoreClient:
    files = [
        {
            "file_id": store_client.upload(f"{n}.txt", words_of(n)),
            "attributes": {"n": n, "even": n % 2 == 0, "name": f"f{n}"},
        }
        for n in range(30)
    ]
    ok(store_client.api.post(f"{store_client.path}/file_batches", {"files": files}))
    store_client.add("last.txt", words_of(30))
    eventually(lambda: ok(store_client.api.get(store_client.path))["file_counts"]["in_progress"] == 0)
    return store_client


def cosine(one: str, other: str) -> float:
    pairs = zip(embed(one, dimensions=256), embed(other, dimensions=256), strict=True)
    return sum(a * b for a, b in pairs)


def names(found: list[dict[str, Any]]) -> list[str]:
    return [one["filename"] for one in found]


def test_results_of_a_small_store_are_exact(filled: StoreClient) -> None:
    for query in ("herons and oaks", "snow on rivers", "drums bread clocks"):
        found = filled.search(query, ranking_options={"ranker": "none"})
        expected = sorted((cosine(query, words_of(n)) for n in range(31)), reverse=True)[:10]
        assert [one["score"] for one in found] == pytest.approx([max(score, 0) for score in expected], abs=2e-3)


def test_rare_words_outrank_similarity(filled: StoreClient) -> None:
    assert names(filled.search("herons oaks rivers note17", max_num_results=1)) == ["17.txt"]
    only_words = {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}}
    (best, *_) = filled.search("note17", ranking_options=only_words)
    assert (best["filename"], best["score"]) == ("17.txt", 1.0)


def test_scores_decrease_and_respect_the_threshold(filled: StoreClient) -> None:
    scores = [one["score"] for one in filled.search("herons and oaks", max_num_results=50)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    threshold = scores[4]
    kept = filled.search("herons and oaks", max_num_results=50, ranking_options={"score_threshold": threshold})
    assert [one["score"] for one in kept] == [score for score in scores if score >= threshold]


def test_several_queries_share_one_result_list(filled: StoreClient) -> None:
    assert set(names(filled.search(["note3", "note8"], max_num_results=2))) == {"3.txt", "8.txt"}


def test_a_query_of_stop_words_is_ranked_by_similarity(filled: StoreClient) -> None:
    assert len(filled.search("what is it")) == 10


@pytest.mark.parametrize("query", ["it's \\ a 'quote'", "a & b | !c:*", "%s %(x)s {}", "日本語", "\N{GRINNING FACE}"])
def test_special_characters_in_queries_are_accepted(filled: StoreClient, query: str) -> None:
    assert len(filled.search(query, max_num_results=3)) == 3


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"type": "eq", "key": "n", "value": 7}, {7}),
        ({"type": "eq", "key": "n", "value": 7.0}, {7}),
        ({"type": "eq", "key": "n", "value": "7"}, set()),
        ({"type": "in", "key": "name", "value": ["f1", "f2", "f99"]}, {1, 2}),
        ({"type": "lt", "key": "n", "value": 3}, {0, 1, 2}),
        ({"type": "gte", "key": "name", "value": "f9"}, {9}),
        (
            {
                "type": "and",
                "filters": [
                    {"type": "eq", "key": "even", "value": True},
                    {
                        "type": "or",
                        "filters": [
                            {"type": "lte", "key": "n", "value": 2},
                            {"type": "gt", "key": "n", "value": 26},
                        ],
                    },
                ],
            },
            {0, 2, 28},
        ),
        ({"type": "eq", "key": "a'; --", "value": "x"}, set()),
    ],
)
def test_filters_exclude_files(filled: StoreClient, filters: dict[str, Any], expected: set[int]) -> None:
    found = filled.search("herons", filters=filters, max_num_results=50)
    assert {one["attributes"]["n"] for one in found} == expected


def test_a_missing_attribute_is_not_equal(filled: StoreClient) -> None:
    unequal = {"type": "ne", "key": "even", "value": True}
    assert "last.txt" in names(filled.search("herons", filters=unequal, max_num_results=50))


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "query", "missing_required_parameter"),
        ({"query": ""}, "query", "empty_string"),
        ({"query": []}, "query", "empty_array"),
        ({"query": "x", "max_num_results": 51}, "max_num_results", "integer_above_max_value"),
        ({"query": "x", "rewrite_query": True}, "rewrite_query", "unsupported_value"),
        ({"query": "x", "filters": {"type": "is", "key": "k", "value": 1}}, "filters.type", "invalid_value"),
        ({"query": "x", "filters": {"type": "in", "key": "k", "value": 1}}, "filters", "invalid_value"),
        ({"query": "x", "filters": {"type": "gt", "key": "k", "value": True}}, "filters", "invalid_value"),
        ({"query": "x", "filters": {"type": "and", "filters": []}}, "filters.filters", "empty_array"),
        (
            {"query": "x", "ranking_options": {"score_threshold": 2}},
            "ranking_options.score_threshold",
            "decimal_above_max_value",
        ),
    ],
)
def test_invalid_searches_are_refused(store_client: StoreClient, body: dict[str, Any], param: str, code: str) -> None:
    assert error(store_client.api.post(f"{store_client.path}/search", body)) == (400, param, code)


def test_a_worker_ingests_waiting_files(store_client: StoreClient, worker: WorkerProcess) -> None:
    file_ids = [store_client.upload(f"{number}.txt", f"Bird number {number}.") for number in range(3)]
    ok(store_client.api.post(f"{store_client.path}/file_batches", {"file_ids": file_ids}))
    eventually(lambda: ok(store_client.api.get(store_client.path))["file_counts"]["completed"] == 3)
    assert store_client.search("Bird number 2.")[0]["file_id"] == file_ids[2]
