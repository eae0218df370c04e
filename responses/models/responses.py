"""Responses and everything that their runs store. Every table has row-level security (see the first migration).

A foreign key has no index of its own if a constraint or an index in `Meta` starts with its column, or if no query
filters by it, because every index makes each insert slower.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Self

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from typing_extensions import override

from core.clock import now
from core.db.json_text import WireField
from core.ids import created_near, new_id
from engine.events.compression import decompress
from responses.models.stored_request import restored_options, restored_parameters
from tenants.models import ApiKey, IdField, TeamRow
from tenants.prices import CostField


def response_id() -> str:
    """Return a new id of a response."""
    return new_id("resp")


class Status(models.TextChoices):
    """The statuses of a response, as in the API."""

    QUEUED = "queued", "Queued"
    IN_PROGRESS = "in_progress", "In progress"
    COMPLETED = "completed", "Completed"
    INCOMPLETE = "incomplete", "Incomplete"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


RUNNING = (Status.QUEUED, Status.IN_PROGRESS)


class Isolation(models.IntegerChoices):
    """The kind of process in which a background run continues after a process that executed it has died."""

    NONE = 0, "A worker"
    GROUP = 1, "A process with others whose worker died"
    ALONE = 2, "A process of its own"


SUSPENDED = 3
"""The isolation of a run that was suspended for a decision, until a worker continues it.

