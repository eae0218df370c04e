"""Models of teams, their members and staff."""

from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from typing_extensions import override

from core.clock import now
from core.ids import new_short_id


def team_id() -> str:
    """Return a new team id."""
    return new_short_id("team")


class IdField(models.CharField[str, str]):
    """A public id as primary key. The C collation makes ids of one kind sort by age on every server."""

    def __init__(self, **options: object) -> None:
        defaults = {"max_length": 64, "primary_key": True, "editable": False, "db_collation": "C"}
        super().__init__(**{**defaults, **options})  # type: ignore[arg-type]  # Django's stubs want literal keywords

    @override
    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        """Return a type name that differs from Django's."""
        # For `varchar` columns, Django creates a second index for LIKE, which is never used with ids.
        return f"character varying({self.max_length})"


class ToolKind(models.TextChoices):
    """Hosted tools, as permissions of teams and API keys."""

    ALL = "*", "All tools"
    WEB_SEARCH = "web_search", "Web search"
    FILE_SEARCH = "file_search", "File search"
    CODE_INTERPRETER = "code_interpreter", "Code interpreter"
    IMAGE_GENERATION = "image_generation", "Image generation"
    MCP = "mcp", "MCP servers"
    SHELL = "shell", "Shell in a container"


def _all_tools() -> list[str]:
    return [ToolKind.ALL.value]


class ToolKindsField(ArrayField[Any, Any]):
    """Allowed kinds of tools; an empty list allows none."""

    def __init__(self, **options: Any) -> None:
        kinds = models.CharField(max_length=40, choices=ToolKind.choices)
        super().__init__(**{"base_field": kinds, "default": _all_tools, "blank": True, **options})


class UnknownUsage(models.TextChoices):
    """Billing of a call whose upstream reported no usage, for example because its stream was interrupted."""

    ESTIMATE = "estimate", "Bill the estimate"
    FREE = "free", "Do not bill"


def validate_time_zone(name: str) -> None:
    """Raise `ValidationError` if there is no such time zone."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValidationError(f"Unknown time zone '{name}'.") from error


class ModelPolicy(models.TextChoices):
    """Meaning of a team's list of models."""

    NONE = "", "All models"
    ALLOW_LIST = "allow_list", "Only these models"
    DENY_LIST = "deny_list", "All but these models"


class Team(models.Model):
    """A tenant."""

    id = IdField(default=team_id)
    name = models.CharField(max_length=120, unique=True)
    created_at = models.DateTimeField(default=now, editable=False)
    disconnect_grace_seconds = models.PositiveIntegerField(
        default=30,
        null=True,
        blank=True,
        help_text="How long a stored run continues after the client has disconnected, in seconds. 0 stops it "
        "immediately; empty lets it finish.",
    )
    log_retention_hours = models.PositiveIntegerField(
        default=24, help_text="How long the events of a finished response can be replayed, in hours."
    )
    embedding_model = models.CharField(
        max_length=200,
        blank=True,
        default="",
        help_text="Model for vector stores. Empty means the EMBEDDING_MODEL of the server's configuration.",
    )
    image_model = models.CharField(
        max_length=200,
        blank=True,
        default="",
        help_text="Model for image requests that name none. Empty means the IMAGE_MODEL of the server's configuration.",
    )
    summary_model = models.CharField(
        "model for reasoning summaries",
        max_length=200,
        blank=True,
        default="",
        help_text="Model that summarizes raw reasoning for requests with reasoning.summary. Empty means the "
        "REASONING_SUMMARY_MODEL of the server's configuration; without either, the first sentences are the summary.",
    )
    tools = ToolKindsField(help_text="Hosted tools that the team may use.")
    reject_unavailable_tools = models.BooleanField(
        default=False,
        help_text="Reject requests with a hosted tool that this server cannot provide, such as web search without a "
        "search engine. Otherwise the tool is left out, unless the request forces it, and the answer has a warning.",
    )
    continue_without_mcp_servers = models.BooleanField(
        default=False,
        help_text="Continue a response without an MCP server whose tools cannot be listed. Otherwise the response "
        "fails, as at OpenAI.",
    )
    wait_for_approval = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Let background responses wait when a tool requires approval, until somebody decides here or through "
        "the API. Otherwise they complete with the approval request. Requests can choose.",
    )
    require_approval = ArrayField(
        models.CharField(max_length=200),
        blank=True,
        default=list,
        db_default=[],
        help_text="MCP tools whose calls always require approval, whatever the request says: names of tools, "
        "connectors, server labels or host names of servers, or * for all.",
    )
    model_policy = models.CharField(
        "model permissions", max_length=10, choices=ModelPolicy.choices, blank=True, default=ModelPolicy.NONE
    )
    model_names = ArrayField(
        models.CharField(max_length=200),
        blank=True,
        default=list,
        help_text="Models of the permissions above. Routes decide as well which models the team sees.",
    )
    allow_fallback_models = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Let a fallback model answer while all upstreams of the requested model fail. Otherwise the request "
        "fails.",
    )
    suspended_at = models.DateTimeField(null=True, blank=True, editable=False)
    full_text_search = models.BooleanField(
        default=True,
        help_text="Make message content searchable. Turning this off deletes the search index; turning it on again "
        "indexes only new content.",
    )
    time_zone = models.CharField(
        max_length=60,
        default="UTC",
        validators=[validate_time_zone],
        help_text="Time zone in which the days, weeks and months of budgets and reports begin, such as Europe/Berlin.",
    )
    weight = models.PositiveSmallIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text="Share of the team when teams compete for web processes and workers: 2 gets twice as much as 1.",
    )
    unknown_usage = models.CharField(
        "unknown usage",
        max_length=8,
        choices=UnknownUsage.choices,
        default=UnknownUsage.ESTIMATE,
        help_text="How calls are billed whose upstream reported no usage, such as streams that were cut.",
    )

    @override
    def __str__(self) -> str:
        return self.name


