"""Models of the tenancy. The first migration enables row-level security for all tables with a `team_id`."""

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from typing_extensions import override

from core.clock import now
from core.crypto import EncryptedTextField
from core.ids import new_id, new_short_id
from tenants.capabilities import CapabilityColumns
from tenants.models.backups import LastBackup
from tenants.models.limits import (
    END_USER_LENGTH,
    Budget,
    LimitEpoch,
    LimitSet,
    Period,
    RefusedRequest,
    RejectedRequest,
    Reservation,
    ReservationKind,
)
from tenants.models.notifications import (
    BudgetCheck,
    DeliveryState,
    MailDelivery,
    Notification,
    NotificationKind,
    NotificationPreference,
)
from tenants.models.organization import (
    ADMIN_KEY_PREFIX,
    AdminKey,
    AdminScope,
    Invite,
    ServiceAccount,
    admin_key_id,
    invite_id,
    service_account_id,
)
from tenants.models.teams import (
    IdField,
    ListColumns,
    Membership,
    ModelPolicy,
    Reveal,
    Role,
    StaffMember,
    StaffRole,
    Team,
    TeamRow,
    ToolKind,
    ToolKindsField,
    UnknownUsage,
    team_id,
)
from tenants.prices import MILLION, CostField, Dimension, PriceEntry, PriceList

# Django discovers models through this module, and other modules import all of them from here.
__all__ = [
    "ADMIN_KEY_PREFIX",
    "AdminKey",
    "AdminScope",
    "ApiKey",
    "AuditEvent",
    "AuditSeal",
    "Budget",
    "BudgetCheck",
    "Checker",
    "Connector",
    "ConnectorVisibility",
    "DeliveryState",
    "GuardAction",
    "Guardrail",
    "GuardrailDecision",
    "IdField",
    "Invite",
    "KeySource",
    "LastBackup",
    "LimitEpoch",
    "LimitSet",
    "ListColumns",
    "MailDelivery",
    "Membership",
    "Model",
    "ModelKey",
    "ModelPolicy",
    "ModelVisibility",
    "Notification",
    "NotificationKind",
    "NotificationPreference",
    "Period",
    "Price",
    "RefusedRequest",
    "RejectedRequest",
    "Reservation",
    "ReservationKind",
    "Reveal",
    "Role",
    "Scope",
    "SearchEngine",
    "SearchEngineVisibility",
    "SearchKind",
    "Serves",
    "ServiceAccount",
    "StaffMember",
    "StaffRole",
    "Team",
    "TeamRow",
    "ToolKind",
    "ToolKindsField",
    "UnknownUsage",
    "Upstream",
    "UsageRecord",
    "WireApi",
    "admin_key_id",
    "connector_id",
    "invite_id",
    "key_id",
    "search_engine_id",
    "service_account_id",
    "team_id",
    "upstream_id",
]  # fmt: skip


def key_id() -> str:
    """Return a new API key id."""
    return new_short_id("key")


def upstream_id() -> str:
    """Return a new upstream id."""
    return new_short_id("upst")


def connector_id() -> str:
    """Return a new connector id."""
    return new_id("cnct")


def search_engine_id() -> str:
    """Return a new search engine id."""
    return new_id("sengine")


