"""Invitations: links with which people create their accounts. There is no other way to sign up.

The link is the signed id of the invitation. So it can be shown again while the invitation is pending, and it stops
working when the invitation is accepted or deleted, or expires.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.contrib.auth.models import User
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse

from core.clock import now
from tenants import scope
from tenants.audit import audit
from tenants.members import add_member, role_of
from tenants.models import Invite, Team

LIFETIME = timedelta(days=7)
# In a URL, a colon would be escaped.
_SIGNER = Signer(sep="~", salt="tenants.invitations")


class EmailTaken(Exception):
    """A user has the e-mail address already."""


class NotPending(Exception):
    """The invitation was accepted or deleted, or has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRole:
    """A team of an invitation, and the user's role in the team by its name in the admin API."""

    team: Team
    role: str


def status_of(invite: Invite) -> str:
    """Return `accepted`, `expired` or `pending`."""
    if invite.accepted_at is not None:
        return "accepted"
    return "expired" if invite.expires_at <= now() else "pending"


def create_invite(*, email: str, projects: Iterable[ProjectRole], actor: str) -> Invite:
    """Invite a person. Raises `EmailTaken`."""
    if User.objects.filter(email__iexact=email).exists():
        raise EmailTaken
    with scope.every_team():
        at = now()
        roles = [{"id": project.team.pk, "role": project.role} for project in projects]
        invite = Invite.objects.create(email=email, projects=roles, created_at=at, expires_at=at + LIFETIME)
        after = {"email": email, "role": "reader", "projects": roles}
        audit(team_id=_only_team(invite), actor=actor, action="invite.sent", target=invite.pk, after=after)
    return invite


def delete_invite(*, invite: Invite, actor: str) -> None:
    """Delete an invitation, so that its link stops working. Raises `NotPending` if the invitation was accepted."""
    with scope.every_team():
        if not Invite.objects.filter(pk=invite.pk, accepted_at=None).delete()[0]:
            raise NotPending
        before = {"email": invite.email}
        audit(team_id=_only_team(invite), actor=actor, action="invite.deleted", target=invite.pk, before=before)


def pending_of(team: Team) -> QuerySet[Invite]:
    """Return the pending invitations to this team and to no other, newest first: those that its leads manage."""
    pending = Invite.objects.filter(accepted_at=None, expires_at__gt=now())
    return pending.filter(projects__contains=[{"id": team.pk}], projects__1__isnull=True).order_by("-created_at", "-pk")


def path_of(invite: Invite) -> str:
    """Return the path of the page that accepts an invitation. Its secret part is the signature."""
    return reverse("account_invitation", args=[_SIGNER.sign(invite.pk)])


def find_by_token(token: str) -> Invite | None:
    """Return the pending invitation of a link, or None."""
    try:
        invite_id = _SIGNER.unsign(token)
    except BadSignature:
        return None
    invite = Invite.objects.filter(pk=invite_id).first()
    return invite if invite is not None and status_of(invite) == "pending" else None


def find_pending(addresses: Iterable[str]) -> Invite | None:
    """Return the newest pending invitation of one of these verified e-mail addresses, or None."""
    wanted = {address.casefold() for address in addresses if address}
    pending = Invite.objects.filter(accepted_at=None, expires_at__gt=now()).order_by("-created_at")
    return next((invite for invite in pending if invite.email.casefold() in wanted), None)


def accept(invite: Invite, *, values: Mapping[str, str]) -> User:
    """Create the account of an invitation and add it to the teams. `values` are username, names and password.

    Raises `NotPending` if the invitation was accepted or deleted meanwhile, or has expired.
    """
    with transaction.atomic():
        user = User(
            username=values["username"],
            first_name=values.get("first_name", ""),
            last_name=values.get("last_name", ""),
            email=invite.email,
            is_staff=True,
        )
        user.set_password(values["password"])
        user.save()
        join(invite, user)
        with scope.every_team():
            actor, after = f"user:{user.get_username()}", {"by": "invitation", "email": user.email}
            audit(team_id=None, actor=actor, action="user.created", target=actor, after=after)
    return user


def join(invite: Invite, user: User) -> None:
    """Mark an invitation as accepted by a new user and add the user to its teams.

    Deletes all other invitations of the same e-mail address, so that the address gets only one account. Raises
    `NotPending`.
    """
    actor = f"user:{user.get_username()}"
    with scope.every_team():
        # Always locked in the same order, as two invitations of one address may be accepted at the same time.
        same_address = Invite.objects.select_for_update().filter(email__iexact=invite.email, accepted_at=None)
        duplicates = [row for row in same_address.order_by("pk") if row.pk != invite.pk]
        # Conditional update: of two people with the same link, one creates an account.
        pending = Invite.objects.filter(pk=invite.pk, accepted_at=None, expires_at__gt=now())
        if not pending.update(accepted_at=now(), accepted_by=user):
            raise NotPending
        after = {"email": invite.email}
        audit(team_id=_only_team(invite), actor=actor, action="invite.accepted", target=invite.pk, after=after)
        # The other invitations are deleted and not accepted: they may be for other teams, and the holder of this link
        # may not have received their links.
        for duplicate in duplicates:
            delete_invite(invite=duplicate, actor=actor)
        # Teams that were archived or deleted since then are left out.
        teams = Team.objects.filter(suspended_at=None).in_bulk([project["id"] for project in invite.projects])
        for project in invite.projects:
            if (team := teams.get(project["id"])) is not None:
                add_member(team=team, user=user, role=role_of(project["role"]), actor=actor)


def _only_team(invite: Invite) -> str | None:
    # The team's leads see the audit lines of an invitation to it, but not of one that also names other teams.
    return str(invite.projects[0]["id"]) if len(invite.projects) == 1 else None