class TeamRow(models.Model):
    """A row of one team. Row-level security makes it visible only in a scope of the team or of all teams."""

    # No index: queries by team use the indexes that start with the team, which each table defines as it needs.
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)

    class Meta:
        abstract = True

    @override
    def __str__(self) -> str:
        return str(self.pk)


class Role(models.TextChoices):
    """Role of a member in a team."""

    TEAM_LEAD = "team_lead", "Team lead"
    DEVELOPER = "developer", "Developer"
    AUDITOR = "auditor", "Auditor"


class StaffRole(models.TextChoices):
    """Role of a staff member on the whole platform. Administrators are Django's superusers instead."""

    OPERATOR = "operator", "Operator"
    AUDITOR = "platform_auditor", "Platform auditor"


_CONTENT = "Read prompts, outputs, and the arguments and outputs of tools."


class StaffMember(models.Model):
    """Role of a user on the whole platform. Staff see every team."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, primary_key=True, on_delete=models.CASCADE, related_name="staff_member"
    )
    role = models.CharField(max_length=20, choices=StaffRole.choices, default=StaffRole.OPERATOR)
    view_content = models.BooleanField(default=False, help_text=f"{_CONTENT} Otherwise only after a reveal.")
    created_at = models.DateTimeField(default=now, editable=False)

    @override
    def __str__(self) -> str:
        return f"{self.user}, {self.get_role_display().lower()}"


class ListColumns(models.Model):
    """The columns that a user has chosen for a list of the console."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    name = models.CharField(max_length=40)
    columns = models.JSONField(default=list)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="list_columns_once")]

    @override
    def __str__(self) -> str:
        return f"{self.name} of {self.user}"


class Membership(models.Model):
    """Role of a user in a team."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role.choices, default=Role.DEVELOPER)
    view_content = models.BooleanField(
        null=True, blank=True, help_text=f"{_CONTENT} Unknown follows the role: auditors only after a reveal."
    )
    created_at = models.DateTimeField(default=now, editable=False)

    class Meta:
        verbose_name_plural = "members"
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="membership_once")]

    @override
    def __str__(self) -> str:
        return f"{self.user} in {self.team}"

    @property
    def reads_content(self) -> bool:
        """True if the member may read the team's content without a reveal."""
        return self.role != Role.AUDITOR if self.view_content is None else self.view_content


class Reveal(models.Model):
    """Temporary permission of a user to read a team's content, with the reason that the user gave."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="reveals", db_index=False)
    reason = models.CharField(max_length=500)
    revealed_at = models.DateTimeField(default=now)
    until = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["user", "until"], name="reveal_by_user")]

    @override
    def __str__(self) -> str:
        return f"{self.team} to {self.user} until {self.until:%H:%M}"
