"""The user of the console with their roles. Read once per request or WebSocket, so that checks need no queries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allauth.account.authentication import get_authentication_records
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.models import User as DjangoUser
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from core.clock import now
from core.db.row_security import EVERY_TEAM
from tenants import scope
from tenants.console.roles import EVERY_ROLE, Roles
from tenants.models import Membership, Reveal, Role, StaffMember, StaffRole, Team

User = DjangoUser | AnonymousUser


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A user with their roles. `reading` contains the ids of teams whose content they may read; `*` is every team."""

    user_id: int = 0
    name: str = ""
    is_administrator: bool = False
    staff: StaffRole | None = None
    roles: Mapping[str, Role] = field(default_factory=dict)
    reading: frozenset[str] = frozenset()

    @property
    def sees_every_team(self) -> bool:
        """True if rows of all teams may be shown."""
        return self.is_administrator or self.staff is not None

    @property
    def visible_teams(self) -> list[str]:
        """The team ids for row-level security."""
        return [EVERY_TEAM] if self.sees_every_team else [*self.roles]

    @property
    def actor(self) -> str:
        """The user as recorded in the audit log."""
        return f"user:{self.name}"

    def team_ids(self, roles: Roles = EVERY_ROLE) -> list[str] | None:
        """Return the ids of the teams in which the user has one of these roles; None means every team."""
        if self.is_administrator or self.staff in roles:
            return None
        return [team_id for team_id, role in self.roles.items() if role in roles]

    def teams(self, roles: Roles = EVERY_ROLE) -> QuerySet[Team]:
        """Return the teams in which the user has one of these roles, ordered by name."""
        teams, ids = Team.objects.order_by("name"), self.team_ids(roles)
        return teams if ids is None else teams.filter(pk__in=ids)

    def may(self, roles: Roles, row: Model | None = None) -> bool:
        """Return true if the user has one of these roles in the team of `row`. Administrators always pass.

        Without a row, a role in any team suffices. For a row without a team, only administrators and staff pass.
        """
        ids = self.team_ids(roles)
        if ids is None:
            return True
        return bool(ids) if row is None else (row.pk if isinstance(row, Team) else getattr(row, "team_id", None)) in ids

    def may_read(self, team_id: str) -> bool:
        """Return true if the content of this team may be shown."""
        return EVERY_TEAM in self.reading or team_id in self.reading


def read_viewer(user: User) -> Viewer:
    """Read the roles of a user. The viewer is empty for users who are not signed in or may not use the admin."""
    # `is_staff` is Django's permission to sign in to the admin, and not a role of the platform.
    if not (user.is_authenticated and user.is_active and user.is_staff):
        return Viewer()
    # Every team: row-level security is later derived from the viewer.
    with scope.every_team():
        memberships = list(Membership.objects.filter(user=user))
        roles = {row.team_id: Role(row.role) for row in memberships}
        if user.is_superuser:
            everything = frozenset([EVERY_TEAM])
            return Viewer(
                user_id=user.pk, name=user.get_username(), is_administrator=True, roles=roles, reading=everything
            )
        staff = StaffMember.objects.filter(user=user).first()
        revealed = Reveal.objects.filter(user=user, until__gt=now()).values_list("team_id", flat=True)
        reading = {*revealed, *(row.team_id for row in memberships if row.reads_content)}
    if staff is not None and staff.view_content:
        reading.add(EVERY_TEAM)
    return Viewer(
        user_id=user.pk,
        name=user.get_username(),
        staff=StaffRole(staff.role) if staff else None,
        roles=roles,
        reading=frozenset(reading),
    )


def viewer_of(request: HttpRequest) -> Viewer:
    """Return the viewer of a request, cached on the request."""
    cache: Any = request
    if not isinstance(getattr(cache, "viewer", None), Viewer):
        cache.viewer = read_viewer(request.user)
    found: Viewer = cache.viewer
    return found


def lacks_second_factor(request: HttpRequest) -> bool:
    """Return true for signed-in users who must add a second factor before they may use the admin."""
    if not (settings.REQUIRE_SECOND_FACTOR and request.user.is_authenticated):
        return False
    # Users who signed in through the OpenID Connect provider authenticate fully there.
    methods = {record["method"] for record in get_authentication_records(request, request.user)}
    return "socialaccount" not in methods and not is_mfa_enabled(request.user)
