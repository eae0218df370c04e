"""Functions that change the members of a team. None of them removes the last lead."""

from typing import Any

from django.contrib.auth.models import User

from tenants import scope
from tenants.audit import audit
from tenants.models import Membership, Role, Team

# The admin API has OpenAI's roles; `auditor` exists only here.
_PUBLIC_ROLES = {Role.TEAM_LEAD.value: "owner", Role.DEVELOPER.value: "member", Role.AUDITOR.value: "auditor"}


class LastLead(Exception):
    """The change would leave the team without a lead."""


def public_role(role: str) -> str:
    """Return the name of a role in the admin API: `owner` for leads, `member` for developers, or `auditor`."""
    return _PUBLIC_ROLES[role]


def role_of(name: str) -> Role:
    """Return the role with this name in the admin API."""
    return next(Role(role) for role, public in _PUBLIC_ROLES.items() if public == name)


def user_id(user: User) -> str:
    """Return the id of a user in the admin API."""
    return f"user-{user.pk}"


def find_person(name: str) -> User | None:
    """Return the active user with exactly this username, else the only active user with this e-mail address."""
    found = User.objects.filter(is_active=True, username=name).first()
    return find_by_email(name) if found is None else found


def find_by_email(address: str) -> User | None:
    """Return the only active user with this e-mail address, or None."""
    if "@" not in address:
        return None
    # E-mail addresses are not unique: an ambiguous one must not pick a person at random.
    matches = list(User.objects.filter(is_active=True, email__iexact=address)[:2])
    return matches[0] if len(matches) == 1 else None


def add_member(*, team: Team, user: User, role: Role, actor: str) -> Membership | None:
    """Add a user to a team. Return None if the user is already a member."""
    with scope.team(team.pk):
        member, made = Membership.objects.get_or_create(team=team, user=user, defaults={"role": role.value})
        if made:
            _audit(member, "created", actor, after={"user": user.get_username(), "role": role.value})
    return member if made else None


def change_member(*, member: Membership, role: Role, view_content: bool | None, actor: str) -> None:
    """Change a member's role or right to read content. Raises `LastLead`."""
    with scope.team(member.team_id):
        if role is not Role.TEAM_LEAD:
            check_not_last_lead(member)
        before = {"role": member.role, "view_content": member.view_content}
        member.role, member.view_content = role.value, view_content
        member.save(update_fields=["role", "view_content"])
        _audit(member, "updated", actor, before=before, after={"role": role.value, "view_content": view_content})


def remove_member(*, member: Membership, actor: str) -> None:
    """Remove a member from a team. Raises `LastLead`."""
    with scope.team(member.team_id):
        check_not_last_lead(member)
        # Before the deletion, which empties the primary key.
        _audit(member, "deleted", actor, before={"user": member.user.get_username(), "role": member.role})
        member.delete()


def deactivate_user(*, user: User, actor: str) -> None:
    """Deactivate an account, which ends its sessions, and remove it from all teams. Raises `LastLead`."""
    with scope.every_team():
        for member in Membership.objects.filter(user=user).select_related("user").order_by("pk"):
            remove_member(member=member, actor=actor)
        if User.objects.filter(pk=user.pk, is_active=True).update(is_active=False):
            target = f"user:{user.get_username()}"
            audit(team_id=None, actor=actor, action="user.deactivated", target=target, before={"email": user.email})


def check_not_last_lead(member: Membership) -> None:
    """Raise `LastLead` for the last lead of a team. Call this within the transaction of the change."""
    # Locks all leads, so that two leads who remove each other at the same time cannot both succeed.
    leads = Membership.objects.select_for_update().filter(team=member.team_id, role=Role.TEAM_LEAD).order_by("pk")
    found = {lead.pk for lead in leads}
    if found == {member.pk}:
        raise LastLead


def _audit(
    member: Membership,
    verb: str,
    actor: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    action, target = f"membership.{verb}", str(member.pk)
    audit(team_id=member.team_id, actor=actor, action=action, target=target, before=before, after=after)
