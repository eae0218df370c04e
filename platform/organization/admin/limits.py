"""Limits in the console: a tab of the team's page, and the page on which they are changed."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse
from django.utils.http import urlencode

from core.errors import LimitsUnavailable
from limits import services, status_sync
from organization.admin.keys import may_manage_key
from organization.admin.limit_forms import LimitsForm, described, limit_label
from organization.admin.team_tabs import tab, tab_url
from tenants import scope
from tenants.console.roles import EVERY_ROLE, LEADS, OPERATORS
from tenants.console.site import page, render
from tenants.console.viewer import Viewer
from tenants.directory import subject_limits
from tenants.models import ApiKey, LimitSet, Team
from tenants.models.limits import END_USER_LENGTH, EVERY_END_USER
from tenants.principal import Principal

MAX_SUBJECTS = 200
# Maximum number of end users with meters. Each of them takes a round trip to Redis.
_MAX_METERED_USERS = 20


def limits_url(team_id: str, **subject: str) -> str:
    """Return the URL of the page with the limits of a team, a `key` or an `end_user`."""
    query = f"?{urlencode(subject)}" if subject else ""
    return f"{reverse('console:limits', args=[team_id])}{query}"


def subject_name(found: LimitSet) -> str:
    """Return the name of a subject of limits, as lists show it."""
    if found.api_key_id and found.api_key is not None:
        return f"Key {found.api_key.name} ({found.api_key.prefix}…{found.api_key.last_four})"
    if found.end_user == EVERY_END_USER:
        return "Every other end user"
    return f"End user {found.end_user}" if found.end_user else "Team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The current use of one limit of a subject. `key` distinguishes the meter from the team's other meters."""

    key: str
    label: str
    text: str
    percent: int

    @property
    def tone(self) -> str:
        """The colour of the bar."""
        return "bad" if self.percent >= 100 else "warn" if self.percent >= 80 else "good"


def meters_of(team: Team, found: Sequence[LimitSet]) -> dict[int, list[Meter]]:
    """Return the meters of a team's subjects by the primary key of their limits; empty if Redis does not respond.

    The limits for every end user (`*`) have no meters, because they apply to each end user separately.
    """
    shared = [limit_set for limit_set in found if not limit_set.end_user]
    users = [limit_set for limit_set in found if limit_set.end_user not in {"", EVERY_END_USER}][:_MAX_METERED_USERS]
    caller = Principal(
        team_id=team.pk,
        key_id="",
        scopes=frozenset(),
        allowed_models=None,
        tools=frozenset(),
        expires_at=None,
        grace_seconds=None,
        limits=tuple(map(subject_limits, shared)),
        limits_some_end_users=bool(users),
        time_zone=team.time_zone,
    )
    try:
        states = {"": status_sync(caller)} if shared else {}
        states |= {
            limit_set.end_user: status_sync(replace(caller, limits=()), limit_set.end_user) for limit_set in users
        }
    except LimitsUnavailable:
        return {}
    meters: dict[tuple[str, str], list[Meter]] = defaultdict(list)
    for state in states.values():
        for use in state.limits:
            used = use.value - use.remaining
            meters[use.subject, use.subject_id].append(
                Meter(
                    key=f"{use.subject}/{use.subject_id}/{use.limit}",
                    label=limit_label(use.limit),
                    text=f"{used:,} of {use.value:,}",
                    percent=round(100 * used / use.value) if use.value else 100,
                )
            )
        for budget in state.budgets:
            taken = budget.spent + budget.reserved
            meters[budget.subject, budget.subject_id].append(
                Meter(
                    key=f"{budget.subject}/{budget.subject_id}/{budget.period}",
                    label=f"budget per {budget.period}",
                    text=f"${taken:,.4f} of ${budget.amount.normalize():f}",
                    percent=round(100 * taken / budget.amount) if budget.amount else 100,
                )
            )
    return {
        limit_set.pk: meters.get((subject.kind, subject.id), [])
        for limit_set in found
        for subject in [subject_limits(limit_set)]
    }


@page("limits/<team_id>/meters/", name="limit_meters", viewers=EVERY_ROLE)
def meters(request: HttpRequest, viewer: Viewer, team_id: str) -> JsonResponse:
    """Return the meters of a team's limits, which its page polls."""
    team = viewer.teams().filter(pk=team_id).first()
    if team is None:
        raise Http404
    found = list(_limit_sets(team)[:MAX_SUBJECTS])
    shown = [meter for group in meters_of(team, found).values() for meter in group]
    rows = [
        {"key": meter.key, "text": meter.text, "percent": min(meter.percent, 100), "tone": meter.tone}
        for meter in shown
    ]
    return JsonResponse({"meters": rows})


