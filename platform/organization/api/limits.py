"""Rate limits, spend limit and spend alert of a project: the limits and monthly budgets of its team.

OpenAI limits each model of a project. Here the limits of a team cover all of its models together, so there is one rate
limit, of the model `*`.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import Sum
from pydantic import Field

from core.clock import now
from core.errors import Conflict, InvalidValue, NotFound
from core.http.endpoints import Endpoint
from core.http.objects import ListPage
from core.http.pagination import Page, PageRequest, page_argument
from core.http.wire import Wire
from deliveries.notifications import set_choice
from deliveries.notifications.recipients import recipients
from limits import services
from organization.api import objects
from organization.api.lookup import get_project
from tenants import scope
from tenants.models import AdminScope, Budget, Membership, NotificationKind, Period, Team, UsageRecord
from tenants.views import ApiRequest, ApiView

# The SDK's types have no value for "no limit".
UNLIMITED = 2_147_483_647
_MOST = 100_000_000
RATE_LIMIT_ID = "rl-all-models"
_COLUMNS = {
    "max_requests_per_1_minute": "requests_per_minute",
    "max_tokens_per_1_minute": "tokens_per_minute",
    "max_requests_per_1_day": "requests_per_day",
}
# Budgets are exact up to 900,000 dollars.
_Cents = Annotated[int, Field(ge=1, le=90_000_000)]


class UpdateRateLimit(Wire):
    """Body of a request to change the rate limit of a project. 2147483647 removes a limit."""

    max_requests_per_1_minute: Annotated[int, Field(ge=1, le=UNLIMITED)] | None = None
    max_tokens_per_1_minute: Annotated[int, Field(ge=1, le=UNLIMITED)] | None = None
    max_requests_per_1_day: Annotated[int, Field(ge=1, le=UNLIMITED)] | None = None


class UpdateSpendLimit(Wire):
    """Body of a request to set the spend limit of a project."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: _Cents


class NotificationChannel(Wire):
    """Receivers of a spend alert."""

    type: Literal["email"]
    recipients: Annotated[list[str], Field(min_length=1, max_length=100)]


class SetSpendAlert(Wire):
    """Body of a request to create or change the spend alert of a project."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: _Cents
    notification_channel: NotificationChannel


# -- rate limits -------------------------------------------------------------------------------------------------------


def public_rate_limit(team: Team) -> objects.ProjectRateLimit:
    """Return the `project.rate_limit` object of a team."""
    found = services.find_limit_set(team=team)

    def limit(name: str) -> int:
        value = getattr(found, _COLUMNS[name], None)
        return UNLIMITED if value is None else int(value)

    return {
        "id": RATE_LIMIT_ID,
        "object": "project.rate_limit",
        "model": "*",
        "max_requests_per_1_minute": limit("max_requests_per_1_minute"),
        "max_tokens_per_1_minute": limit("max_tokens_per_1_minute"),
        "max_requests_per_1_day": limit("max_requests_per_1_day"),
    }


class RateLimitsView(ApiView, path="organization/projects/<project_id>/rate_limits"):
    """Rate limits of a project."""

    @Endpoint(
        AdminScope.LIMITS_READ,
        "List the rate limits of a project",
        query=(page_argument(default=100),),
        note="one, for all models together; 2147483647 means no limit",
    )
    def get(self, request: ApiRequest, project_id: str, page: PageRequest) -> ListPage[objects.ProjectRateLimit]:
        team = get_project(project_id)
        for param, cursor in (("after", page.after), ("before", page.before)):
            if cursor not in {None, RATE_LIMIT_ID}:
                raise NotFound(f"No such rate limit: {cursor}", param=param)
        rows = [] if page.after or page.before else [team]
        return Page(rows=rows, has_more=False).as_list(present=public_rate_limit)


class RateLimitView(ApiView, path="organization/projects/<project_id>/rate_limits/<rate_limit_id>"):
    """The rate limit of a project."""

    @Endpoint(
        AdminScope.LIMITS_WRITE,
        "Change a rate limit of a project",
        body=UpdateRateLimit,
        note="limits of the team; takes effect within two seconds",
    )
    def post(
        self, request: ApiRequest, project_id: str, rate_limit_id: str, body: UpdateRateLimit
    ) -> objects.ProjectRateLimit:
        team = get_project(project_id)
        if rate_limit_id != RATE_LIMIT_ID:
            raise NotFound(f"No such rate limit: {rate_limit_id}")
        given = {name: value for name in _COLUMNS if (value := getattr(body, name)) is not None}
        for name, value in given.items():
            if _MOST < value < UNLIMITED:
                raise InvalidValue(
                    f"Invalid '{name}': expected at most {_MOST}, or {UNLIMITED} for no limit.", param=name
                )
        values = {_COLUMNS[name]: None if value == UNLIMITED else value for name, value in given.items()}
        if values:
            services.set_limits(team=team, values=values, actor=request.principal.actor)
        return public_rate_limit(team)


# -- the spend limit: the hard monthly budget --------------------------------------------------------------------------


def _budget(team: Team, *, is_hard: bool) -> Budget | None:
    found = services.find_limit_set(team=team)
    budgets = found.budgets.all() if found else []
    return next((budget for budget in budgets if budget.period == Period.MONTH and budget.is_hard is is_hard), None)


def _cents(amount: Decimal) -> int:
    # The console allows fractions of a cent. Rounded down, as the team cannot spend more than the budget.
    return int(amount * 100)


def _spent(team: Team) -> Decimal:
    """Return the team's spending since its month began, in US dollars."""
    local = now().astimezone(ZoneInfo(team.time_zone))
    since: datetime = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    with scope.team(team.pk):
        found = UsageRecord.objects.filter(team=team, occurred_at__gte=since).aggregate(sum=Sum("cost"))
    return found["sum"] or Decimal()


