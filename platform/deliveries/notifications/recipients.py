"""Recipients of notifications by mail: the choice of each member, else the default of their role."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.core.signing import BadSignature, Signer
from django.db.models import Q

from tenants import scope
from tenants.models import Membership, Role
from tenants.models.notifications import NotificationKind, NotificationPreference

_SIGNER = Signer(salt="deliveries.notifications.unsubscribe")
DEFAULT_ROLES: "dict[NotificationKind, frozenset[Role]]" = {
    kind: frozenset({Role.TEAM_LEAD}) for kind in NotificationKind
}
"""Roles that receive notifications of a kind unless the member has chosen otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Choice of a member to receive the notifications of one kind of one team by mail."""

    team_id: str
    team_name: str
    kind: NotificationKind
    by_mail: bool


def recipients(*, team_id: str, kind: NotificationKind) -> list[User]:
    """Return the active members with a mail address who receive notifications of this kind.

    Must run in a scope that sees the team.
    """
    defaults = Membership.objects.filter(team_id=team_id, role__in=DEFAULT_ROLES[kind])
    chosen = NotificationPreference.objects.filter(team_id=team_id, kind=kind)
    wanted = Q(pk__in=chosen.filter(by_mail=True).values("user")) | (
        Q(pk__in=defaults.values("user")) & ~Q(pk__in=chosen.filter(by_mail=False).values("user"))
    )
    people = User.objects.filter(wanted, is_active=True, memberships__team_id=team_id).exclude(email="")
    return list(people.order_by("pk"))


def choices_of(user: User) -> list[Choice]:
    """Return the choices of a user for all their teams, ordered by team and kind."""
    with scope.every_team():
        members = list(Membership.objects.filter(user=user).select_related("team").order_by("team__name"))
        chosen = {(row.team_id, row.kind): row.by_mail for row in NotificationPreference.objects.filter(user=user)}
    return [
        Choice(
            team_id=member.team_id,
            team_name=member.team.name,
            kind=kind,
            by_mail=chosen.get((member.team_id, kind.value), member.role in DEFAULT_ROLES[kind]),
        )
        for member in members
        for kind in NotificationKind
    ]


def set_choice(*, user_id: int, team_id: str, kinds: Sequence[NotificationKind], by_mail: bool) -> None:
    """Store whether a user wants the notifications of these kinds of a team by mail."""
    with scope.team(team_id):
        for kind in kinds:
            NotificationPreference.objects.update_or_create(
                user_id=user_id, team_id=team_id, kind=kind, defaults={"by_mail": by_mail}
            )


# -- the link in each mail ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Subscription of a user to the mails of a team, as a link to unsubscribe names it."""

    user_id: int
    team_id: str
    kind: NotificationKind


def sign(subscription: Subscription) -> str:
    """Return the token of a link to unsubscribe. It is always the same, and does not expire."""
    return _SIGNER.sign_object([subscription.user_id, subscription.team_id, subscription.kind.value])


def unsign(token: str) -> Subscription | None:
    """Return the subscription that a token names; None if its signature is wrong."""
    try:
        user_id, team_id, kind = _SIGNER.unsign_object(token)
        return Subscription(user_id=user_id, team_id=team_id, kind=NotificationKind(kind))
    except (BadSignature, ValueError):
        return None
