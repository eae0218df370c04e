"""Webhook deliveries to real receivers: signed, retried, isolated from each other, and never lost.

In tests a failed delivery is retried three times immediately, and then after ten minutes (tests/servers.py).
"""

import gzip
import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest
from openai import InvalidWebhookSignatureError, OpenAI
from pytest_django import Settings

from core.clock import now
from deliveries.outbox import queue
from responses.webhooks import services
from responses.webhooks.models import DisabledReason, WebhookDelivery
from responses.webhooks.queue import PER_ENDPOINT
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, Caller, ok
from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Script, refusal, stream
from tests.support.waiting import eventually
from tests.support.webhooks import (
    ACTOR,
    EVERY_END,
    Receiver,
    add_endpoint,
    announce,
    change_deliveries,
    change_endpoint,
    deliveries_of,
    delivering,
    endpoint_of,
    running_receiver,
    settled,
)
from tests.support.workers import running_worker


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that answers."""
    with running_receiver() as running:
        yield running


@pytest.fixture
def slow_receiver() -> Iterator[Receiver]:
    """A receiver that does not answer until its gate is opened."""
    with running_receiver(closed=True) as running:
        yield running


def audit_actions(caller: Caller) -> list[str]:
    """Return the audit actions of the platform on the team's endpoints."""
    with scope.team(caller.team.pk):
        return list(
            AuditEvent.objects.filter(actor="system", target__startswith="we_").values_list("action", flat=True)
        )


def test_the_sdk_verifies_and_parses_deliveries(caller: Caller, receiver: Receiver) -> None:
    made = add_endpoint(caller, receiver.url)
    with delivering():
        for event_type in EVERY_END:
            announce(caller, event_type, "resp_1")
        settled(caller, *["delivered"] * 4)
    events = {request.id: request.unwrap(made.secret) for request in receiver.requests}
    assert {one.type for one in events.values()} == set(EVERY_END)
    for known, event in events.items():
        assert (event.id, event.object, event.data.id) == (known, "event", "resp_1")
    assert receiver.requests[0].headers["content-type"] == "application/json"


