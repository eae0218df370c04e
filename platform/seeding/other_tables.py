"""Seeded data other than runs: webhooks, files, batches, vector stores, prompts, guardrail decisions, audit log."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from io import BytesIO
from pathlib import PurePath
from typing import Any

import orjson
from django.utils.text import slugify

from conversations.files import storage
from conversations.models import File, FileState, Purpose
from core.clock import unix
from core.ids import new_id
from deliveries.outbox.attempt import AttemptResult
from responses.models import ChatCompletion, PromptTemplate, PromptVersion, Response, Status
from responses.models.batches import Batch, BatchStatus
from responses.models.vector_stores import EntryStatus, VectorChunk, VectorStore, VectorStoreFile
from responses.webhooks.events import EVENT_TYPES, new_event_id
from responses.webhooks.models import DisabledReason, WebhookDelivery, WebhookEndpoint
from seeding.teams import SeededTeam
from seeding.texts import TEXTS, TextPicker
from tenants.models import AuditEvent, GuardrailDecision, UsageRecord
from tenants.models.notifications import DeliveryState

_SIGNED_WITH = "whsec_bm9ib2R5IHNpZ25zIHdpdGggdGhpcw=="
_MEDIA_TYPES = {".pdf": "application/pdf", ".jsonl": "application/jsonl"}
_DAY = timedelta(days=1)


class OtherTables:
    """Creates the rows of one team."""

    def __init__(self, tenant: SeededTeam, picker: TextPicker, *, at: datetime, days: int) -> None:
        self._team_id, self._key = tenant.team.pk, tenant.keys[0]
        self._owner = {"team_id": self._team_id, "api_key": self._key}
        self._lead = tenant.people[0].username
        self._picker, self._rng = picker, picker.rng
        self._at, self._since = at, at - days * _DAY

    def write(self, responses: Sequence[Response]) -> None:
        """Write all rows, given the responses of the team."""
        self._webhooks([row for row in responses if row.background and row.ended_at is not None])
        self._guardrail_decisions([row for row in responses if row.incomplete_reason == "content_filter"])
        self._audit_events([row for row in responses if row.status == Status.CANCELLED])
        self._prompt()
        self._calls_of_other_endpoints()
        self._vector_store()
        self._batch()

    def _sometime(self) -> datetime:
        return self._since + (self._at - self._since) * self._rng.random()

    def _webhooks(self, ended: Sequence[Response]) -> None:
        """Create an endpoint that works, one that fails and one that is disabled, with deliveries of the first two."""
        states: dict[str, dict[str, Any]] = {
            "Order service": {},
            "Data warehouse": {"failing_since": self._at - 2 * _DAY},
            "Old dashboard": {
                "enabled": False,
                "disabled_at": self._at - 9 * _DAY,
                "disabled_reason": DisabledReason.GONE,
            },
        }
        endpoints = [
            WebhookEndpoint(
                team_id=self._team_id,
                name=name,
                url=f"https://{slugify(name)}.example.com/hook",
                event_types=list(EVENT_TYPES),
                created_at=self._since,
                updated_at=self._since,
                secret=_SIGNED_WITH,
                **state,
            )
            for name, state in states.items()
        ]
        WebhookEndpoint.objects.bulk_create(endpoints)
        WebhookDelivery.objects.bulk_create(
            self._delivery(endpoint, response) for response in ended for endpoint in endpoints if endpoint.enabled
        )

    def _delivery(self, endpoint: WebhookEndpoint, response: Response) -> WebhookDelivery:
        """Return a delivery, which has succeeded unless its endpoint fails."""
        at, wait = response.ended_at or self._at, self._rng.randrange(20, 400)
        if endpoint.failing_since is None:
            attempts = [AttemptResult(at=at + timedelta(seconds=1), milliseconds=wait, status=HTTPStatus.NO_CONTENT)]
            state, next_attempt_at = DeliveryState.DELIVERED, None
        else:
            attempts = [
                AttemptResult(
                    at=at + timedelta(minutes=5**step),
                    milliseconds=wait,
                    status=HTTPStatus.SERVICE_UNAVAILABLE,
                    body="No server.",
                )
                for step in range(4)
            ]
            # Deliveries are no longer attempted after three days; until then the next attempt is hours away.
            is_over = at < self._at - 3 * _DAY
            state = DeliveryState.FAILED if is_over else DeliveryState.PENDING
            next_attempt_at = None if is_over else self._at + timedelta(hours=self._rng.randrange(5, 12))
        last = attempts[-1]
        return WebhookDelivery(
            event_id=new_event_id(),
            team_id=self._team_id,
            endpoint=endpoint,
            event_type=f"response.{response.status}",
            object_id=response.pk,
            created_at=at,
            state=state,
            delivered_at=last.at if state == DeliveryState.DELIVERED else None,
            next_attempt_at=next_attempt_at,
            attempts=len(attempts),
            last_status=last.status,
            last_ms=last.milliseconds,
            last_error=last.error,
            last_body=last.body,
            history=[attempt.entry() for attempt in attempts],
        )

    def _guardrail_decisions(self, stopped: Sequence[Response]) -> None:
        """Create decisions that blocked an output, and others that flagged an input."""
        decisions = [(row.pk, row.ended_at or self._at, "output", "blocked") for row in stopped]
        decisions += [(new_id("resp"), self._sometime(), "input", "noted") for _ in range(4)]
        GuardrailDecision.objects.bulk_create(
            GuardrailDecision(
                team_id=self._team_id,
                occurred_at=at,
                response_id=response_id,
                stage=stage,
                checker="model",
                outcome=outcome,
                blocked=outcome == "blocked",
                categories=["violence"],
                reason="",
                request_id=new_id("req", at=at),
            )
            for response_id, at, stage, outcome in decisions
        )

    def _audit_events(self, cancelled: Sequence[Response]) -> None:
        """Create events of a key that cancelled responses, and of a member."""
        events = [
            (f"key:{row.api_key_id}", "response.cancelled", row.pk, row.ended_at or self._at) for row in cancelled
        ]
        targets = {
            "response.deleted": new_id("resp"),
            "file.deleted": new_id("file"),
            "content.revealed": self._team_id,
            "webhook_delivery.resent": new_id("resp"),
        }
        events += [(f"user:{self._lead}", action, target, self._sometime()) for action, target in targets.items()]
        AuditEvent.objects.bulk_create(
            AuditEvent(
                team_id=self._team_id,
                occurred_at=at,
                actor=actor,
                action=action,
                target=target,
                request_id=new_id("req"),
            )
            for actor, action, target, at in events
        )

    def _prompt(self) -> None:
        prompt = PromptTemplate.objects.create(team_id=self._team_id, name="Support answer", current=2)
        PromptVersion.objects.bulk_create(
            PromptVersion(
                team_id=self._team_id,
                prompt=prompt,
                number=number,
                messages=[{"role": "developer", "content": self._picker.marked(TEXTS["instructions"][number])}],
                model="atlas-large",
                created_by=self._lead,
            )
            for number in (1, 2)
        )

    def _calls_of_other_endpoints(self) -> None:
        """Create stored chat completions and embeddings, with their usage records."""
        for number in range(6):
            at, completion_id = self._sometime(), new_id("chatcmpl").replace("_", "-", 1)
            common = {**self._owner, "model": "atlas-mini", "request_id": new_id("req", at=at)}
            question, answer = self._picker.pair_of("chats")
            message = {"role": "assistant", "content": answer, "refusal": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            head = {"id": completion_id, "object": "chat.completion", "created": unix(at), "model": "atlas-mini"}
            ChatCompletion.objects.create(
                id=completion_id,
                created_at=at,
                messages=[{"role": "user", "content": question}],
                body={**head, "choices": [choice]},
                **common,
            )
            for endpoint, object_id in (("chat.completions", completion_id), ("embeddings", f"emb-{number}")):
                UsageRecord.objects.create(
                    occurred_at=at,
                    endpoint=endpoint,
                    object_id=object_id,
                    upstream_id="",
                    upstream_model="atlas-mini",
                    outcome="stop",
                    input_tokens=self._rng.randrange(20, 900),
                    output_tokens=0 if endpoint == "embeddings" else self._rng.randrange(10, 300),
                    duration_ms=self._rng.randrange(40, 2000),
                    **common,
                )

    def _vector_store(self) -> None:
        """Create a vector store, with a file that could not be parsed."""
        store = VectorStore.objects.create(name="Handbook", created_at=self._since, **self._owner)
        for name, text in TEXTS["passages"]:
            content = self._picker.marked(text)
            file = self._file(name, content.encode(), Purpose.ASSISTANTS)
            entry = self._entry(store, file, status=EntryStatus.COMPLETED, chunks=1, usage_bytes=file.size)
            VectorChunk.objects.create(team_id=self._team_id, store=store, entry=entry, position=0, text=content)
        self._entry(
            store,
            self._file("scan.pdf", b"%PDF-1.4 not really", Purpose.ASSISTANTS),
            status=EntryStatus.FAILED,
            error_code="unsupported_file",
            error_message="The file is damaged.",
        )

    def _entry(self, store: VectorStore, file: File, **state: Any) -> VectorStoreFile:
        return VectorStoreFile.objects.create(
            store=store, file=file, created_at=file.created_at, **state, **self._owner
        )

    def _batch(self) -> None:
        """Create a batch that was cancelled."""
        requests = [
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/responses",
                "body": {"model": "atlas-mini", "input": self._picker.marked(question)},
            }
            for number, (question, _) in enumerate(TEXTS["chats"])
        ]
        lines = b"".join(orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE) for request in requests)
        file = self._file("requests.jsonl", lines, Purpose.BATCH)
        at = file.created_at
        Batch.objects.create(
            created_at=at,
            status=BatchStatus.CANCELLED,
            ending=BatchStatus.CANCELLED,
            endpoint="/v1/responses",
            completion_window="24h",
            model="atlas-mini",
            input_file_id=file.pk,
            total=len(requests),
            expires_at=at + _DAY,
            in_progress_at=at + timedelta(minutes=1),
            cancelling_at=at + timedelta(minutes=2),
            ended_at=at + timedelta(minutes=3),
            request_id=new_id("req", at=at),
            **self._owner,
        )

    def _file(self, name: str, content: bytes, purpose: Purpose) -> File:
        file = File(
            filename=name,
            purpose=purpose,
            content_type=_MEDIA_TYPES.get(PurePath(name).suffix, "text/plain"),
            size=len(content),
            state=FileState.READY,
            created_at=self._sometime(),
            **self._owner,
        )
        file.sha256 = storage.store(file, BytesIO(content))
        file.save(force_insert=True)
        return file