class Scope(models.TextChoices):
    """Permissions of an API key. A request is answered with a 403 if the key lacks the scope of the endpoint."""

    ALL = "*", "All permissions"
    RESPONSES_READ = "responses.read", "Read responses"
    RESPONSES_WRITE = "responses.write", "Create responses"
    RESPONSES_DELETE = "responses.delete", "Delete responses"
    APPROVALS_WRITE = "approvals.write", "Decide about calls for which responses wait"
    CHAT_READ = "chat_completions.read", "Read stored chat completions"
    CHAT_WRITE = "chat_completions.write", "Create chat completions"
    CHAT_DELETE = "chat_completions.delete", "Delete stored chat completions"
    MODELS_READ = "models.read", "List models"
    EMBEDDINGS_WRITE = "embeddings.write", "Create embeddings"
    MODERATIONS_WRITE = "moderations.write", "Create moderations"
    IMAGES_WRITE = "images.write", "Create and edit images"
    AUDIO_WRITE = "audio.write", "Transcribe, translate and create audio"
    COMPLETIONS_WRITE = "completions.write", "Create completions"
    FILES_READ = "files.read", "Read files"
    FILES_WRITE = "files.write", "Upload and delete files"
    VECTOR_STORES_READ = "vector_stores.read", "Read and search vector stores"
    VECTOR_STORES_WRITE = "vector_stores.write", "Create and change vector stores"
    VECTOR_STORES_DELETE = "vector_stores.delete", "Delete vector stores"
    BATCHES_READ = "batches.read", "Read batches"
    BATCHES_WRITE = "batches.write", "Create and cancel batches"
    CONTAINERS_READ = "containers.read", "Read containers and their files"
    CONTAINERS_WRITE = "containers.write", "Create containers and upload files to them"
    CONTAINERS_DELETE = "containers.delete", "Delete containers and their files"
    SKILLS_READ = "skills.read", "Read skills"
    SKILLS_WRITE = "skills.write", "Create, change and delete skills"
    CONVERSATIONS_READ = "conversations.read", "Read conversations"
    CONVERSATIONS_WRITE = "conversations.write", "Create and change conversations"
    CONVERSATIONS_DELETE = "conversations.delete", "Delete conversations"
    WEBHOOKS_READ = "webhooks.read", "Read webhook endpoints"
    WEBHOOKS_WRITE = "webhooks.write", "Create, change and delete webhook endpoints"
    USAGE_READ = "usage.read", "Read usage and costs of the team"


def _all_scopes() -> list[str]:
    return [Scope.ALL.value]


class KeySource(models.TextChoices):
    """Origin of an API key."""

    PERSON = "person", "Created by a person"
    PLAYGROUND = "playground", "Created for the playground"