It is no kind of process. Workers of releases without decisions claim only runs whose isolation they know. They would
end this run, as one that needs the answer of the client.
"""

TERMINAL = (Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED)
UNSUCCESSFUL = (Status.INCOMPLETE, Status.FAILED, Status.CANCELLED)
IS_DUE = "(not_before IS NULL OR not_before <= now() OR lease_token > 1)"
"""SQL condition of runs that do not wait for the start within their completion window (`Response.planned_start`)."""


HAS_METADATA = ~Q(metadata={})
"""The condition of the metadata index. PostgreSQL uses the index only for queries with the same condition."""


def of_request(request_id: str) -> Q:
    """Return the condition for the responses that a request created."""
    # Request ids have no index, but they contain a time stamp, and there is an index on the creation time.
    near = created_near(request_id) if request_id.startswith("req_") else None
    return Q(pk__in=[]) if near is None else Q(created_at__range=near, request_id=request_id)


class Mode(models.TextChoices):
    """The ways in which a client receives a response."""

    JSON = "json", "JSON"
    STREAM = "stream", "Stream"


class Response(TeamRow):
    """A response: its request, the state of its run, and columns for all filters of lists.

    `parameters` holds the constant part of the response object, so that a retrieved response equals the streamed
    response. The items of a response are `conversations.Item` rows. The process that executes the run holds the lease.
    Its writes require the `lease_token`, so they fail if another process has incremented the token.
    """

    id = IdField(default=response_id)
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+", db_index=False)
    created_at = models.DateTimeField(default=now)
    mode = models.CharField(max_length=10, choices=Mode.choices)
    endpoint = models.CharField(max_length=40, default="responses", help_text="The endpoint that created it.")
    background = models.BooleanField(default=False, help_text="Executed by a worker, independently of the client.")
    stored = models.BooleanField(default=True, help_text="If not set, the row has no content and the API answers 404.")
    previous_response_id = models.CharField(max_length=64, null=True, blank=True, db_collation="C")
    conversation_id = models.CharField(max_length=64, null=True, blank=True, db_collation="C")
    # The chain of the response starts with the items of the conversation `history_id` before the position
    # `history_end`. If the response itself continues the conversation, these are the items that it has read.
    history_id = models.CharField(max_length=64, null=True, blank=True, db_collation="C")
    history_end = models.PositiveIntegerField(null=True)
    model = models.CharField(max_length=200)
    upstream_id = models.CharField(max_length=64)
    upstream_model = models.CharField(max_length=200)
    # `parameters` and `options` are stored in a shorter form, and `from_db` restores the full form (see
    # `responses.models.stored_request`). `WireField` keeps numbers as they were received.
    parameters = WireField(default=dict)
    options = models.JSONField(
        default=dict, help_text="Settings of the request that the response object does not contain."
    )
    metadata = models.JSONField(default=dict)
    end_user = models.CharField(max_length=128, null=True, blank=True)
    request_id = models.CharField(max_length=64, default="")
    client_request_id = models.CharField(max_length=512, default="", blank=True)

    # First words of the input, so that lists need not read items.
    input_preview = models.CharField(max_length=120, default="", blank=True)

    # The lease token counts the claims and is a fencing token for writes. The process that creates a response has the
    # first token.
    lease_owner = models.CharField(max_length=120, null=True, blank=True)
    lease_token = models.PositiveIntegerField(default=1)
    lease_until = models.DateTimeField(
        null=True, help_text="Expiry of the lease. A background run without one is queued."
    )
    attempt = models.PositiveIntegerField(default=0, help_text="Number of times that a worker started the run.")
    isolation = models.PositiveSmallIntegerField(
        choices=Isolation.choices,
        default=Isolation.NONE,
        db_default=Isolation.NONE,
        help_text="The process in which it continues after the death of one that ran it.",
    )
    not_before = models.DateTimeField(
        null=True, help_text="A background run waits until then for a cheaper time or for capacity within its limits."
    )
    needs_budget = models.DecimalField(
        null=True,
        max_digits=24,
        decimal_places=12,
        help_text="US dollars of a budget with which it need not wait until then; 0 if another limit blocks it.",
    )
    waits_until = models.DateTimeField(
        null=True, help_text="The run waits for decisions of people until then. No worker claims it meanwhile."
    )
    waits_since = models.DateTimeField(null=True, help_text="When the run began to wait for decisions of people.")
    waited_ms = models.PositiveBigIntegerField(
        null=True, help_text="How long the run has waited for decisions. Durations do not include it."
    )
    claims = models.JSONField(default=list, help_text="Time and worker of each claim.")
    handed_over_at = models.DateTimeField(
        null=True, help_text="When a stopping web process has left the run to the workers, which execute it since then."
    )
    followed_until = models.DateTimeField(
        null=True, help_text="Until then the run counts as followed by a client through its event log."
    )

    # The columns that change at the end of a run come last. If the old and the new version of a row are on the same
    # page, PostgreSQL logs only the bytes that differ (see `ROOM_FOR_UPDATES` in the migration).
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.IN_PROGRESS)
    service_tier = models.CharField(max_length=20, null=True, blank=True)
    secrets = models.TextField(
        default="", blank=True, help_text="Credentials that the run needs, encrypted. Erased when it ends."
    )
    output_preview = models.CharField(max_length=120, default="", blank=True)
    first_token_ms = models.PositiveIntegerField(null=True)
    duration_ms = models.PositiveIntegerField(null=True)
    completed_at = models.DateTimeField(null=True, help_text="Set if and only if the status is completed.")
    ended_at = models.DateTimeField(null=True)
    turns = models.PositiveIntegerField(default=0)
    tool_calls = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    cache_write_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    has_open_call = models.BooleanField(
        default=False, help_text="Ended by another process during a call whose usage is not recorded yet."
    )
    cost = CostField(null=True, help_text="In US dollars, as far as prices were known. Empty if none was.")
    spans = models.JSONField(default=list, help_text="What the run did outside of its turns, measured.")
    error = WireField(null=True)
    # Also in `error`; a column because lists filter by it.
    error_code = models.CharField(max_length=60, null=True, blank=True)
    incomplete_reason = models.CharField(max_length=40, null=True, blank=True)
    moderation = WireField(null=True, help_text="Moderation results for input and output.")

    class Meta:
        constraints = [
            # Some queries look at the status and others at the times, so both must agree.
            models.CheckConstraint(
                condition=Q(completed_at__isnull=False, status=Status.COMPLETED)
                | (Q(completed_at__isnull=True) & ~Q(status=Status.COMPLETED)),
                name="response_completed_at_iff_completed",
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=False, status__in=TERMINAL) | Q(ended_at__isnull=True, status__in=RUNNING),
                name="response_ended_iff_terminal",
            ),
        ]
        indexes = [
            # Without the id, which would add 90 bytes per response to the two indexes. It is needed only to sort
            # responses of the same microsecond, which PostgreSQL does after reading the index.
            models.Index(fields=["team", "created_at"], name="response_by_team_and_time"),
            models.Index(fields=["created_at"], name="response_by_time"),
            # For the successors of a response that is deleted.
            models.Index(
                fields=["previous_response_id"],
                condition=Q(previous_response_id__isnull=False),
                name="response_by_previous",
            ),
            models.Index(
                fields=["conversation_id", "created_at"],
                condition=Q(conversation_id__isnull=False),
                name="response_by_conversation",
            ),
            # For the sweeper. Only active responses are in this index and the next, so both stay small.
            models.Index(fields=["lease_until"], condition=Q(status__in=RUNNING), name="response_running_lease"),
            # For claims, which step from one team to the next. Runs that wait for a decision are not in the index, so
            # that claims do not read them. PostgreSQL would write `status__in` in another way after a dump.
            models.Index(
                fields=["team", "created_at"],
                condition=(Q(status=Status.QUEUED) | Q(status=Status.IN_PROGRESS))
                & Q(background=True, waits_until__isnull=True),
                name="response_claimable_by_team",
            ),
            # Workers search for such runs at each poll. This index is nearly always empty, so the search is fast.
            models.Index(
                fields=["handed_over_at"],
                condition=Q(status__in=RUNNING, handed_over_at__isnull=False),
                name="response_handed_over",
            ),
            # Partial, because a GIN index has an entry even for an empty document. Filters need the same condition.
            GinIndex(
                fields=["metadata"],
                opclasses=["jsonb_path_ops"],
                condition=HAS_METADATA,
                name="response_by_metadata",
            ),
            # For the filters of the response list. Without the first two, finding a rarely used key or model would
            # read the whole time range. The other three are partial: they contain only rare rows, so that ordinary
            # responses do not pay for them.
            models.Index(fields=["api_key", "created_at"], name="response_by_key_and_time"),
            models.Index(fields=["model", "created_at"], name="response_by_model_and_time"),
            models.Index(
                fields=["end_user", "created_at"],
                condition=Q(end_user__isnull=False),
                name="response_by_end_user",
            ),
            models.Index(
                fields=["error_code", "created_at"],
                condition=Q(error_code__isnull=False),
                name="response_by_error_code",
            ),
            models.Index(fields=["created_at"], condition=Q(status__in=UNSUCCESSFUL), name="response_unwell_by_time"),
        ]

    @override
    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **mode: Any) -> Self:
        response = super().from_db(db, field_names, values, **mode)
        loaded = response.__dict__
        if "parameters" in loaded:
            response.parameters = restored_parameters(loaded["parameters"], response_id=response.pk)
        if "options" in loaded:
            response.options = restored_options(loaded["options"])
        return response

    @property
    def awaits_decision(self) -> bool:
        """True while the run waits for a decision of a person. Its status is `in_progress`."""
        return self.waits_until is not None and self.ended_at is None

    @property
    def planned_start(self) -> datetime | None:
        """The start for which a run waits that no worker has claimed yet, as it is cheaper then; otherwise None."""
        waits = self.status == Status.QUEUED and self.not_before is not None and self.not_before > now()
        # A claimed run can only wait for its limits.
        return self.not_before if waits and self.lease_token == 1 else None

    @property
    def included(self) -> frozenset[str]:
        """The `include` values of the request."""
        return frozenset(self.options.get("include", ()))


class ConversationLock(TeamRow):
    """The lock on a conversation, held by the response that may continue the conversation.

    The lock exists until the run of its response ends. If the response is not stored yet, the lock is valid only until
    `until` (UTC). The rules are in `responses.runs.conversation_lock`.
    """

    conversation_id = IdField()
    response_id = models.CharField(max_length=64, db_collation="C")
    until = models.DateTimeField()

    class Meta:
        # The name of the table that the first releases created: raw SQL in `responses.runs` uses it.
        db_table = "responses_conversationhold"

    @override
    def __str__(self) -> str:
        return f"{self.conversation_id} by {self.response_id}"


class Turn(TeamRow):
    """One upstream call of a run."""

    # The foreign keys here and in `EventBatch` have no constraint in the database, whose check would lock the response
    # for every row. It is not needed: the guard of each write has already locked the response, so that it cannot be
    # deleted in the meantime.
    response = models.ForeignKey(
        Response, on_delete=models.CASCADE, related_name="turn_set", db_index=False, db_constraint=False
    )
    number = models.PositiveIntegerField()
    pk = models.CompositePrimaryKey("response_id", "number")
    state = models.CharField(max_length=20)
    started_at = models.DateTimeField()
    first_token_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    # The reason why the turn was discarded, and its items. Only the next turn reads them.
    discarded = models.JSONField(null=True)
    # The next two values are copied from the upstream and cut to fit into the columns.
    finish_reason = models.CharField(max_length=40, null=True)
    upstream_request_id = models.CharField(max_length=200, null=True)
    input_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    cache_write_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    # Other activities of the run, besides model and tool calls, since the previous turn (see `engine.spans`).
    spans = models.JSONField(default=list)

    @override
    def __str__(self) -> str:
        return f"{self.response_id} turn {self.number}"


NOT_TIMED = ("asked", "approved", "denied")
"""Statuses of the rows that ask for approval. The call itself has a row of its own."""


class ToolCall(TeamRow):
    """A tool call of a turn. It is executed by the server, or by the client, whose next request contains the output."""

    response = models.ForeignKey(Response, on_delete=models.CASCADE, related_name="tool_call_set", db_index=False)
    turn = models.PositiveIntegerField()
    call_id = models.CharField(max_length=64, db_collation="C")
    kind = models.CharField(max_length=40)
    name = models.CharField(max_length=200)
    # Text, not JSON: models also write arguments that are not valid JSON.
    arguments = models.TextField()
    output = models.TextField(null=True)
    status = models.CharField(max_length=20)
    attempt = models.PositiveIntegerField(default=1)
    error = models.TextField(null=True)
    # Data that a worker needs to resume the run, in addition to the output: a result that has no item yet, or the
    # position of an output that only the model reads.
    result = models.JSONField(null=True)
    # The items to show if the run ends before the call has its final item, and if the call may be repeated.
    if_ended = models.JSONField(null=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    waited_ms = models.PositiveBigIntegerField(
        null=True, help_text="How long it has waited for decisions of people. Durations do not include it."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["response", "turn", "call_id"], name="tool_call_once")]
        indexes = [
            models.Index(fields=["team", "started_at"], name="tool_call_by_team_and_time"),
            # For the search by call id in the console.
            models.Index(fields=["team", "call_id"], name="tool_call_by_call_id"),
            models.Index(fields=["started_at", "id"], name="tool_call_by_time"),
            models.Index(fields=["name", "started_at"], name="tool_call_by_name"),
            # Most calls are functions of clients. They are left out, because lists do not filter by this kind.
            models.Index(fields=["kind", "started_at"], condition=~Q(kind="function"), name="tool_call_hosted_by_kind"),
        ]

    @property
    def duration_ms(self) -> int | None:
        """Duration of an ended call without the time that a person took; None for a row that only asks for approval."""
        if self.ended_at is None or self.status in NOT_TIMED:
            return None
        # Never negative, although the clocks of different hosts may disagree slightly.
        took = round((self.ended_at - self.started_at).total_seconds() * 1000)
        return max(0, took - (self.waited_ms or 0))

    @override
    def __str__(self) -> str:
        return f"{self.name} {self.call_id}"


class EventBatch(TeamRow):
    """The events `first_sequence` to `last_sequence` of a run, as the bytes that clients receive.

    The primary key also protects the log: a run that lost its lease cannot append events at a position where the
    resumed run has already appended events.
    """

    response = models.ForeignKey(
        Response, on_delete=models.CASCADE, related_name="event_batches", db_index=False, db_constraint=False
    )
    first_sequence = models.PositiveIntegerField()
    pk = models.CompositePrimaryKey("response_id", "first_sequence")
    last_sequence = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=now)
    compressed = models.BinaryField()

    class Meta:
        verbose_name_plural = "event batches"

    @override
    def __str__(self) -> str:
        return f"{self.response_id} events {self.first_sequence}-{self.last_sequence}"

    @property
    def frames(self) -> bytes:
        """The events as server-sent events."""
        return decompress(self.compressed)


class CommitMark(models.Model):
    """The last group of changes that a process has committed; one row per process, without content.

    If the connection breaks before the commit is confirmed, the process reads the row to find out if the group was
    committed. `held` are the ids of the group whose guard was fulfilled.
    """

    writer = IdField()
    batch = models.PositiveBigIntegerField()
    held = ArrayField(models.TextField(), default=list)
    written_at = models.DateTimeField(default=now)

    @override
    def __str__(self) -> str:
        return f"{self.writer} {self.batch}"


class ChatCompletion(TeamRow):
    """A stored chat completion. `messages` are the messages of the request, unchanged. `body` is the answer.

    The body does not contain the metadata, which have their own column, because clients may update them.
    """

    id = IdField()
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    created_at = models.DateTimeField(default=now)
    model = models.CharField(max_length=200)
    metadata = models.JSONField(default=dict)
    messages = WireField(default=list)
    parameters = WireField(default=dict, help_text="The other parameters of the request.")
    body = WireField(default=dict)
    request_id = models.CharField(max_length=64, default="")

    class Meta:
        verbose_name = "chat completion"
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="chat_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="chat_by_time"),
            GinIndex(fields=["metadata"], opclasses=["jsonb_path_ops"], name="chat_by_metadata"),
        ]


def prompt_id() -> str:
    """Return a new id of a prompt."""
    return new_id("pmpt")


class PromptTemplate(TeamRow):
    """A prompt of a team, to which requests refer by its id. The content of a prompt is in its versions."""

    id = IdField(default=prompt_id)
    name = models.CharField(max_length=120)
    current = models.PositiveIntegerField(default=1, help_text="The version for requests that do not name one.")
    created_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        verbose_name = "prompt"
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="prompt_name_once_per_team")]

    @override
    def __str__(self) -> str:
        return self.name


class PromptVersion(TeamRow):
    """A version of a prompt; never changed. `{{name}}` in a message is a variable."""

    prompt = models.ForeignKey(PromptTemplate, on_delete=models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField()
    messages = models.JSONField(default=list)
    model = models.CharField(
        max_length=200, blank=True, default="", help_text="The model for requests that do not name one."
    )
    parameters = WireField(default=dict, help_text="Defaults for requests that do not set them.")
    created_at = models.DateTimeField(default=now)
    created_by = models.CharField(max_length=150, default="")

    class Meta:
        verbose_name = "prompt version"
        constraints = [models.UniqueConstraint(fields=["prompt", "number"], name="prompt_version_once")]

    @override
    def __str__(self) -> str:
        return f"{self.prompt_id} version {self.number}"