def _public_spend_limit(team: Team) -> objects.ProjectSpendLimit:
    budget = _budget(team, is_hard=True)
    if budget is None:
        raise NotFound("The project has no spend limit.")
    return {
        "object": "project.spend_limit",
        "currency": "USD",
        "interval": "month",
        "threshold_amount": _cents(budget.amount),
        "enforcement": {"status": "enforcing" if _spent(team) >= budget.amount else "inactive"},
    }


class SpendLimitView(ApiView, path="organization/projects/<project_id>/spend_limit"):
    """The spend limit of a project."""

    @Endpoint(
        AdminScope.LIMITS_READ,
        "Retrieve the spend limit of a project",
        note="the hard monthly budget of the team; months begin in its time zone",
    )
    def get(self, request: ApiRequest, project_id: str) -> objects.ProjectSpendLimit:
        return _public_spend_limit(get_project(project_id))

    @Endpoint(
        AdminScope.LIMITS_WRITE,
        "Set the spend limit of a project",
        body=UpdateSpendLimit,
        note="in cents, up to 90,000,000",
    )
    def post(self, request: ApiRequest, project_id: str, body: UpdateSpendLimit) -> objects.ProjectSpendLimit:
        team = get_project(project_id)
        amount = Decimal(body.threshold_amount) / 100
        services.set_budget(team=team, period=Period.MONTH, amount=amount, actor=request.principal.actor)
        return _public_spend_limit(team)

    @Endpoint(AdminScope.LIMITS_WRITE, "Delete the spend limit of a project")
    def delete(self, request: ApiRequest, project_id: str) -> objects.DeletedProjectSpendLimit:
        team = get_project(project_id)
        _public_spend_limit(team)
        services.set_budget(team=team, period=Period.MONTH, amount=None, actor=request.principal.actor)
        return {"object": "project.spend_limit.deleted", "deleted": True}


# -- the spend alert: the soft monthly budget --------------------------------------------------------------------------


def _public_alert(team: Team, budget: Budget) -> objects.ProjectSpendAlert:
    with scope.team(team.pk):
        people = recipients(team_id=team.pk, kind=NotificationKind.BUDGET_ALERT)
    return {
        "id": _alert_id(team),
        "object": "project.spend_alert",
        "currency": "USD",
        "interval": "month",
        "threshold_amount": _cents(budget.amount),
        "notification_channel": {"type": "email", "recipients": [person.email for person in people]},
    }


def _alert_id(team: Team) -> str:
    return f"alert_{team.pk.removeprefix('team_')}"


def _find_alert(team: Team, alert_id: str, *, param: str | None = None) -> Budget:
    budget = _budget(team, is_hard=False)
    if budget is None or alert_id != _alert_id(team):
        raise NotFound(f"No such spend alert: {alert_id}", param=param)
    return budget