class ApiKey(models.Model):
    """An API key of a team. Only its HMAC is stored; `prefix` and `last_four` let people recognize it.

    After a rotation, the HMAC of the old secret is kept as well and works until `old_until`.
    """

    id = IdField(default=key_id)
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=120)
    purpose = models.CharField(max_length=500, blank=True, default="", help_text="Purpose of the key, and a contact.")
    source = models.CharField(max_length=12, choices=KeySource.choices, default=KeySource.PERSON, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    prefix = models.CharField(max_length=24, editable=False)
    last_four = models.CharField(max_length=4, editable=False)
    scopes = ArrayField(models.CharField(max_length=40), default=_all_scopes)
    allowed_models = ArrayField(
        models.CharField(max_length=200),
        null=True,
        blank=True,
        help_text="Leave empty to allow all models of the team.",
    )
    # The list of tools of the team restricts this list further.
    tools = ToolKindsField(help_text="Hosted tools that the key may use, as far as the team may use them.")
    created_at = models.DateTimeField(default=now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    service_account = models.ForeignKey(
        ServiceAccount, null=True, blank=True, on_delete=models.SET_NULL, editable=False, related_name="api_keys"
    )
    expires_at = models.DateTimeField(null=True, blank=True)
    allowed_addresses = ArrayField(
        models.CharField(max_length=50), null=True, blank=True, help_text="Leave empty to allow any IP address."
    )
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_address = models.CharField(max_length=50, blank=True, default="", editable=False)
    last_used_agent = models.CharField(max_length=200, blank=True, default="", editable=False)
    rotated_at = models.DateTimeField(null=True, blank=True, editable=False)
    old_digest = models.CharField(max_length=64, null=True, blank=True, editable=False)
    old_name = models.CharField(max_length=40, blank=True, default="", editable=False)
    old_until = models.DateTimeField(null=True, blank=True, editable=False)
    old_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "API key"
        constraints = [
            models.UniqueConstraint(fields=["digest"], name="api_key_digest_once"),
            models.UniqueConstraint(fields=["old_digest"], name="api_key_old_digest_once"),
        ]
        indexes = [models.Index(fields=["team", "created_at"], name="api_key_by_team")]

    @override
    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…{self.last_four})"


class WireApi(models.TextChoices):
    """API of an upstream."""

    CHAT_COMPLETIONS = "chat_completions", "Chat completions"
    RESPONSES = "responses", "Responses"


class Upstream(models.Model):
    """A server that serves models."""

    id = IdField(default=upstream_id)
    name = models.CharField(max_length=120, unique=True)
    base_url = models.URLField(help_text="Up to and including /v1.")
    wire_api = models.CharField(
        max_length=20,
        choices=WireApi.choices,
        default=WireApi.CHAT_COMPLETIONS,
        help_text="API that the upstream offers.",
    )
    api_key = EncryptedTextField(blank=True, default="", help_text="Encrypted at rest and never shown again.")
    is_default = models.BooleanField(
        default=False, help_text="Preferred if several upstreams serve a model with the same priority."
    )
    region = models.CharField(
        max_length=40, blank=True, default="", db_default="", help_text="Where the server is, for people only."
    )
    created_at = models.DateTimeField(default=now, editable=False)

    @override
    def __str__(self) -> str:
        return self.name


class Serves(models.TextChoices):
    """Requests that a target takes. Flex requests are lines of batches, and requests with the service tier `flex`.

    Priority requests are those with the service tier `priority`.
    """

    ALL = "all", "All requests"
    DEFAULT = "default", "All but flex requests"
    FLEX = "flex", "Flex requests"
    PRIORITY = "priority", "Priority requests"


def validate_metadata(value: object) -> None:
    """Raise `ValidationError` if a value is not an object of strings."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValidationError('Enter a JSON object of strings, such as {"tier": "gold"}.')


MAX_TARGET_LIMIT = 100_000_000
"""Largest limit of a target for which the arithmetic of the script in Redis is exact."""


def _target_limit(help_text: str) -> "models.PositiveIntegerField[int | None, int | None]":
    bounds = [MinValueValidator(1), MaxValueValidator(MAX_TARGET_LIMIT)]
    return models.PositiveIntegerField(null=True, blank=True, validators=bounds, help_text=help_text)


class Model(CapabilityColumns):
    """A public model name and an upstream that serves it. The name `*` stands for all names without their own row.

    Rows with the same name are the targets of one public model.
    """

    name = models.CharField(max_length=200, help_text="Name that clients use, or * for every other name.")
    upstream = models.ForeignKey(Upstream, on_delete=models.CASCADE, related_name="models")
    upstream_model = models.CharField(
        max_length=200, blank=True, default="", help_text="Name of the model at the upstream, if it differs."
    )
    teams = models.ManyToManyField(
        Team, through="ModelVisibility", blank=True, help_text="Teams that may use the model. Empty means every team."
    )
    enabled = models.BooleanField(default=True)
    priority = models.SmallIntegerField(
        default=0,
        db_default=0,
        help_text="If several upstreams serve the model, those with the lowest number are used first.",
    )
    weight = models.PositiveSmallIntegerField(
        default=1,
        db_default=1,
        help_text="Share of the requests among upstreams of the same priority. With 0, it gets no new requests.",
    )
    fallback_for = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="Name of the model that this model replaces while all its upstreams fail.",
    )
    serves = models.CharField(
        max_length=8,
        choices=Serves.choices,
        default=Serves.ALL,
        db_default=Serves.ALL.value,
        help_text="Flex requests are lines of batches and requests with the service tier flex, priority requests those "
        "with the service tier priority. They are sent to upstreams for them first.",
    )
    requests_per_minute = _target_limit("HTTP requests to the upstream for this model, by all processes together.")
    tokens_per_minute = _target_limit("Input and output together.")
    concurrent_requests = _target_limit("Requests that are in progress.")
    keys = models.ManyToManyField(
        ApiKey,
        through="ModelKey",
        blank=True,
        related_name="+",
        help_text="API keys whose requests are sent here. Empty means every key.",
    )
    only_metadata = models.JSONField(
        "metadata",
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        validators=[validate_metadata],
        help_text='Pairs that the metadata of a request must have, such as {"tier": "gold"}. Empty means none.',
    )
    shutdown_date = models.DateField(
        null=True,
        blank=True,
        help_text="Announced end of the model, which clients see in the list of models. Empty means none. It has no "
        "other effect.",
    )
    created_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "upstream"], name="model_once_per_upstream")]

    @override
    def __str__(self) -> str:
        return f"{self.name} → {self.upstream}"

    @override
    def clean(self) -> None:
        """Check that a fallback model has a name of its own."""
        if self.fallback_for and self.name in {"*", self.fallback_for}:
            raise ValidationError({"fallback_for": "A model cannot be the fallback of itself, and * of no model."})

    def prices(self) -> PriceList:
        """Return the prices of the model, in the order of their creation. One query, unless they were prefetched."""
        return PriceList(row.entry() for row in sorted(self.price_entries.all(), key=lambda row: row.pk))


_HOURS = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"


class Price(models.Model):
    """An entry (`PriceEntry`) of the price list of a model or, if `model` is null, of the platform's hosted tools."""

    model = models.ForeignKey(Model, null=True, blank=True, on_delete=models.CASCADE, related_name="price_entries")
    dimension = models.CharField(max_length=30, choices=Dimension.choices, default=Dimension.INPUT)
    amount = models.DecimalField(
        max_digits=20, decimal_places=10, validators=[MinValueValidator(0)], help_text="US dollars."
    )
    per = models.PositiveIntegerField(
        "per",
        default=MILLION,
        choices=[(1, "1"), (60, "60 (minute)"), (1000, "1,000"), (3600, "3,600 (hour)"), (MILLION, "million")],
        help_text="Number of tokens, characters, calls or seconds that cost this amount.",
    )
    currency = models.CharField(max_length=3, default="USD", choices=[("USD", "USD")], editable=False)
    tool = models.CharField(
        max_length=100, blank=True, default="", help_text="Tool whose calls have this price. Empty means any tool."
    )
    service_tier = models.CharField(
        max_length=40,
        blank=True,
        default="",
        help_text="Tier that the upstream reports. Empty applies to every tier without its own price.",
    )
    batch = models.BooleanField(default=False, help_text="Applies to calls of the upstream's batch API.")
    above_tokens = models.PositiveIntegerField(
        default=0, help_text="Applies to calls with more input tokens than this, for all their tokens."
    )
    cache_seconds = models.PositiveIntegerField(
        default=0, help_text="Duration of the cache writes that have this price. 0 means any."
    )
    hours = models.CharField(
        max_length=11,
        blank=True,
        default="",
        validators=[RegexValidator(_HOURS, "Enter hours such as 16:30-00:30.")],
        help_text="Time of the day in UTC, such as 16:30-00:30. Empty means always.",
    )
    valid_from = models.DateTimeField(null=True, blank=True, help_text="Empty means always.")
    source = models.CharField(max_length=40, default="entered", help_text="Where the price comes from.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "model", "dimension", "tool", "service_tier", "batch", "above_tokens", "cache_seconds", "hours",
                    "valid_from",
                ],
                name="price_once",
                nulls_distinct=False,
                violation_error_message="There is a price for this dimension and these conditions already.",
            ),
            models.CheckConstraint(condition=models.Q(amount__gte=0, per__gt=0), name="price_not_negative"),
        ]  # fmt: skip

    @override
    def __str__(self) -> str:
        return self.get_dimension_display()

    def entry(self) -> PriceEntry:
        """Return the row as a value."""
        return PriceEntry(
            dimension=self.dimension,
            amount=self.amount,
            per=self.per,
            tool=self.tool,
            service_tier=self.service_tier,
            batch=self.batch,
            above_tokens=self.above_tokens,
            cache_seconds=self.cache_seconds,
            hours=self.hours,
            valid_from=self.valid_from,
            source=self.source,
            currency=self.currency,
        )


