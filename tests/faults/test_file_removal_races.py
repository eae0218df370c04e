"""Files are deleted, detached and expired at random moments while workers ingest them: no request and no task fails."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from conversations.files import storage
from conversations.models import File
from core.clock import now
from demo_upstream.app import create_app
from responses.models.vector_stores import VectorChunk, VectorStore, VectorStoreFile
from tenants import scope
from tests.support.aiohttp_server import serving
from tests.support.api import Api, ok
from tests.support.sampling import SEED, sized
from tests.support.vector_stores import upload, use_demo_embeddings
from tests.support.web import WebProcess
from tests.support.workers import WorkerProcess
from tools.vectors import services

RACES = sized(24, full=1_000)
AT_ONCE = 6
STORES = 3
# Enough passages that storing them takes a while.
TEXT = "\n\n".join(f"Paragraph {number} tells of herons, reeds and still water." for number in range(1_200))
SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}


class Races:
    """Files that are removed while they are ingested, and their status right before."""

    def __init__(self, nodes: list[Api], team: Api) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self.refused: list[tuple[str, int, str]] = []
        self.stores = [self._store(team) for _ in range(STORES)]
        # Adapted to the speed of the machine, so that about as many files are removed before their end as after it.
        self._longest_wait = 1.0
        self._nodes = nodes
        self._lock = threading.Lock()

    def run(self, number: int) -> None:
        """Run one race."""
        chance = random.Random(f"{SEED} {number}")
        here, there = chance.choice(self._nodes), chance.choice(self._nodes)
        chosen = chance.sample(self.stores, chance.choice((1, 2)))
        file_id = upload(here, f"{number}.txt", f"{TEXT}\n\n{number}")
        for store_id in chosen:
            ok(here.post(f"/vector_stores/{store_id}/files", {"file_id": file_id, "chunking_strategy": SMALL}))
        time.sleep(chance.uniform(0, self._longest_wait))
        status = ok(there.get(f"/vector_stores/{chosen[0]}/files/{file_id}"))["status"]
        how = chance.choice(("deleted", "detached", "expired"))
        match how:
            case "deleted":
                answers = [there.delete(f"/files/{file_id}")]
            case "detached":
                answers = [there.delete(f"/vector_stores/{store_id}/files/{file_id}") for store_id in chosen]
            case _:
                answers = []
                self._expire(file_id)
        with self._lock:
            self._longest_wait *= 1.1 if status == "in_progress" else 0.9
            self.seen[how, status] += 1
            self.refused += [(how, one.status_code, one.text) for one in answers if one.status_code != 200]

    @staticmethod
    def _store(team: Api) -> str:
        return str(ok(team.post("/vector_stores", {"name": "Raced"}))["id"])

    @staticmethod
    def _expire(file_id: str) -> None:
        try:
            with scope.every_team():
                past = now() - timedelta(seconds=1)
                File.objects.filter(pk=file_id).update(expires_at=past, sweep_at=past)
            storage.sweep_files()
        finally:
            # The connection belongs to this thread.
            connection.close()


@pytest.fixture
def races(web: WebProcess, daphne_web: WebProcess, http: Any, api: Api) -> Iterator[Races]:
    """Stores of a team whose API two web processes serve."""
    with serving(create_app()) as embedder:
        use_demo_embeddings(api.caller.team, url=embedder)
        yield Races([Api(http, url=node.url, caller=api.caller) for node in (web, daphne_web)], api)


@pytest.mark.nightly
@pytest.mark.slow
def test_files_are_removed_while_workers_ingest_them(
    races: Races, api: Api, outsider: Api, worker: WorkerProcess, web: WebProcess
) -> None:
    written = {process: process.written for process in (web, worker)}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(races.run, range(RACES)))
    assert races.refused == []
    statuses = {status: sum(n for (_, one), n in races.seen.items() if one == status) for _, status in races.seen}
    assert min(statuses.get("in_progress", 0), statuses.get("completed", 0)) > RACES / 12, races.seen
    with scope.every_team():
        left = VectorStoreFile.objects.filter(store_id__in=races.stores)
        assert [entry.status for entry in left] == []
        assert not VectorChunk.objects.filter(store_id__in=races.stores).exists()
    for store_id in races.stores:
        assert ok(api.get(f"/vector_stores/{store_id}"))["file_counts"]["total"] == 0
        assert outsider.get(f"/vector_stores/{store_id}").status_code == 404
    for process, before in written.items():
        output = process.output(since=before)
        assert not any(word in output for word in ("deadlock", "IntegrityError", "failed unexpectedly"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_stores_expire_and_are_deleted_while_workers_ingest_their_files(races: Races, api: Api) -> None:
    chance = random.Random(SEED)
    for number in range(sized(6, full=60)):
        file_id = upload(api, f"{number}.txt", f"{TEXT}\n\n{number}")
        expiring, deleted = (
            ok(api.post("/vector_stores", {"expires_after": {"anchor": "last_active_at", "days": 1}}))["id"]
            for _ in range(2)
        )
        for store_id in (expiring, deleted):
            ok(api.post(f"/vector_stores/{store_id}/files", {"file_id": file_id, "chunking_strategy": SMALL}))
        time.sleep(chance.uniform(0, 1))
        ok(api.delete(f"/vector_stores/{deleted}"))
        with scope.every_team():
            VectorStore.objects.filter(pk=expiring).update(last_active_at=now() - timedelta(days=2))
        services.clear_expired_stores()
        ok(api.delete(f"/files/{file_id}"))
        with scope.every_team():
            assert not VectorStoreFile.objects.filter(store_id__in=[expiring, deleted]).exists()
            assert not VectorChunk.objects.filter(store_id__in=[expiring, deleted]).exists()
