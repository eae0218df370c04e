"""The part of the schema that needs pgvector: created if possible, and reported as missing otherwise."""

import random

import pytest
from django.db import connection, transaction

from conversations.models import File, FileState
from core.errors import UnsupportedValue
from responses.models.vector_stores import VectorChunk, VectorEmbedding, VectorStore, VectorStoreFile
from tenants import scope
from tests.support.api import Caller
from tools.vectors import schema, search


def test_a_missing_vector_table_is_reported(database: None) -> None:
    schema.require_vectors()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path TO pg_catalog")
        with pytest.raises(UnsupportedValue, match="pgvector"):
            schema.require_vectors()


@pytest.mark.parametrize(("version", "enough"), [("0.4.4", False), ("0.6.0", False), ("0.8.0", True), ("1.0", True)])
def test_an_old_pgvector_extension_is_not_used(version: str, *, enough: bool) -> None:
    assert schema.is_new_enough(version) is enough


def test_preparing_the_schema_twice_is_safe(database: None) -> None:
    schema.prepare("owner")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE indexname LIKE 'vector_embedding_hnsw_%%'")
        assert cursor.fetchone() == (len(schema.INDEXED),)


def unit(dice: random.Random) -> list[float]:
    numbers = [dice.gauss(0, 1) for _ in range(256)]
    length = sum(number * number for number in numbers) ** 0.5
    return [number / length for number in numbers]


def add_file(caller: Caller, vectors: list[list[float]]) -> VectorStoreFile:
    """Add a file with these vectors to a store."""
    team = {"team_id": caller.team.pk}
    store = VectorStore.objects.create(**team, embedding_model="m", dimensions=256)
    file = File.objects.create(**team, purpose="assistants", size=1, sha256="x", state=FileState.READY)
    entry = VectorStoreFile.objects.create(**team, store=store, file=file, status="completed", chunks=len(vectors))
    where = {**team, "store_id": store.pk, "entry_id": entry.pk}
    chunks = VectorChunk.objects.bulk_create(
        VectorChunk(**where, position=n, text=f"text {n}") for n in range(len(vectors))
    )
    VectorEmbedding.objects.bulk_create(
        VectorEmbedding(**where, chunk_id=chunk.pk, dimensions=256, embedding=vector)
        for chunk, vector in zip(chunks, vectors, strict=True)
    )
    return entry


def test_the_vector_index_finds_nearly_the_same_passages_as_a_full_scan(caller: Caller) -> None:
    dice = random.Random(5)
    query = unit(dice)
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        add_file(caller, [query] * 300)
        entry = add_file(caller, [unit(dice) for _ in range(60)])
        field = search.CandidateSet(store_ids=[entry.store_id], entry_ids=[entry.pk], passages=60, dimensions=256)
        expected = search.nearest_by_scan(field, query, 10)
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute("SET LOCAL enable_sort = off")
        found = search.nearest_by_index(field, query, 10)
        # The graph of the index is random, and its result approximate.
        assert len(found) == 10
        assert len({*found} & {*expected}) >= 8


def test_dissimilar_passages_are_ranked_too(caller: Caller) -> None:
    unlike = [[-number / 10, (1 - number**2 / 100) ** 0.5, *[0.0] * 254] for number in (7, 3, 9, 1, 5)]
    with scope.team(caller.team.pk):
        entry = add_file(caller, unlike)
        store = VectorStore.objects.get(pk=entry.store_id)
        places = dict(VectorChunk.objects.filter(entry=entry).values_list("pk", "position"))
    wanted = search.SearchRequest(queries=["words"], limit=3, vectors_only=True)
    scores = search.score_passages([store], wanted, [[1.0, *[0.0] * 255]])
    assert [places[chunk] for chunk in sorted(scores, key=lambda chunk: -scores[chunk])] == [3, 1, 4, 0, 2]
