"""Searches vector stores by meaning and by words.

The score of a passage is the weighted mean of two numbers: the cosine similarity of the vectors of the passage and of
the query, and the share of the query's words that the passage contains. Both are absolute, so a score threshold means
the same in every search. Scores below 0 are shown as 0 but keep their order.

Small sets of candidates are compared completely. In large ones an HNSW index finds the nearest passages. If the index
finds too few, because the filter excludes most of the near passages, all candidates are compared after all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
from django.db import connection

from core.clock import now
from core.db.db_threads import in_db_thread
from core.errors import InvalidValue
from providers.clients import UpstreamFailed
from responses.models.vector_stores import HalfVectorField, VectorStore
from responses.runs.identity import UsageAccount
from responses.schema.file_search import ComparisonFilter, CompoundFilter, HybridSearch
from tenants import scope
from tools.vectors import embedding, filters, schema, selectors
from tools.vectors.embedding import Vector

COMPARE_ALL = 10_000
"""Maximum number of candidates that are compared completely."""
# More than the results of a search: the words may reorder the nearest passages.
_MIN_NEAREST = 100
_MAX_WITH_ALL_WORDS = 200
_MAX_WITH_ANY_WORD = 1_000
_DEFAULT = HybridSearch(embedding_weight=0.7, text_weight=0.3)
_VECTORS_ONLY = HybridSearch(embedding_weight=1, text_weight=0)
# A write per search would make `last_active_at` a hot spot; expiration counts in days.
_ACTIVITY_RESOLUTION = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A search in vector stores. `weights` None means the server's default weights."""

    queries: Sequence[str]
    limit: int
    filters: ComparisonFilter | CompoundFilter | None = None
    threshold: float = 0.0
    weights: HybridSearch | None = None
    vectors_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A passage that was found."""

    file_id: str
    filename: str
    attributes: dict[str, Any]
    score: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSet:
    """Passages that a search considers: all passages of the given files. The stores have the same embedding model."""

    store_ids: list[str]
    entry_ids: list[int]
    passages: int
    dimensions: int


async def search(*, account: UsageAccount, store_ids: Sequence[str], request: SearchRequest) -> list[SearchHit]:
    """Return the best passages of these stores, best first.

    Raises NotFound or InvalidValue if a store cannot be searched, and the error of the embedding model if it fails.
    """
    stores = await in_db_thread(lambda: open_stores(team_id=account.team_id, store_ids=store_ids))
    # Stores of one embedding model share the query's vectors.
    stores_by_model: dict[tuple[str, int], list[VectorStore]] = {}
    for store in stores:
        if store.dimensions is not None:
            stores_by_model.setdefault((store.embedding_model, store.dimensions), []).append(store)
    scores: dict[int, float] = {}
    for (model, dimensions), searched in stores_by_model.items():
        try:
            vectors = await embedding.embed(request.queries, model=model, account=account)
        except UpstreamFailed as failed:
            raise failed.failure.as_api_error() from failed
        if any(len(vector) != dimensions for vector in vectors):
            raise InvalidValue(f"The embedding model '{model}' does not match the vectors in the store.")
        scores |= await in_db_thread(partial(score_passages, searched, request, vectors))
    # Equal scores are ordered by chunk id, so that the order of results is stable.
    found = ((score, -chunk) for chunk, score in scores.items() if max(score, 0.0) >= request.threshold)
    kept = {-negative: min(max(score, 0.0), 1.0) for score, negative in sorted(found, reverse=True)[: request.limit]}
    return await in_db_thread(lambda: _load_hits(account.team_id, kept)) if kept else []


def open_stores(*, team_id: str, store_ids: Sequence[str], param: str | None = None) -> list[VectorStore]:
    """Return a team's stores for searching and mark them as active.

    Raises NotFound for an unknown id, and InvalidValue for an expired store.
    """
    with scope.team(team_id):
        schema.require_vectors()
        found = {store.pk: store for store in VectorStore.objects.filter(pk__in=store_ids, team_id=team_id)}
        for store_id in store_ids:
            if (store := found.get(store_id)) is None:
                raise selectors.unknown_store(store_id, param=param)
            if selectors.has_expired(store):
                raise InvalidValue(f"Vector store '{store_id}' has expired.", param=param)
            # Raises if the store is empty and no embedding model is configured.
            embedding.model_for(store)
        at = now()
        stale = [store.pk for store in found.values() if at - store.last_active_at > _ACTIVITY_RESOLUTION]
        if stale:
            # Without waiting: a locked store is in use anyway, and two requests may name several stores in common.
            unlocked = VectorStore.objects.select_for_update(no_key=True, skip_locked=True).filter(pk__in=stale)
            free = list(unlocked.values_list("pk", flat=True))
            VectorStore.objects.filter(pk__in=free).update(last_active_at=at)
        return list(found.values())


_ENTRIES = """
SELECT entry.id, entry.chunks FROM responses_vectorstorefile AS entry
JOIN conversations_file AS file ON file.id = entry.file_id
WHERE entry.store_id = ANY (%s) AND entry.status = 'completed'
AND file.state = 'ready' AND (file.expires_at IS NULL OR file.expires_at > %s)
AND """


def score_passages(
    stores: Sequence[VectorStore], request: SearchRequest, vectors: Sequence[Vector]
) -> dict[int, float]:
    """Return the score of each candidate by chunk id. With several queries the best score of a passage counts."""
    weights = _VECTORS_ONLY if request.vectors_only else request.weights or _DEFAULT
    scores: dict[int, float] = {}
    with scope.team(stores[0].team_id):
        condition, values = filters.sql_condition(request.filters, column="entry.attributes")
        store_ids = [store.pk for store in stores]
        found = _rows(_ENTRIES + condition, [store_ids, now(), *values])
        candidates = CandidateSet(
            store_ids=store_ids,
            entry_ids=[entry for entry, _ in found],
            passages=sum(passages for _, passages in found),
            dimensions=stores[0].dimensions or 0,
        )
        if not candidates.passages:
            return scores
        for query, vector in zip(request.queries, vectors, strict=True):
            words: list[str] = []
            if weights.text_weight:
                ((words,),) = _rows("SELECT tsvector_to_array(to_tsvector('english', %s))", [query])
            near = _nearest(candidates, vector, max(_MIN_NEAREST, 2 * request.limit))
            holding = _passages_with_words(candidates, words) if words else []
            for chunk, score in _weighted_scores([*near, *holding], vector, words, weights).items():
                scores[chunk] = max(score, scores.get(chunk, score))
    return scores


# -- search by vector --------------------------------------------------------------------------------------------------

_FROM_CANDIDATES = f"FROM {schema.TABLE} WHERE store_id = ANY (%s) AND entry_id = ANY (%s)"


def _nearest(candidates: CandidateSet, vector: Vector, count: int) -> list[int]:
    if candidates.passages > COMPARE_ALL and candidates.dimensions in schema.INDEXED:
        found = nearest_by_index(candidates, vector, count)
        if len(found) == min(count, candidates.passages):
            return found
    return nearest_by_scan(candidates, vector, count)


def nearest_by_scan(candidates: CandidateSet, vector: Vector, count: int) -> list[int]:
    """Return the chunk ids of the nearest passages, comparing every candidate."""
    # Adding 0 keeps PostgreSQL from using the HNSW index here.
    sql = f"SELECT chunk_id {_FROM_CANDIDATES} ORDER BY (embedding <=> %s::halfvec) + 0, chunk_id LIMIT %s"
    return [
        chunk for (chunk,) in _rows(sql, [candidates.store_ids, candidates.entry_ids, _vector_literal(vector), count])
    ]


def nearest_by_index(candidates: CandidateSet, vector: Vector, count: int) -> list[int]:
    """Return the chunk ids of the nearest passages, found by the HNSW index."""
    # An iterative scan continues until enough passages match the filter, or `max_scan_tuples` is reached.
    size = candidates.dimensions
    # SET LOCAL: the settings must not outlive the transaction, because connections are shared.
    settings = {"iterative_scan": "strict_order", "ef_search": "200", "max_scan_tuples": "60000"}
    with connection.cursor() as cursor:
        for name, value in settings.items():
            cursor.execute(f"SET LOCAL hnsw.{name} = '{value}'")
    sql = (
        f"SELECT chunk_id {_FROM_CANDIDATES} AND dimensions = {size} "
        f"ORDER BY embedding::halfvec({size}) <=> %s::halfvec({size}) LIMIT %s"
    )
    return [
        chunk for (chunk,) in _rows(sql, [candidates.store_ids, candidates.entry_ids, _vector_literal(vector), count])
    ]


# -- search by words ---------------------------------------------------------------------------------------------------

_WITH_WORDS = """
SELECT id FROM responses_vectorchunk
WHERE store_id = ANY (%s) AND entry_id = ANY (%s) AND words @@ %s::tsquery LIMIT %s
"""


def _passages_with_words(candidates: CandidateSet, words: Sequence[str]) -> list[int]:
    quoted = [_quoted(word) for word in words]
    # A limited number, because some words occur in almost every passage.
    found = _rows(_WITH_WORDS, [candidates.store_ids, candidates.entry_ids, " & ".join(quoted), _MAX_WITH_ALL_WORDS])
    if len(found) < _MAX_WITH_ALL_WORDS and len(words) > 1:
        found += _rows(
            _WITH_WORDS, [candidates.store_ids, candidates.entry_ids, " | ".join(quoted), _MAX_WITH_ANY_WORD]
        )
    return [chunk for (chunk,) in found]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


# -- scores ------------------------------------------------------------------------------------------------------------

_SCORES = """
SELECT chunk.id, 1 - (vector.embedding <=> %s::halfvec),
    (SELECT count(*) FROM unnest(%s::text[]) AS word WHERE chunk.words @@ word::tsquery)
