"""Who belongs to a team, and as what. A team that has a lead never loses its last one this way."""

from typing import Any

from django.contrib.auth.models import User

from tenants import scope
from tenants.audit import audit
from tenants.models import Membership, Role, Team


class LastLead(Exception):
    """The change would leave the team without anybody who keeps it."""


def find_person(name: str) -> User | None:
    """Who may sign in and has exactly this username, or alone has this e-mail address."""
    people = User.objects.filter(is_active=True)
    found = people.filter(username=name).first()
    if found is None and "@" in name:
        same = list(people.filter(email__iexact=name)[:2])
        found = same[0] if len(same) == 1 else None
    return found


def add_member(*, team: Team, user: User, role: Role, actor: str) -> Membership | None:
    """Let somebody belong to a team; None where they do already."""
    with scope.team(team.pk):
        member, made = Membership.objects.get_or_create(team=team, user=user, defaults={"role": role.value})
        if made:
            after = {"user": user.get_username(), "role": role.value}
            _note(member, "created", actor, after=after)
    return member if made else None


def change_member(*, member: Membership, role: Role, view_content: bool | None, actor: str) -> None:
    """Give a member another role, or another right to read content. Raises `LastLead`."""
    with scope.team(member.team_id):
        if role is not Role.TEAM_LEAD:
            keep_a_lead(member)
        before = {"role": member.role, "view_content": member.view_content}
        member.role, member.view_content = role.value, view_content
        member.save(update_fields=["role", "view_content"])
        _note(member, "updated", actor, before=before, after={"role": role.value, "view_content": view_content})


def remove_member(*, member: Membership, actor: str) -> None:
    """Let somebody belong to a team no more. Raises `LastLead`."""
    with scope.team(member.team_id):
        keep_a_lead(member)
        _note(member, "deleted", actor, before={"user": member.user.get_username(), "role": member.role})
        member.delete()


def keep_a_lead(member: Membership) -> None:
    """Raise `LastLead` for the last lead of a team. Inside of a transaction, where the others stay what they are."""
    leads = Membership.objects.select_for_update().filter(team=member.team_id, role=Role.TEAM_LEAD).order_by("pk")
    found = {lead.pk for lead in leads}
    if found == {member.pk}:
        raise LastLead


def _note(
    member: Membership,
    verb: str,
    actor: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    action, target = f"membership.{verb}", str(member.pk)
    audit(team_id=member.team_id, actor=actor, action=action, target=target, before=before, after=after)
