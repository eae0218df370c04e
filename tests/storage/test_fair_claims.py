"""Claims of files, webhook deliveries and background responses are shared fairly between teams.

Claims are rolled back with the transaction of the test, so that running workers never see them.
"""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection, transaction

from conversations.models import File
from core.clock import now
from core.egress import default
from responses.lifecycle import queue
from responses.models import Response
from responses.models.vector_stores import EntryStatus, VectorStore, VectorStoreFile
from responses.webhooks.models import WebhookDelivery
from responses.webhooks.queue import PER_ENDPOINT, WebhookChannel
from tenants import scope
from tenants.models import Team
from tests.support.api import Caller, MakeCaller
from tests.support.webhooks import add_endpoint, announce
from tools.vectors import ingestion

MANY = 100_000
MOST_MS = 50.0


@pytest.fixture
def rolled_back(database: None) -> Iterator[None]:
    """A transaction that sees every team and is rolled back."""
    with transaction.atomic(), scope.every_team():
        # Hide rows of other tests: background runs and runs that were handed over.
        Response.objects.filter(ended_at=None).update(attempt=1000)
        VectorStoreFile.objects.filter(status=EntryStatus.IN_PROGRESS).update(status=EntryStatus.FAILED)
        WebhookDelivery.objects.filter(state="pending").update(next_attempt_at=now() + timedelta(days=1))
        yield
        transaction.set_rollback(True)


def add_files(caller: Caller, number: int) -> list[int]:
    """Add waiting files to a store of this caller and return their ids, oldest first."""
    store = VectorStore.objects.create(team=caller.team, embedding_model="none")
    entries = []
    for index in range(number):
        columns = {"filename": "a.txt", "size": 1, "purpose": "assistants", "state": "ready", "sha256": "0" * 64}
        file = File.objects.create(team=caller.team, api_key=caller.key, **columns)
        created_at = now() + timedelta(seconds=index - 3600)
        entries.append(VectorStoreFile.objects.create(team=caller.team, store=store, file=file, created_at=created_at))
    return [entry.pk for entry in entries]


def claimed_teams(number: int) -> Counter[str]:
    """Claim files and return the number for each team."""
    claims = [ingestion.claim_file() for _ in range(number)]
    return Counter(claim.team_id for claim in claims if claim)


def test_teams_take_turns_with_their_oldest_file_first(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    first = add_files(many, 5)
    add_files(few, 2)
    assert claimed_teams(4) == {many.team.pk: 2, few.team.pk: 2}
    leased = VectorStoreFile.objects.filter(team=many.team, lease_until__isnull=False)
    assert set(leased.values_list("pk", flat=True)) == set(first[:2])


def test_a_team_with_a_higher_weight_gets_more_files_processed(rolled_back: None, make_caller: MakeCaller) -> None:
    heavy, light = make_caller(), make_caller()
    Team.objects.filter(pk=heavy.team.pk).update(weight=2)
    add_files(heavy, 6)
    add_files(light, 6)
    assert claimed_teams(6) == {heavy.team.pk: 4, light.team.pk: 2}


def test_a_full_worker_claims_a_file_of_another_team_only(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    add_files(many, 3)
    assert ingestion.claim_file(without={many.team.pk}) is None
    (entry,) = add_files(few, 1)
    claim = ingestion.claim_file(without={many.team.pk})
    assert claim is not None
    assert claim.id == entry


def test_a_team_with_many_endpoints_leaves_deliveries_to_others(rolled_back: None, make_caller: MakeCaller) -> None:
    many, few = make_caller(), make_caller()
    for number in range(10):
        add_endpoint(many, f"https://{number}.example/")
    add_endpoint(few, "https://few.example/")
    for _ in range(PER_ENDPOINT):
        announce(many)
        announce(few)
    claims = WebhookChannel(slots=6, egress=default()).claim(at=now() + timedelta(seconds=1), slots=6)
    assert Counter(claim.team_id for claim in claims) == {many.team.pk: 3, few.team.pk: 3}
    # Files in progress count.
    Team.objects.filter(pk=few.team.pk).update(weight=1000)
    claims = WebhookChannel(slots=2, egress=default()).claim(at=now() + timedelta(seconds=1), slots=2)
    assert Counter(claim.team_id for claim in claims) == {few.team.pk: 1, many.team.pk: 1}
    assert WebhookDelivery.objects.filter(team=few.team, claimed_until__isnull=False).count() == PER_ENDPOINT


@pytest.mark.slow
def test_a_claim_beside_100_000_queued_responses_of_one_team_is_fast(
    rolled_back: None, make_caller: MakeCaller
) -> None:
    many, few = make_caller(), make_caller()
    queued = Response.objects.create(team=few.team, api_key=few.key, mode="json", status="queued", background=True)
    model = Response.objects.create(team=many.team, api_key=many.key, mode="json", status="queued", background=True)
    columns = ", ".join(str(field.column) for field in Response._meta.concrete_fields if field.column != "id")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO responses_response (id, {columns}) "
            f"SELECT id || lpad(n::text, 6, '0'), {columns} FROM responses_response, generate_series(1, %s) AS n "
            "WHERE id = %s",
            [MANY, model.pk],
        )
    times = []
    for _ in range(5):
        began = time.perf_counter()
        claims = queue.claim(slots=20, running=[])
        times.append(1000 * (time.perf_counter() - began))
        assert len(claims) == queue.MAX_CLAIMS
        assert queued.pk in {claim.id for claim in claims}
        Response.objects.filter(pk=queued.pk).update(lease_until=None)
    assert min(times) < MOST_MS, times