class _WithTeams(models.Manager[Any]):
    """Reads permissions with their teams, so that pages that list thousands of them have one query."""

    @override
    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().select_related("team")


class TeamPermission(models.Model):
    """Permission of one team to use an object. An object without such rows may be used by every team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE)

    objects = _WithTeams()

    class Meta:
        abstract = True
        # Django lists what it deletes with this manager.
        base_manager_name = "objects"

    @override
    def __str__(self) -> str:
        return str(self.team)


class ModelVisibility(TeamPermission):
    """Permission of one team to use a model."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE)

    class Meta(TeamPermission.Meta):
        constraints = [models.UniqueConstraint(fields=["model", "team"], name="model_visibility_once")]


class ModelKey(models.Model):
    """Restriction of a model's target to an API key."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE)
    # Without its last key, the target would take the requests of every key.
    api_key = models.ForeignKey(ApiKey, on_delete=models.PROTECT, related_name="+")

    class Meta:
        verbose_name = "API key"
        constraints = [models.UniqueConstraint(fields=["model", "api_key"], name="model_key_once")]

    @override
    def __str__(self) -> str:
        return str(self.api_key)


class Connector(models.Model):
    """An MCP server that requests select by `connector_id`. Operators enter its URL, which may be a private address."""

    id = IdField(default=connector_id)
    name = models.CharField(max_length=64, unique=True, help_text="Value of connector_id in requests.")
    title = models.CharField(max_length=120)
    url = models.CharField(max_length=2000)
    authorization = EncryptedTextField(
        blank=True,
        default="",
        help_text="Bearer token for requests that send none. Encrypted at rest and never shown again.",
    )
    teams = models.ManyToManyField(
        Team,
        through="ConnectorVisibility",
        blank=True,
        help_text="Teams that may use the connector. Empty means every team.",
    )
    require_approval = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Require approval for each call of its tools, whatever the request says.",
    )
    wait_for_approval = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Let background responses wait when one of its tools requires approval. Otherwise they complete with "
        "the approval request. Requests can choose.",
    )
    honours_effect_ids = models.BooleanField(
        "honours effect ids",
        default=False,
        db_default=False,
        help_text="The tools of the server act only once for calls with the same effect id. "
        "Calls that were interrupted may then be repeated.",
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=now, editable=False)

    @override
    def __str__(self) -> str:
        return self.name


class ConnectorVisibility(TeamPermission):
    """Permission of one team to use a connector."""

    connector = models.ForeignKey(Connector, on_delete=models.CASCADE)

    class Meta(TeamPermission.Meta):
        constraints = [models.UniqueConstraint(fields=["connector", "team"], name="connector_visibility_once")]


class SearchKind(models.TextChoices):
    """API of a search engine."""

    SEARXNG = "searxng", "SearXNG"
    TAVILY = "tavily", "Tavily"
    BRAVE = "brave", "Brave"


class SearchEngine(models.Model):
    """A search engine for web search.

    An engine restricted to a team takes precedence over an engine for all teams, and both over the setting SEARXNG_URL.
    """

    id = IdField(default=search_engine_id)
    name = models.CharField(max_length=64, unique=True)
    kind = models.CharField(max_length=20, choices=SearchKind.choices, default=SearchKind.SEARXNG)
    base_url = models.CharField(
        max_length=2000, blank=True, default="", help_text="Address of the engine. Empty means the public service."
    )
    api_key = EncryptedTextField(blank=True, default="", help_text="Encrypted at rest and never shown again.")
    teams = models.ManyToManyField(
        Team,
        through="SearchEngineVisibility",
        blank=True,
        help_text="Teams that may use the search engine. Empty means every team.",
    )
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        verbose_name = "search engine"
        # An empty address means the public service of the engine, and SearXNG has none.
        constraints = [
            models.CheckConstraint(
                condition=~models.Q(kind=SearchKind.SEARXNG, base_url=""), name="search_engine_searxng_has_address"
            )
        ]

    @override
    def __str__(self) -> str:
        return self.name


class SearchEngineVisibility(TeamPermission):
    """Permission of one team to use a search engine."""

    engine = models.ForeignKey(SearchEngine, on_delete=models.CASCADE)

    class Meta(TeamPermission.Meta):
        constraints = [models.UniqueConstraint(fields=["engine", "team"], name="search_engine_visibility_once")]


class Checker(models.TextChoices):
    """Method of checking the input or output of a team's responses."""

    NONE = "", "None"
    MODEL = "model", "Moderation model"
    HOOK = "hook", "HTTP hook"