FROM responses_vectorchunk AS chunk JOIN responses_vectorembedding AS vector ON vector.chunk_id = chunk.id
WHERE chunk.id = ANY (%s)
"""


def _weighted_scores(
    chunks: Sequence[int], vector: Vector, words: Sequence[str], weights: HybridSearch
) -> dict[int, float]:
    quoted = [_quoted(word) for word in words]
    by_words = weights.text_weight if words else 0.0
    # A query of stop words has no words left to match, so only its vector counts.
    by_meaning = weights.embedding_weight if words or weights.embedding_weight else 1.0
    scores = {}
    for chunk, similarity, held in _rows(_SCORES, [_vector_literal(vector), quoted, sorted(set(chunks))]):
        share = held / len(words) if words else 0.0
        scores[chunk] = (by_meaning * similarity + by_words * share) / (by_meaning + by_words)
    return scores


_PASSAGES = """
SELECT chunk.id, file.id, file.filename, entry.attributes::text, chunk.text
FROM responses_vectorchunk AS chunk
JOIN responses_vectorstorefile AS entry ON entry.id = chunk.entry_id
JOIN conversations_file AS file ON file.id = entry.file_id
WHERE chunk.id = ANY (%s)
"""


def _load_hits(team_id: str, scores: dict[int, float]) -> list[SearchHit]:
    with scope.team(team_id):
        # Passages that were deleted since the search are missing here and are skipped.
        found = {row[0]: row[1:] for row in _rows(_PASSAGES, [list(scores)])}
    return [
        SearchHit(file_id=file_id, filename=filename, attributes=orjson.loads(attributes), score=score, text=text)
        for chunk, score in scores.items()
        if chunk in found
        for file_id, filename, attributes, text in [found[chunk]]
    ]


def _vector_literal(vector: Vector) -> str:
    return HalfVectorField().get_prep_value(vector) or ""


def _rows(sql: str, values: Sequence[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        rows: list[Any] = cursor.fetchall()
        return rows