def test_delivery_starts_as_soon_as_the_event_is_committed(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    # A notification wakes the worker, which would otherwise poll much later.
    with delivering(poll_seconds=600):
        announce(caller, object_id="resp_1")
        receiver.wait_for(1)
        announce(caller, object_id="resp_2")
        receiver.wait_for(2)


def test_retries_of_an_event_keep_its_id(caller: Caller, receiver: Receiver) -> None:
    made = add_endpoint(caller, receiver.url)
    receiver.statuses = [500, 503, 429]
    with delivering():
        announce(caller)
        (delivery,) = settled(caller, "delivered")
    assert receiver.ids == [delivery.event_id] * 4
    assert len({request.body for request in receiver.requests}) == 1
    assert [one.unwrap(made.secret).id for one in receiver.requests] == receiver.ids
    assert [attempt["status"] for attempt in delivery.history] == [500, 503, 429, 200]
    assert (delivery.attempts, delivery.last_status, delivery.last_body) == (4, 200, "thank you")
    assert endpoint_of(caller).failing_since is None


def test_failing_deliveries_are_retried_for_three_days(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    receiver.statuses = [500] * 5
    with delivering():
        announce(caller)
        delivery = eventually(lambda: [one for one in deliveries_of(caller) if one.attempts == 4])[0]
        assert delivery.next_attempt_at is not None
        assert timedelta(minutes=9) < delivery.next_attempt_at - now() < timedelta(minutes=12)
        assert endpoint_of(caller).failing_since is not None
        change_deliveries(caller, created_at=now() - timedelta(hours=72), next_attempt_at=now())
        settled(caller, "failed")
    assert len(receiver.requests) == 5


def test_a_slow_endpoint_delays_no_other(
    caller: Caller, receiver: Receiver, slow_receiver: Receiver, settings: Settings
) -> None:
    settings.WEBHOOK_TIMEOUT_SECONDS = 60
    add_endpoint(caller, slow_receiver.url, "response.failed")
    add_endpoint(caller, receiver.url, "response.completed")
    for number in range(20):
        announce(caller, "response.failed", f"resp_{number}")
    with delivering(slots=PER_ENDPOINT + 2):
        eventually(lambda: slow_receiver.here == PER_ENDPOINT)
        announce(caller, "response.completed")
        receiver.wait_for(1)
        slow_receiver.gate.set()
        settled(caller, *["delivered"] * 21)
    assert slow_receiver.most_here == PER_ENDPOINT


def test_a_failing_endpoint_gets_one_attempt_at_a_time(caller: Caller, slow_receiver: Receiver) -> None:
    add_endpoint(caller, slow_receiver.url)
    change_endpoint(caller, failing_since=now())
    for number in range(3):
        announce(caller, object_id=f"resp_{number}")
    with delivering():
        slow_receiver.wait_for(1)
        slow_receiver.gate.set()
        settled(caller, *["delivered"] * 3)
    assert endpoint_of(caller).failing_since is None


def test_both_secrets_verify_during_a_rotation(caller: Caller, receiver: Receiver) -> None:
    made = add_endpoint(caller, receiver.url)
    other = services.rotate_secret(endpoint=made, actor=ACTOR, keep_old=True)
    with delivering():
        announce(caller)
        settled(caller, "delivered")
        change_endpoint(caller, previous_until=now())
        announce(caller)
        settled(caller, "delivered", "delivered")
    first, second = receiver.requests
    assert first.unwrap(made.secret).id == first.unwrap(other.secret).id
    assert second.unwrap(other.secret).id == second.id
    with pytest.raises(InvalidWebhookSignatureError):
        second.unwrap(made.secret)


def test_a_redirect_is_a_failure_and_not_followed(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    receiver.statuses, receiver.headers = [302] * 4, {"Location": receiver.url}
    with delivering():
        announce(caller)
        delivery = eventually(lambda: [one for one in deliveries_of(caller) if one.attempts == 4])[0]
    assert (delivery.state, delivery.last_status, len(receiver.requests)) == ("pending", 302, 4)


def test_a_private_address_is_rejected_at_every_attempt(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    with delivering(allow=""):
        announce(caller)
        delivery = eventually(lambda: [one for one in deliveries_of(caller) if one.attempts == 4])[0]
    assert (delivery.state, delivery.last_status) == ("pending", None)
    assert "not allowed" in delivery.last_error
    assert receiver.requests == []


def test_an_endpoint_that_does_not_answer_in_time_fails(caller: Caller, slow_receiver: Receiver) -> None:
    add_endpoint(caller, slow_receiver.url)
    with delivering():
        announce(caller)
        delivery = eventually(lambda: [one for one in deliveries_of(caller) if one.attempts])[0]
        slow_receiver.gate.set()
        assert "in time" in delivery.history[0]["error"]
        settled(caller, "delivered")
    assert len(set(slow_receiver.ids)) == 1


def test_a_success_may_have_a_body_of_any_size_and_form(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    receiver.answer = b"x\x00" * 1_000_000
    with delivering():
        announce(caller)
        settled(caller, "delivered")
        receiver.answer, receiver.headers = gzip.compress(b"packed"), {"Content-Encoding": "gzip"}
        announce(caller)
        long, packed = settled(caller, "delivered", "delivered")
    assert (set(long.last_body), packed.last_body) == ({"x"}, "")


def test_an_endpoint_answering_410_gone_is_disabled(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    receiver.statuses = [410]
    with delivering():
        announce(caller)
        eventually(lambda: not endpoint_of(caller).enabled)
    assert endpoint_of(caller).disabled_reason == DisabledReason.GONE
    assert audit_actions(caller) == ["webhook_endpoint.disabled"]
    assert (announce(caller), len(receiver.requests)) == (0, 1)


def test_an_endpoint_that_fails_for_five_days_is_disabled_until_its_url_changes(
    caller: Caller, receiver: Receiver
) -> None:
    made = add_endpoint(caller, receiver.url)
    change_endpoint(caller, failing_since=now() - timedelta(days=5))
    receiver.statuses = [500]
    with delivering():
        announce(caller)
        eventually(lambda: not endpoint_of(caller).enabled)
        assert endpoint_of(caller).disabled_reason == DisabledReason.FAILING
        services.update_endpoint(endpoint=made, actor=ACTOR, url="https://example.com/moved")
        change_endpoint(caller, url=receiver.url)
        settled(caller, "delivered")
    assert len(set(receiver.ids)) == 1


def test_a_resent_delivery_keeps_its_id(caller: Caller, receiver: Receiver) -> None:
    add_endpoint(caller, receiver.url)
    with delivering():
        announce(caller)
        (delivery,) = settled(caller, "delivered")
        assert services.resend(delivery=delivery, actor=ACTOR)
        receiver.wait_for(2)
        settled(caller, "delivered")
    assert receiver.ids == [delivery.event_id] * 2


def test_undeliverable_events_are_abandoned_and_old_ones_deleted(caller: Caller) -> None:
    add_endpoint(caller, "https://a.example/")
    announce(caller)
    change_endpoint(caller, enabled=False, disabled_at=now())
    past = now() - timedelta(hours=73)
    change_deliveries(caller, created_at=past, next_attempt_at=past)
    queue.sweep(WebhookDelivery)
    settled(caller, "failed")
    change_deliveries(caller, created_at=now() - timedelta(days=31))
    queue.sweep(WebhookDelivery)
    assert deliveries_of(caller) == []


@pytest.mark.usefixtures("worker")
def test_every_end_of_a_background_response_is_delivered(
    api: Api, client: OpenAI, script: Script, other_script: Script, receiver: Receiver
) -> None:
    made = add_endpoint(api.caller, receiver.url)
    gate = Gate()
    script.say("Hello").then(refusal(400))
    other_script.then(stream(chunk(content="Hel"), gate, *text("lo")[1:]))
    with delivering():
        cancelled = api.create(model=other_script.model, input="Hi", background=True)["id"]
        gate.wait_until_reached()
        ok(api.post(f"/responses/{cancelled}/cancel", b""))
        gate.open()
        for number in (2, 3):
            api.create(model=script.model, input="Hi", background=True)
            receiver.wait_for(number)
    events = [request.unwrap(made.secret) for request in receiver.requests]
    kinds = ["cancelled", "completed", "failed"]
    assert [event.type for event in events] == [f"response.{kind}" for kind in kinds]
    assert [client.responses.retrieve(event.data.id).status for event in events] == kinds


@pytest.mark.slow
def test_a_worker_killed_during_a_delivery_loses_nothing(caller: Caller, slow_receiver: Receiver) -> None:
    add_endpoint(caller, slow_receiver.url)
    with running_worker(WEBHOOK_CONCURRENCY="10", WEBHOOK_TIMEOUT_SECONDS="30") as worker:
        announce(caller)
        slow_receiver.wait_for(1, seconds=30)
        worker.stop(signal.SIGKILL)
    slow_receiver.gate.set()
    (delivery,) = deliveries_of(caller)
    assert (delivery.state, delivery.attempts) == ("pending", 0)
    # Its claim expires.
    change_deliveries(caller, claimed_until=now(), next_attempt_at=now())
    with running_worker(WEBHOOK_CONCURRENCY="10"):
        settled(caller, "delivered", seconds=30)
    assert slow_receiver.ids == [delivery.event_id] * 2
