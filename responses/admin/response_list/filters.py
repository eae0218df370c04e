# mypy: allow-subclassing-any
"""The filters of the list of responses.

Each says what it wants as a condition, and whether an index leads to it (`leads`): of those that are set, one is looked
up, and the others look through what it leads to, up to a bound (`responses.admin.response_list.changelist`).
"""

from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from typing import Any

from django.db import connection
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from typing_extensions import override
from unfold.contrib.filters.admin import (
    AutocompleteSelectFilter,
    DropdownFilter,
    MultipleChoicesDropdownFilter,
    TextFilter,
)

from console.widgets import made_at
from responses.admin.response_list.time_range import Span, near
from responses.models import RUNNING, UNWELL, Mode, ToolCall
from tenants.console.roles import everywhere, teams_of

NEWEST_CALLS = 5_000
"""How many of a tool's calls are looked at, from the newest on."""


class Lead(IntEnum):
    """How far an index takes a filter: the first of those that are set is looked up."""

    RUNNING = 0
    REQUEST = 1
    CONVERSATION = 2
    ERROR = 3
    END_USER = 4
    METADATA = 5
    TOOL = 6
    KEY = 7
    STATUS = 8
    MODEL = 9
    TEAM = 10


_RUNNING, _UNWELL = ({status.value for status in kind} for kind in (RUNNING, UNWELL))


class Narrowing:
    """A filter that is a condition. Mixed into Unfold's, before them."""

    leads: Lead | None = None
    value: Callable[[], Any]  # what is chosen; Unfold's

    def condition(self, span: Span) -> Q | None:
        """What rows must be like; None where the filter is not set."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Nothing: the list asks for the conditions, and looks by them."""
        return queryset


class Words(Narrowing, TextFilter):
    """A text box that wants the exact value of a column."""

    column = ""

    @override
    def condition(self, span: Span) -> Q | None:
        value = (self.value() or "").strip().replace("\x00", "")
        return self.wanted(value, span) if value else None

    def wanted(self, value: str, span: Span) -> Q:
        """What rows with this value are like."""
        return Q(**{self.column: value})


class Choice(Narrowing, DropdownFilter):
    """A choice among conditions."""

    choices_of: tuple[tuple[str, str], ...] = ()

    @override
    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return self.choices_of

    @override
    def condition(self, span: Span) -> Q | None:
        chosen = self.value()
        return self.wanted(chosen) if chosen in dict(self.choices_of) else None

    def wanted(self, chosen: str) -> Q:
        """What rows of this choice are like."""
        raise NotImplementedError


class ByTeam(Narrowing, AutocompleteSelectFilter):
    """The rows of a team."""

    leads = Lead.TEAM

    @override
    def condition(self, span: Span) -> Q | None:
        return Q(team_id=self.value()) if self.value() else None


class ByKey(Narrowing, AutocompleteSelectFilter):
    """What was asked with a key."""

    leads = Lead.KEY

    @override
    def condition(self, span: Span) -> Q | None:
        return Q(api_key_id=self.value()) if self.value() else None


