"""Seeded data other than runs: webhooks, files, batches, vector stores, prompts, guardrail decisions, audit log."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import orjson
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import models

from conversations.files import storage
from conversations.models import File, FileState, Purpose
from kernel.clock import unix
from kernel.ids import new_id
from responses.models import ChatCompletion, PromptTemplate, PromptVersion, Response, Status
from responses.models.batches import Batch, BatchStatus
from responses.models.vector_stores import EntryStatus, VectorChunk, VectorStore, VectorStoreFile
from responses.seeding import texts
from responses.seeding.teams import SeededTeam
from responses.seeding.texts import TextPicker
from responses.webhooks.attempt import AttemptResult
from responses.webhooks.events import EVENT_TYPES, new_event_id
from responses.webhooks.models import DeliveryState, DisabledReason, WebhookDelivery, WebhookEndpoint
from tenants import scope
from tenants.models import AuditEvent, GuardrailDecision, UsageRecord

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
        with scope.team(self._team_id):
            self._webhooks([row for row in responses if row.background and row.ended_at is not None])
            self._decisions([row for row in responses if row.incomplete_reason == "content_filter"])
            self._audit(responses)
            self._prompts()
            self._completions()
            self._store()
            self._batch()

    def _sometime(self) -> datetime:
        return self._at - self._days * _DAY * self._rng.random()

    # -- webhooks ------------------------------------------------------------------------------------------------------

    def _webhooks(self, ended: Sequence[Response]) -> None:
        """Create a healthy, a failing and a disabled endpoint, with deliveries."""
        since = self._at - self._days * _DAY
        shared = {
            "team_id": self._team_id,
            "event_types": list(EVENT_TYPES),
            "created_at": since,
            "updated_at": since,
            "secret": _SIGNED_WITH,
        }
        good = WebhookEndpoint(name="Order service", url="https://hooks.example.com/orders", **shared)
        bad = WebhookEndpoint(
            name="Data warehouse",
            url="https://warehouse.example.net/in",
            failing_since=self._at - 2 * _DAY,
            **shared,
        )
        gone = WebhookEndpoint(
            name="Old dashboard",
            url="https://dashboard.example.org/events",
            enabled=False,
            disabled_at=self._at - 9 * _DAY,
            disabled_reason=DisabledReason.GONE,
            **shared,
        )
        WebhookEndpoint.objects.bulk_create([good, bad, gone])
        for response in ended:
            WebhookDelivery.objects.bulk_create([self._delivered(good, response), self._undelivered(bad, response)])

    def _delivered(self, endpoint: WebhookEndpoint, response: Response) -> WebhookDelivery:
        at = response.ended_at or self._at
        outcomes = [self._failure(at)] if self._rng.random() < 0.2 else []
        last = AttemptResult(
            at=at + timedelta(seconds=40 * len(outcomes) + 1), milliseconds=self._rng.randrange(20, 400), status=204
        )
        row = self._delivery(endpoint, response, [*outcomes, last])
        row.state, row.delivered_at, row.next_attempt_at = DeliveryState.DELIVERED, last.at, None
        return row

    def _undelivered(self, endpoint: WebhookEndpoint, response: Response) -> WebhookDelivery:
        # Deliveries are no longer attempted after three days; until then the next attempt is hours away.
        at = response.ended_at or self._at
        outcomes = [self._failure(at + timedelta(minutes=5**step)) for step in range(4)]
        row = self._delivery(endpoint, response, outcomes)
        is_over = at < self._at - 3 * _DAY
        row.state = DeliveryState.FAILED if is_over else DeliveryState.PENDING
        row.next_attempt_at = None if is_over else self._at + timedelta(hours=self._rng.randrange(5, 12))
        return row

    def _failure(self, at: datetime) -> AttemptResult:
        status, error, body = self._picker.pick(_ERRORS)
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

    # -- records -------------------------------------------------------------------------------------------------------

    def _decisions(self, stopped: Sequence[Response]) -> None:
        """Create decisions that blocked an output, and others that only flagged an input."""
        made = [self._decision(row.pk, row.ended_at or self._at, stage="output", outcome="blocked") for row in stopped]
        for _ in range(4):
            made.append(self._decision(new_id("resp"), self._sometime(), stage="input", outcome="noted"))
        GuardrailDecision.objects.bulk_create(made)

    def _decision(self, response_id: str, at: datetime, *, stage: str, outcome: str) -> GuardrailDecision:
        return GuardrailDecision(
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

    def _audit(self, responses: Sequence[Response]) -> None:
        """Create audit events of members."""
        cancelled = [row for row in responses if row.status == Status.CANCELLED]
        rows = [self._event(f"key:{row.api_key_id}", "response.cancelled", row.pk, row.ended_at) for row in cancelled]
        for action in ("response.deleted", "file.deleted", "content.revealed", "webhook_delivery.resent"):
            prefix = {"file.deleted": "file", "content.revealed": "team"}.get(action, "resp")
            target = self._team_id if prefix == "team" else new_id(prefix)
            rows += [self._event(f"user:{self._lead}", action, target, self._sometime()) for _ in range(3)]
        AuditEvent.objects.bulk_create(rows)

    def _event(self, actor: str, action: str, target: str, at: datetime | None) -> AuditEvent:
        return AuditEvent(
            team_id=self._team_id,
            occurred_at=at or self._at,
            actor=actor,
            action=action,
            target=target,
            request_id=new_id("req"),
        )

    def _prompts(self) -> None:
        prompt = PromptTemplate.objects.create(team_id=self._team_id, name="Support answer", current=2)
        PromptVersion.objects.bulk_create([
            PromptVersion(
                team_id=self._team_id,
                prompt=prompt,
                number=number,
                messages=[{"role": "developer", "content": self._picker.marked(texts.INSTRUCTIONS[number])}],
                model="atlas-large",
                created_by=self._lead,
            )
            for number in (1, 2)
        ])  # fmt: skip

    def _completions(self) -> None:
        """Create stored chat completions, and usage records of other endpoints."""
        rows: list[models.Model] = []
        ledger: list[UsageRecord] = []
        for number in range(6):
            at, made = self._sometime(), new_id("chatcmpl").replace("_", "-", 1)
            question, answer = self._picker.pick(texts.CHATS)
            message = {"role": "assistant", "content": self._picker.marked(answer), "refusal": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
            body = {
                "id": made,
                "object": "chat.completion",
                "created": unix(at),
                "model": "atlas-mini",
                "choices": [choice],
            }
            rows.append(
                ChatCompletion(
                    id=made,
                    team_id=self._team_id,
                    api_key=self._key,
                    created_at=at,
                    model="atlas-mini",
                    messages=[{"role": "user", "content": self._picker.marked(question)}],
                    body=body,
                    request_id=new_id("req", at=at),
                )
            )
            ledger += [self._spent("chat_completions", made, at), self._spent("embeddings", f"emb-{number}", at)]
        ChatCompletion.objects.bulk_create([row for row in rows if isinstance(row, ChatCompletion)])
        UsageRecord.objects.bulk_create(ledger)

    def _spent(self, endpoint: str, object_id: str, at: datetime) -> UsageRecord:
        return UsageRecord(
            team_id=self._team_id,
            api_key=self._key,
            occurred_at=at,
            endpoint=endpoint,
            object_id=object_id,
            model="atlas-mini",
            upstream_id="",
            upstream_model="atlas-mini",
            outcome="stop",
            input_tokens=self._rng.randrange(20, 900),
            output_tokens=0 if endpoint == "embeddings" else self._rng.randrange(10, 300),
            duration_ms=self._rng.randrange(40, 2000),
            request_id=new_id("req", at=at),
        )

    # -- files ---------------------------------------------------------------------------------------------------------

    def _file(self, name: str, content: bytes, purpose: Purpose, content_type: str = "text/plain") -> File:
        """Create a file with its content."""
        upload = SimpleUploadedFile(name, content, content_type=content_type)
        at = self._sometime()
        file = File(
            team_id=self._team_id,
            api_key=self._key,
            filename=name,
            purpose=purpose,
            content_type=content_type,
            size=len(content),
            state=FileState.READY,
            created_at=at,
        )
        file.sha256 = storage.store(file, upload)
        file.save(force_insert=True)
        return file

    def _store(self) -> None:
        """Create a vector store, including a file that could not be parsed."""
        store = VectorStore.objects.create(
            team_id=self._team_id, api_key=self._key, name="Handbook", created_at=self._at - self._days * _DAY
        )
        for name, text in texts.PASSAGES:
            content = self._picker.marked(text)
            file = self._file(name, content.encode(), Purpose.ASSISTANTS)
            entry = self._entry(store, file, EntryStatus.COMPLETED)
            VectorChunk.objects.create(team_id=self._team_id, store=store, entry=entry, position=0, text=content)
        broken = self._file("scan.pdf", b"%PDF-1.4 not really", Purpose.ASSISTANTS, "application/pdf")
        self._entry(store, broken, EntryStatus.FAILED)

    def _entry(self, store: VectorStore, file: File, status: EntryStatus) -> VectorStoreFile:
        failed = status == EntryStatus.FAILED
        return VectorStoreFile.objects.create(
            team_id=self._team_id,
            store=store,
            file=file,
            api_key=self._key,
            created_at=file.created_at,
            status=status,
            chunks=0 if failed else 1,
            usage_bytes=0 if failed else file.size,
            error_code="unsupported_file" if failed else "",
            error_message="The file is damaged." if failed else "",
        )

    def _batch(self) -> None:
        """Create a cancelled batch with its input file."""
        asked = [
            {"custom_id": f"line-{n}", "method": "POST", "url": "/v1/responses",
             "body": {"model": "atlas-mini", "input": self._picker.marked(question)}}
            for n, (question, _) in enumerate(texts.CHATS)
        ]  # fmt: skip
        lines = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in asked)
        given = self._file("requests.jsonl", lines, Purpose.BATCH, "application/jsonl")
        at = given.created_at
        Batch.objects.create(
            team_id=self._team_id,
            api_key=self._key,
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
        )
