"""Seeded data other than runs: webhooks, files, batches, vector stores, prompts, guardrail decisions, audit log."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from io import BytesIO

import orjson

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

_ERRORS = ((503, "", "upstream connect error"), (None, "No answer within 15 seconds.", ""), (500, "", "<h1>Oops</h1>"))
_SIGNED_WITH = "whsec_bm9ib2R5IHNpZ25zIHdpdGggdGhpcw=="
_DAY = timedelta(days=1)


class OtherTables:
    """Creates the rows of one team."""

    def __init__(self, tenant: SeededTeam, picker: TextPicker, *, at: datetime, days: int) -> None:
        self._team_id = tenant.team.pk
        self._key = tenant.keys[0]
        self._lead = tenant.people[0].username
        self._picker, self._rng = picker, picker.rng
        self._at, self._days = at, days

    def write(self, responses: Sequence[Response]) -> None:
        """Write all rows, given the responses of the team."""
        self._webhooks([row for row in responses if row.background and row.ended_at is not None])
        self._records(responses)
        self._prompts_and_completions()
        self._files()

    def _sometime(self) -> datetime:
        return self._at - self._days * _DAY * self._rng.random()

    def _webhooks(self, ended: Sequence[Response]) -> None:
        """Create a healthy, a failing and a disabled endpoint, with deliveries."""
        failing = {"failing_since": self._at - 2 * _DAY}
        disabled = {
            "enabled": False,
            "disabled_at": self._at - 9 * _DAY,
            "disabled_reason": DisabledReason.GONE,
        }
        good, bad, _ = WebhookEndpoint.objects.bulk_create([
            WebhookEndpoint(
                team_id=self._team_id,
                name=name,
                url=url,
                event_types=list(EVENT_TYPES),
                created_at=self._at - self._days * _DAY,
                updated_at=self._at - self._days * _DAY,
                secret=_SIGNED_WITH,
                **state,
            )
            for name, url, state in (
                ("Order service", "https://hooks.example.com/orders", {}),
                ("Data warehouse", "https://warehouse.example.net/in", failing),
                ("Old dashboard", "https://dashboard.example.org/events", disabled),
            )
        ])  # fmt: skip
        rows = []
        for response in ended:
            at = response.ended_at or self._at
            failures = [self._failed_attempt(at)] if self._rng.random() < 0.2 else []
            delivered_at = at + timedelta(seconds=40 * len(failures) + 1)
            last = AttemptResult(
                at=delivered_at, milliseconds=self._rng.randrange(20, 400), status=HTTPStatus.NO_CONTENT
            )
            row = self._delivery(good, response, [*failures, last])
            row.state, row.delivered_at, row.next_attempt_at = DeliveryState.DELIVERED, delivered_at, None
            rows.append(row)
            # Deliveries are no longer attempted after three days; until then the next attempt is hours away.
            failures = [self._failed_attempt(at + timedelta(minutes=5**step)) for step in range(4)]
            row = self._delivery(bad, response, failures)
            if at < self._at - 3 * _DAY:
                row.state, row.next_attempt_at = DeliveryState.FAILED, None
            else:
                row.next_attempt_at = self._at + timedelta(hours=self._rng.randrange(5, 12))
            rows.append(row)
        WebhookDelivery.objects.bulk_create(rows)

    def _failed_attempt(self, at: datetime) -> AttemptResult:
        status, error, body = self._rng.choice(_ERRORS)
        return AttemptResult(at=at, milliseconds=self._rng.randrange(30, 15_000), status=status, error=error, body=body)

    def _delivery(
        self, endpoint: WebhookEndpoint, response: Response, outcomes: Sequence[AttemptResult]
    ) -> WebhookDelivery:
        last = outcomes[-1]
        return WebhookDelivery(
            event_id=new_event_id(),
            team_id=self._team_id,
            endpoint=endpoint,
            event_type=f"response.{response.status}",
            object_id=response.pk,
            created_at=response.ended_at or self._at,
            attempts=len(outcomes),
            last_status=last.status,
            last_ms=last.milliseconds,
            last_error=last.error,
            last_body=last.body,
            history=[outcome.entry() for outcome in outcomes],
        )

    def _records(self, responses: Sequence[Response]) -> None:
        """Create decisions that blocked an output, others that flagged an input, and audit events of members."""
        stopped = [row for row in responses if row.incomplete_reason == "content_filter"]
        decisions = [(row.pk, row.ended_at or self._at, "output", "blocked") for row in stopped]
        decisions += [(new_id("resp"), self._sometime(), "input", "noted") for _ in range(4)]
        GuardrailDecision.objects.bulk_create([
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
        ])  # fmt: skip
        cancelled = [row for row in responses if row.status == Status.CANCELLED]
        events = [
            (f"key:{row.api_key_id}", "response.cancelled", row.pk, row.ended_at or self._at) for row in cancelled
        ]
        for action in ("response.deleted", "file.deleted", "content.revealed", "webhook_delivery.resent"):
            prefix = "file" if action == "file.deleted" else "resp"
            for _ in range(3):
                target = self._team_id if action == "content.revealed" else new_id(prefix)
                events.append((f"user:{self._lead}", action, target, self._sometime()))
        AuditEvent.objects.bulk_create([
            AuditEvent(
                team_id=self._team_id,
                occurred_at=at,
                actor=actor,
                action=action,
                target=target,
                request_id=new_id("req"),
            )
            for actor, action, target, at in events
        ])  # fmt: skip

    def _prompts_and_completions(self) -> None:
        """Create a prompt, stored chat completions, and usage records of other endpoints."""
        prompt = PromptTemplate.objects.create(team_id=self._team_id, name="Support answer", current=2)
        PromptVersion.objects.bulk_create([
            PromptVersion(
                team_id=self._team_id,
                prompt=prompt,
                number=number,
                messages=[{"role": "developer", "content": self._picker.marked(TEXTS["instructions"][number])}],
                model="atlas-large",
                created_by=self._lead,
            )
            for number in (1, 2)
        ])  # fmt: skip
        for number in range(6):
            at, made = self._sometime(), new_id("chatcmpl").replace("_", "-", 1)
            question, answer = map(self._picker.marked, self._rng.choice(TEXTS["chats"]))
            message = {"role": "assistant", "content": answer, "refusal": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            head = {"id": made, "object": "chat.completion", "created": unix(at), "model": "atlas-mini"}
            common = {
                "team_id": self._team_id,
                "api_key": self._key,
                "model": "atlas-mini",
                "request_id": new_id("req", at=at),
            }
            ChatCompletion.objects.create(
                id=made,
                created_at=at,
                messages=[{"role": "user", "content": question}],
                body={**head, "choices": [choice]},
                **common,
            )
            for endpoint, object_id in (("chat.completions", made), ("embeddings", f"emb-{number}")):
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

    def _files(self) -> None:
        """Create a vector store, including a file that could not be parsed, and a cancelled batch."""
        owner = {"team_id": self._team_id, "api_key": self._key}
        since = self._at - self._days * _DAY
        store = VectorStore.objects.create(name="Handbook", created_at=since, **owner)
        for name, text in TEXTS["passages"]:
            content = self._picker.marked(text)
            file = self._file(name, content.encode(), Purpose.ASSISTANTS)
            entry = VectorStoreFile.objects.create(
                store=store,
                file=file,
                created_at=file.created_at,
                status=EntryStatus.COMPLETED,
                chunks=1,
                usage_bytes=file.size,
                **owner,
            )
            VectorChunk.objects.create(team_id=self._team_id, store=store, entry=entry, position=0, text=content)
        broken = self._file("scan.pdf", b"%PDF-1.4 not really", Purpose.ASSISTANTS, "application/pdf")
        VectorStoreFile.objects.create(
            store=store,
            file=broken,
            created_at=broken.created_at,
            status=EntryStatus.FAILED,
            error_code="unsupported_file",
            error_message="The file is damaged.",
            **owner,
        )
        asked = [
            {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/responses",
             "body": {"model": "atlas-mini", "input": self._picker.marked(question)}}
            for n, (question, _) in enumerate(TEXTS["chats"])
        ]  # fmt: skip
        lines = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in asked)
        given = self._file("requests.jsonl", lines, Purpose.BATCH, "application/jsonl")
        at = given.created_at
        Batch.objects.create(
            created_at=at,
            status=BatchStatus.CANCELLED,
            ending=BatchStatus.CANCELLED,
            endpoint="/v1/responses",
            completion_window="24h",
            model="atlas-mini",
            input_file_id=given.pk,
            total=len(asked),
            expires_at=at + _DAY,
            in_progress_at=at + timedelta(minutes=1),
            cancelling_at=at + timedelta(minutes=2),
            ended_at=at + timedelta(minutes=3),
            request_id=new_id("req", at=at),
            **owner,
        )

    def _file(self, name: str, content: bytes, purpose: Purpose, content_type: str = "text/plain") -> File:
        file = File(
            team_id=self._team_id,
            api_key=self._key,
            filename=name,
            purpose=purpose,
            content_type=content_type,
            size=len(content),
            state=FileState.READY,
            created_at=self._sometime(),
        )
        file.sha256 = storage.store(file, BytesIO(content))
        file.save(force_insert=True)
        return file
