"""Changes of a team's members. They never remove the last lead of a team."""

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


def role_of(name: str) -> Role | None:
    """Return the role with this name in the admin API, or None."""
    return next((Role(role) for role, public in _PUBLIC_ROLES.items() if public == name), None)


def user_id(user: User) -> str:
    """Return the id of a user in the admin API."""
    return f"user-{user.pk}"


def find_person(name: str) -> User | None:
    """Return the active user with exactly this username, or with this e-mail address if no other user has it."""
    people = User.objects.filter(is_active=True)
    found = people.filter(username=name).first()
    if found is None and "@" in name:
        # E-mail addresses are not unique: an ambiguous one must not pick a person at random.
        matches = list(people.filter(email__iexact=name)[:2])
        found = matches[0] if len(matches) == 1 else None
    return found


def add_member(*, team: Team, user: User, role: Role, actor: str) -> Membership | None:
    """Add a user to a team. Returns None if they are a member already."""
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
