"""`python -m benchmarks vectors`: recall and latency of searches among 100,000 passages.

One store has 80,000 of them, 49 stores share the rest. The vectors are clustered like those of texts. A search is
measured without the embedding of its query: filters, row-level security, candidates, scores. The exit code is 1 if a
limit is exceeded.
"""

import os
import random
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import psycopg

from benchmarks.report import Floor
from benchmarks.stack import running_servers

if TYPE_CHECKING:
    from responses.models.vector_stores import VectorChunk, VectorStore

DIMENSIONS = 384
CLUSTERS = 400
SMALL_STORES = 49
PASSAGES_OF_A_FILE = 20
MOST_P95_MS, LEAST_SHARE, TOP = 60.0, 0.95, 10
_WORDS = [f"word{number}" for number in range(2_000)]

Vector = list[float]
Stores = Sequence["VectorStore"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A search: store, vector, words, and the share of files that the filter passes (every n-th)."""

    store: "VectorStore"
    vector: Vector
    words: str
    every: int


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the figures. Return 1 if a limit is exceeded."""
    parser = ArgumentParser(prog="python -m benchmarks vectors")
    parser.add_argument("--queries", type=int, default=200, help="how many searches there are in the large store")
    parser.add_argument("--passages", type=int, default=100_000, help="how many there are in all stores together")
    options = parser.parse_args(arguments)
    dice = random.Random(7)
    with running_servers(directory) as servers:
        os.environ.update(servers.environment, DJANGO_SETTINGS_MODULE="server.settings")
        django.setup()
        centres = [[dice.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(CLUSTERS)]
        stores = _fill(servers.admin, dice, centres, files=options.passages // PASSAGES_OF_A_FILE)
        figures = list(_measured(dice, centres, stores, queries=options.queries))
    for figure in figures:
        print(figure.text())
    return 0 if all(figure.holds for figure in figures) else 1


# -- population --------------------------------------------------------------------------------------------------------


def _fill(admin: str, dice: random.Random, centres: Sequence[Vector], *, files: int) -> Stores:
    """Write stores, files and passages, then create the index."""
    from tools.vectors.schema import index_statement

    with psycopg.connect(admin, autocommit=True) as database:
        database.execute("SET maintenance_work_mem = '512MB'")
        database.execute(f"DROP INDEX vector_embedding_hnsw_{DIMENSIONS}")
        began = time.monotonic()
        stores, chunks = _written(dice, files)
        columns = "chunk_id, team_id, store_id, entry_id, dimensions, embedding"
        with database.cursor() as cursor, cursor.copy(f"COPY responses_vectorembedding ({columns}) FROM STDIN") as copy:
            for chunk in chunks:
                vector = _text(_near(dice, dice.choice(centres)))
                copy.write_row([chunk.pk, chunk.team_id, chunk.store_id, chunk.entry_id, DIMENSIONS, vector])
        print(f"{len(chunks)} passages were written in {time.monotonic() - began:.0f} s", flush=True)
        began = time.monotonic()
        database.execute(index_statement(DIMENSIONS))
        database.execute("VACUUM ANALYZE")
        print(f"their index was made in {time.monotonic() - began:.0f} s", flush=True)
    return stores


def _written(dice: random.Random, files: int) -> "tuple[Stores, list[VectorChunk]]":
    """Return the stores, the large one first, and the passages. Files of the large store are mixed with the others."""
    from conversations.models import File
    from responses.models.vector_stores import VectorChunk, VectorStore, VectorStoreFile
    from tenants import scope, services

    team = services.ensure_team(name="bench").pk
    own: dict[str, Any] = {"team_id": team, "embedding_model": "none", "dimensions": DIMENSIONS}
    with scope.team(team):
        stores = [VectorStore.objects.create(**own) for _ in range(1 + SMALL_STORES)]
        texts = [
            File(team_id=team, filename=f"{n}.txt", purpose="assistants", size=1, sha256="x", state="ready")
            for n in range(files)
        ]
        entries = [
            VectorStoreFile(
                team_id=team,
                store=stores[0] if number % 5 else stores[1 + (number // 5) % SMALL_STORES],
                file=file,
                status="completed",
                attributes={"part": number % 100},
                chunks=PASSAGES_OF_A_FILE,
            )
            for number, file in enumerate(File.objects.bulk_create(texts))
        ]
        VectorStoreFile.objects.bulk_create(entries)
        chunks = [
            VectorChunk(
                team_id=team,
                store_id=entry.store_id,
                entry_id=entry.pk,
                position=position,
                text=" ".join(dice.choices(_WORDS, k=60)),
            )
            for entry in entries
            for position in range(PASSAGES_OF_A_FILE)
        ]
        return stores, VectorChunk.objects.bulk_create(chunks, batch_size=2_000)


# -- searches ----------------------------------------------------------------------------------------------------------


def _measured(dice: random.Random, centres: Sequence[Vector], stores: Stores, *, queries: int) -> Iterator[Floor]:
    in_large = [_asked(dice, centres, stores[0], every=(1, 2, 10, 100)[n % 4]) for n in range(queries)]
    in_small = [_asked(dice, centres, dice.choice(stores[1:]), every=(1, 2)[n % 2]) for n in range(queries)]
    for where, asked, least in (("large store", in_large, LEAST_SHARE), ("small stores", in_small, 1.0)):
        yield from _judged(where, asked, least)


def _judged(where: str, asked: Sequence[Asked], least: float) -> Iterator[Floor]:
    """Measure how many searches differ from an exact comparison, and how long they take."""
    for one in asked[:10]:
        _search(one, vectors_only=True)
    alone, both, missed = list[float](), list[float](), 0
    for one in asked:
        began = time.monotonic()
        found = _search(one, vectors_only=True)
        alone.append((time.monotonic() - began) * 1000)
        # The order is ignored: scores are 1 minus the distance, which loses precision for nearly equal distances.
        missed += set(found) != set(_exact(one))
        began = time.monotonic()
        _search(one, vectors_only=False)
        both.append((time.monotonic() - began) * 1000)
    most = len(asked) * (1 - least)
    yield Floor(name=f"{where}: top {TOP} other than exact, of {len(asked)}", figure=missed, limit=most)
    yield Floor(name=f"{where}: by meaning, p95 ms", figure=_p95(alone), limit=MOST_P95_MS)
    yield Floor(name=f"{where}: by meaning and words, p95 ms", figure=_p95(both), limit=MOST_P95_MS)


def _asked(dice: random.Random, centres: Sequence[Vector], store: "VectorStore", *, every: int) -> Asked:
    words = " ".join(dice.choices(_WORDS, k=4))
    return Asked(store=store, vector=_near(dice, dice.choice(centres)), words=words, every=every)


def _search(asked: Asked, *, vectors_only: bool) -> list[int]:
    """Return the passages that the platform finds for a vector."""
    from responses.schema.file_search import ComparisonFilter
    from tools.vectors import search

    narrow = ComparisonFilter(type="lt", key="part", value=100 // asked.every)
    wanted = search.SearchRequest(queries=[asked.words], limit=TOP, filters=narrow, vectors_only=vectors_only)
    scores = search.score_passages([asked.store], wanted, [asked.vector])
    return sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:TOP]


def _exact(asked: Asked) -> list[int]:
    """Return the nearest passages by exact comparison."""
    from django.db import connection

    from tenants import scope

    with scope.team(asked.store.team_id), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_indexscan = off")
        cursor.execute(
            "SELECT chunk_id FROM responses_vectorembedding AS vector "
            "JOIN responses_vectorstorefile AS entry ON entry.id = vector.entry_id "
            "WHERE vector.store_id = %s AND (entry.attributes ->> 'part')::int < %s "
            "ORDER BY (embedding <=> %s::halfvec) + 0, chunk_id LIMIT %s",
            [asked.store.pk, 100 // asked.every, _text(asked.vector), TOP],
        )
        return [chunk for (chunk,) in cursor.fetchall()]


def _p95(spent: Sequence[float]) -> float:
    return sorted(spent)[int(len(spent) * 0.95)]


def _near(dice: random.Random, centre: Vector) -> Vector:
    return [value + dice.gauss(0, 0.8) for value in centre]


def _text(vector: Vector) -> str:
    return "[" + ",".join(f"{value:.4f}" for value in vector) + "]"