class ByStatus(Narrowing, MultipleChoicesDropdownFilter):
    """The rows in one of some states. Those that ended well are no rarity, and have no index."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = set(self.value() or ())
        is_running, is_unwell = chosen <= _RUNNING, chosen <= _UNWELL
        self.leads = None if not chosen else Lead.RUNNING if is_running else Lead.STATUS if is_unwell else None

    @override
    def condition(self, span: Span) -> Q | None:
        return Q(status__in=self.value()) if self.value() else None


class ByModel(Words):
    """The model that was asked for."""

    title, parameter_name, column, leads = "model", "model", "model", Lead.MODEL


class ByErrorCode(Words):
    """Why it failed."""

    title, parameter_name, column, leads = "error code", "error_code", "error_code", Lead.ERROR


class ByConversation(Words):
    """The responses of one conversation."""

    title, parameter_name, column, leads = "conversation id", "conversation", "conversation_id", Lead.CONVERSATION


class ByEndUser(Words):
    """Whom the client named as its user."""

    title, parameter_name, column, leads = "end user", "end_user", "end_user", Lead.END_USER


class ByRequest(Words):
    """The HTTP request that made it. Request ids have no index, but they tell their time, which has one."""

    title, parameter_name, leads = "request id", "request", Lead.REQUEST

    @override
    def wanted(self, value: str, span: Span) -> Q:
        moment = made_at(value) if value.startswith("req_") else None
        return Q(created_at__range=near(moment), request_id=value) if moment else Q(pk__in=[])


class ByMetadata(Words):
    """A pair of the metadata. Its index is of use behind row-level security where the server's superuser has vouched
    for the comparison (`launcher.database`)."""

    title, parameter_name = "metadata (key=value)", "metadata"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.value() and _containment_is_leakproof():
            self.leads = Lead.METADATA

    @override
    def wanted(self, value: str, span: Span) -> Q:
        key, equals, wanted = value.partition("=")
        return Q(metadata__contains={key.strip(): wanted.strip()}) if equals else Q(metadata__has_key=value)


class ByMode(Choice):
    """How the client waited for its answer."""

    title, parameter_name = "mode", "mode"
    choices_of = (("sync", "Sync"), ("stream", "Stream"), ("background", "Background"))

    @override
    def wanted(self, chosen: str) -> Q:
        if chosen == "background":
            return Q(background=True)
        return Q(background=False, mode=Mode.STREAM if chosen == "stream" else Mode.JSON)


class InConversation(Choice):
    """Whether it continues a conversation."""

    title, parameter_name = "in a conversation", "in_conversation"
    choices_of = (("yes", "Yes"), ("no", "No"))

    @override
    def wanted(self, chosen: str) -> Q:
        return Q(conversation_id__isnull=chosen == "no")


class Least(Choice):
    """A column that is at least this."""

    column = ""

    @override
    def wanted(self, chosen: str) -> Q:
        return Q(**{f"{self.column}__gte": int(chosen)})


class LeastDuration(Least):
    """It took at least so long, in milliseconds."""

    title, parameter_name, column = "latency", "least_ms", "duration_ms"
    choices_of = tuple(
        (str(seconds * 1000), f"{seconds} s or more" if seconds < 60 else f"{seconds // 60} min or more")
        for seconds in (1, 3, 10, 30, 60, 300, 1800)
    )


_TOKENS = tuple((str(count), f"{count:,} or more") for count in (1_000, 10_000, 50_000, 100_000, 500_000))


class LeastInput(Least):
    """So many tokens went in."""

    title, parameter_name, column, choices_of = "tokens in", "least_input", "input_tokens", _TOKENS


class LeastOutput(Least):
    """So many tokens came out."""

    title, parameter_name, column, choices_of = "tokens out", "least_output", "output_tokens", _TOKENS


class LeastCost(Least):
    """It cost at least so many US dollars."""

    title, parameter_name, column = "cost", "least_cost", "cost"
    choices_of = tuple((step, f"${step} or more") for step in ("0.001", "0.01", "0.1", "1", "10"))

    @override
    def wanted(self, chosen: str) -> Q:
        return Q(cost__gte=Decimal(chosen))


class _ByCall(Words):
    """What called a tool, by way of the newest calls of that."""

    leads = Lead.TOOL

    @override
    def wanted(self, value: str, span: Span) -> Q:
        calls = ToolCall.objects.filter(**{self.column: value})
        if not everywhere(span.request):
            calls = calls.filter(team_id__in=teams_of(span.request))
        if span.since is not None:
            calls = calls.filter(started_at__gte=span.since)
        if span.until is not None:
            calls = calls.filter(started_at__lte=span.until + span.longest_run)
        return Q(pk__in=calls.order_by("-started_at").values("response_id")[:NEWEST_CALLS])


class ByToolKind(_ByCall):
    """What kind of tool it called."""

    title, parameter_name, column = "tool type", "tool_type", "kind"


class ByToolName(_ByCall):
    """Which tool it called."""

    title, parameter_name, column = "tool name", "tool", "name"


SIMPLE: tuple[type[Words | Choice], ...] = (
    ByModel,
    ByMode,
    ByErrorCode,
    ByToolKind,
    ByToolName,
    InConversation,
    ByConversation,
    ByEndUser,
    ByMetadata,
    LeastDuration,
    LeastInput,
    LeastOutput,
    LeastCost,
    ByRequest,
)
"""The filters that are no column of a form of Django's, as they stand beside the list."""


def _containment_is_leakproof() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT bool_and(proleakproof) FROM pg_proc WHERE proname = 'jsonb_contains'")
        return bool(cursor.fetchone()[0])