class GuardAction(models.TextChoices):
    """Action on flagged content."""

    BLOCK = "block", "Block"
    SCORE = "score", "Log only"


class Guardrail(models.Model):
    """Settings of the checks that the input and output of a team's responses must pass, whatever requests ask for."""

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="guardrail", primary_key=True)
    input_checker = models.CharField(max_length=10, choices=Checker.choices, blank=True, default=Checker.NONE)
    input_action = models.CharField(max_length=10, choices=GuardAction.choices, default=GuardAction.BLOCK)
    output_checker = models.CharField(max_length=10, choices=Checker.choices, blank=True, default=Checker.NONE)
    output_action = models.CharField(max_length=10, choices=GuardAction.choices, default=GuardAction.BLOCK)
    model = models.CharField(max_length=200, blank=True, default="", help_text="Model that checks the content.")
    hook_url = models.CharField(
        max_length=2000, blank=True, default="", help_text="URL that receives the content to check."
    )
    hook_secret = EncryptedTextField(
        blank=True, default="", help_text="Sent as a bearer token. Encrypted at rest and never shown again."
    )
    fails_open = models.BooleanField(
        default=False,
        help_text="Allow content if a check fails with an error. If off, it is blocked where the action is to block.",
    )
    created_at = models.DateTimeField(default=now, editable=False)

    @override
    def __str__(self) -> str:
        return f"guardrail of {self.team}"