def _set_alert(request: ApiRequest, team: Team, body: SetSpendAlert) -> objects.ProjectSpendAlert:
    wanted = set()
    with scope.team(team.pk):
        people = Membership.objects.filter(team=team, user__is_active=True).select_related("user")
        members = {member.user.email.casefold(): member.user_id for member in people if member.user.email}
    for index, address in enumerate(body.notification_channel.recipients):
        param = f"notification_channel.recipients[{index}]"
        try:
            validate_email(address)
        except ValidationError as error:
            raise InvalidValue(f"Invalid '{param}': '{address}' is not an e-mail address.", param=param) from error
        if address.casefold() not in members:
            raise InvalidValue(f"Invalid '{param}': '{address}' belongs to no user of the project.", param=param)
        wanted.add(members[address.casefold()])
    with scope.team(team.pk):
        budget = services.set_budget(
            team=team,
            period=Period.MONTH,
            amount=Decimal(body.threshold_amount) / 100,
            is_hard=False,
            alert_percents=[100],
            actor=request.principal.actor,
        )
        for member in members.values():
            kinds = [NotificationKind.BUDGET_ALERT]
            set_choice(user_id=member, team_id=team.pk, kinds=kinds, by_mail=member in wanted)
    if budget is None:
        raise NotFound("The spend alert was deleted.")
    return _public_alert(team, budget)


class SpendAlertsView(ApiView, path="organization/projects/<project_id>/spend_alerts"):
    """Spend alerts of a project."""

    @Endpoint(
        AdminScope.LIMITS_WRITE,
        "Create the spend alert of a project",
        body=SetSpendAlert,
        errors=(400, 401, 403, 404, 409, 413),
        note="one per project: the soft monthly budget of the team; recipients are users of the project",
    )
    def post(self, request: ApiRequest, project_id: str, body: SetSpendAlert) -> objects.ProjectSpendAlert:
        team = get_project(project_id)
        if _budget(team, is_hard=False) is not None:
            raise Conflict("The project has a spend alert already. Change it instead.")
        return _set_alert(request, team, body)

    @Endpoint(AdminScope.LIMITS_READ, "List the spend alerts of a project", query=(page_argument(),))
    def get(self, request: ApiRequest, project_id: str, page: PageRequest) -> ListPage[objects.ProjectSpendAlert]:
        team = get_project(project_id)
        for param, cursor in (("after", page.after), ("before", page.before)):
            if cursor is not None:
                _find_alert(team, cursor, param=param)
        budget = None if page.after or page.before else _budget(team, is_hard=False)
        found = Page(rows=[budget] if budget else [], has_more=False)
        return found.as_list(present=lambda alert: _public_alert(team, alert))


class SpendAlertView(ApiView, path="organization/projects/<project_id>/spend_alerts/<alert_id>"):
    """The spend alert of a project."""

    @Endpoint(AdminScope.LIMITS_READ, "Retrieve a spend alert of a project")
    def get(self, request: ApiRequest, project_id: str, alert_id: str) -> objects.ProjectSpendAlert:
        team = get_project(project_id)
        return _public_alert(team, _find_alert(team, alert_id))

    @Endpoint(
        AdminScope.LIMITS_WRITE,
        "Change a spend alert of a project",
        body=SetSpendAlert,
        note="users who are not recipients are no longer notified of budgets of the project",
    )
    def post(
        self, request: ApiRequest, project_id: str, alert_id: str, body: SetSpendAlert
    ) -> objects.ProjectSpendAlert:
        team = get_project(project_id)
        _find_alert(team, alert_id)
        return _set_alert(request, team, body)

    @Endpoint(AdminScope.LIMITS_WRITE, "Delete a spend alert of a project")
    def delete(self, request: ApiRequest, project_id: str, alert_id: str) -> objects.DeletedProjectSpendAlert:
        team = get_project(project_id)
        _find_alert(team, alert_id)
        options: dict[str, Any] = {"is_hard": False, "actor": request.principal.actor}
        services.set_budget(team=team, period=Period.MONTH, amount=None, **options)
        return {"id": alert_id, "object": "project.spend_alert.deleted", "deleted": True}