def _limit_sets(team: Team) -> "QuerySet[LimitSet]":
    found = LimitSet.objects.filter(team=team).select_related("api_key").prefetch_related("budgets")
    # The team first, then its keys, then its end users.
    return found.order_by(F("api_key__name").asc(nulls_first=True), "end_user", "pk")


@tab("limits", title="Limits", template="admin/tenants/team/limits.html")
def limits_of(viewer: Viewer, team: Team) -> dict[str, Any]:
    """Return the context of the limits tab: all subjects of the team that have limits."""
    rows = list(_limit_sets(team)[: MAX_SUBJECTS + 1])
    live = meters_of(team, rows[:MAX_SUBJECTS])
    own = next((row for row in rows if not row.api_key_id and not row.end_user), None)
    others = [row for row in rows[:MAX_SUBJECTS] if row is not own]
    may_edit = viewer.may(LEADS | OPERATORS, team)

    def edit_url(row: LimitSet) -> str:
        if row.api_key_id:
            return limits_url(team.pk, key=row.api_key_id)
        return limits_url(team.pk, end_user=row.end_user)

    return {
        "own": described(own) if own is not None else [],
        "own_meters": live.get(own.pk, []) if own is not None else [],
        "meters_url": reverse("console:limit_meters", args=[team.pk]) if live else "",
        "edit_url": limits_url(team.pk) if may_edit else "",
        "rows": [
            {
                "name": subject_name(row),
                "url": edit_url(row) if may_edit else "",
                "limits": ", ".join(described(row)) or "none",
                "meters": live.get(row.pk, []),
            }
            for row in others
        ],
        "is_cut": len(rows) > MAX_SUBJECTS,
        "most": MAX_SUBJECTS,
        "user_url": reverse("console:limits", args=[team.pk]),
        "every_user_url": limits_url(team.pk, end_user=EVERY_END_USER),
        "end_user_length": END_USER_LENGTH,
    }


@page("limits/<team_id>/", name="limits", viewers=EVERY_ROLE)
def edit_limits(request: HttpRequest, viewer: Viewer, team_id: str) -> HttpResponse:
    """Show the form of the limits of a team, a key (`key`) or an end user (`end_user`); on POST, store them."""
    team = viewer.teams().filter(pk=team_id).first()
    if team is None:
        raise Http404
    key_id, end_user = request.GET.get("key", ""), request.GET.get("end_user", "").replace("\0", "")[:END_USER_LENGTH]
    api_key = None
    if key_id:
        api_key = ApiKey.objects.filter(Q(pk=key_id) & Q(team=team)).select_related("team").first()
        if api_key is None:
            raise Http404
        end_user = ""
    if not (may_manage_key(viewer, api_key) if api_key is not None else viewer.may(LEADS | OPERATORS, team)):
        raise PermissionDenied
    found = services.find_limit_set(team=team, api_key=api_key, end_user=end_user)
    # Operators set the limits of a team, and its leads may only lower them. Leads set the limits of a key, and its
    # developer may only lower them.
    may_raise = viewer.may(LEADS | OPERATORS if api_key is not None or end_user else OPERATORS, team)
    form = LimitsForm(request.POST or None, found=found, may_raise=may_raise)
    back = reverse("admin:tenants_apikey_change", args=[api_key.pk]) if api_key else tab_url(team, "limits")
    name = f"the key {api_key.name}" if api_key else _end_user_name(end_user) if end_user else f"the team {team.name}"
    if request.method == "POST" and form.is_valid():
        with scope.team(team.pk):
            form.save(team=team, api_key=api_key, end_user=end_user, actor=viewer.actor)
        messages.success(request, f"The limits of {name} were saved. They apply everywhere within two seconds.")
        return HttpResponseRedirect(back)
    return render(
        request,
        "console/limits.html",
        title=f"Limits of {name}",
        form=form,
        back=back,
        may_raise=may_raise,
        is_key=api_key is not None,
        is_fullwidth=False,
    )


def _end_user_name(end_user: str) -> str:
    return "every end user without limits of its own" if end_user == EVERY_END_USER else f"the end user {end_user}"