class GuardrailDecision(models.Model):
    """Result of a guardrail check of an input or output. Append-only.

    `response_id` is not a foreign key, because no response is created if its input is blocked.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    occurred_at = models.DateTimeField(default=now)
    response_id = models.CharField(max_length=64, db_collation="C")
    stage = models.CharField(max_length=10, choices=[("input", "Input"), ("output", "Output")])
    checker = models.CharField(max_length=10, choices=Checker.choices)
    outcome = models.CharField(
        max_length=10,
        # The former name of the field: a renamed column would break the previous release during a rolling update.
        db_column="verdict",
        choices=[("passed", "Passed"), ("noted", "Noted"), ("blocked", "Blocked"), ("failed", "Check failed")],
    )
    blocked = models.BooleanField(default=False)
    categories = models.JSONField(default=list)
    reason = models.CharField(max_length=500, blank=True, default="")
    request_id = models.CharField(max_length=64, default="")

    class Meta:
        verbose_name = "guardrail decision"
        indexes = [models.Index(fields=["team", "occurred_at"], name="guardrail_decision_by_time")]

    @override
    def __str__(self) -> str:
        return f"{self.stage} of {self.response_id}: {self.outcome}"


OUTCOME_TONES = {
    "stop": "success",
    "length": "warning",
    "content_filter": "warning",
    "discarded": "warning",
    "failed": "danger",
}
"""Colours of the outcomes of upstream calls in the console."""


class UsageRecord(models.Model):
    """Usage of one upstream call, or of one hosted tool call that has a cost.

    `input_tokens` includes cached tokens. The table is partitioned by time, so no foreign key may refer to it.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    occurred_at = models.DateTimeField(default=now)
    endpoint = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64, db_collation="C", help_text="Id of the response or chat completion.")
    turn = models.PositiveIntegerField(default=0)
    model = models.CharField(max_length=200)
    upstream_id = models.CharField(max_length=64)
    upstream_model = models.CharField(max_length=200)
    outcome = models.CharField(max_length=20)
    input_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    cache_write_tokens = models.PositiveIntegerField(default=0)
    cache_write_1h_tokens = models.PositiveIntegerField(default=0, help_text="Included in the cache writes.")
    input_audio_tokens = models.PositiveIntegerField(default=0)
    input_image_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    output_audio_tokens = models.PositiveIntegerField(default=0)
    output_image_tokens = models.PositiveIntegerField(default=0)
    audio_seconds = models.FloatField(default=0, help_text="Audio that was transcribed or translated.")
    characters = models.PositiveIntegerField(default=0, help_text="Text that was spoken.")
    images = models.PositiveIntegerField(default=0, help_text="Images that were generated.")
    batch = models.BooleanField(default=False, help_text="The call was made for a line of a batch.")
    # The end user whose budget counts the cost.
    end_user = models.CharField(max_length=END_USER_LENGTH, default="", db_collation="C")
    estimated = models.BooleanField(default=False, help_text="The upstream reported no usage; estimated.")
    service_tier = models.CharField(max_length=40, default="", help_text="Tier that the upstream reported.")
    cost = CostField(null=True, help_text="US dollars; empty if no price was known.")
    budget_cost = CostField(
        null=True,
        editable=False,
        help_text="What hard budgets count instead of the cost: of a call that was lost with its process, all that it "
        "had reserved.",
    )
    prices = models.JSONField(null=True, help_text="Prices that were applied, with quantities and conditions.")
    duration_ms = models.PositiveIntegerField(default=0)
    request_id = models.CharField(max_length=64, default="")
    upstream_request_id = models.CharField(max_length=200, default="", help_text="The upstream's x-request-id.")
    failed_targets = models.JSONField(
        null=True, help_text="Targets that failed in the same call, for calls that have no timeline."
    )
    failure = models.JSONField(
        null=True, help_text="Details of the request that failed, for operators and for calls that have no timeline."
    )

    class Meta:
        verbose_name_plural = "usage records"
        indexes = [
            models.Index(fields=["team", "occurred_at"], name="usage_by_team_and_time"),
            models.Index(fields=["occurred_at"], name="usage_by_time"),
            models.Index(fields=["object_id"], name="usage_by_object"),
            models.Index(
                fields=["team", "end_user", "occurred_at"], name="usage_by_end_user", condition=~models.Q(end_user="")
            ),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.object_id} turn {self.turn}"


class AuditEvent(models.Model):
    """A line of the audit log. Append-only; `before` and `after` never contain secrets.

    A line about several teams has no `team`, but their ids in `team_ids`. Each of these teams sees it.
    """

    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    team_ids = ArrayField(models.CharField(max_length=64), null=True)
    occurred_at = models.DateTimeField(default=now)
    actor = models.CharField(max_length=120, help_text="user:…, key:… or system")
    action = models.CharField(max_length=60)
    target = models.CharField(max_length=120)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, default="")
    address = models.GenericIPAddressField(null=True)
    agent = models.CharField(max_length=200, default="", help_text="User-Agent header of the request.")

    class Meta:
        verbose_name_plural = "audit log"
        indexes = [
            models.Index(fields=["team", "occurred_at"], name="audit_by_team_and_time"),
            models.Index(fields=["occurred_at"], name="audit_by_time"),
            models.Index(fields=["target"], name="audit_by_target"),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"


class AuditSeal(models.Model):
    """A digest over a range of lines of the audit log and over the previous seal (`tenants.audit_seals`)."""

    sealed_at = models.DateTimeField(default=now)
    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField(unique=True)
    lines = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)

    @override
    def __str__(self) -> str:
        return f"lines {self.first_id} to {self.last_id}"
