"""Lookup of projects and their objects by id, for the views of the admin API.

The `get_` functions raise `NotFound` for an unknown id.
"""

from django.contrib.auth.models import User

from core.errors import NotFound
from tenants import scope
from tenants.models import ApiKey, Membership, ServiceAccount, Team

# The largest key of a row; PostgreSQL rejects a larger number.
_MAX_KEY = 2**31 - 1


def get_project(project_id: str, *, param: str | None = None) -> Team:
    """Return a team by its id."""
    with scope.every_team():
        team = Team.objects.filter(pk=project_id).first()
    if team is None:
        raise NotFound(f"No such project: {project_id}", param=param)
    return team


def get_key(team: Team, key_id: str, *, param: str | None = None) -> ApiKey:
    """Return a key of the team that is not revoked. Must run inside a scope that sees the team."""
    # Only keys of this team: the id of another team's key gets the same error as an unknown id.
    keys = ApiKey.objects.filter(team=team, pk=key_id, revoked_at=None)
    key = keys.select_related("created_by", "service_account").first()
    if key is None:
        raise NotFound(f"No such API key: {key_id}", param=param)
    return key


def get_service_account(team: Team, account_id: str, *, param: str | None = None) -> ServiceAccount:
    """Return a service account of the team. Must run inside a scope that sees the team."""
    account = ServiceAccount.objects.filter(team=team, pk=account_id, deleted_at=None).select_related("team").first()
    if account is None:
        raise NotFound(f"No such service account: {account_id}", param=param)
    return account


def get_user(user_id: str, *, param: str | None = None) -> User:
    """Return an active user by the id of the admin API, such as `user-12`."""
    user = User.objects.filter(pk=user_key(user_id), is_active=True).first()
    if user is None:
        raise NotFound(f"No such user: {user_id}", param=param)
    return user


def get_member(team: Team, user_id: str, *, param: str | None = None) -> Membership:
    """Return the membership of a user in the team. Must run inside a scope that sees the team."""
    members = Membership.objects.filter(team=team, user=user_key(user_id), user__is_active=True)
    member = members.select_related("user").first()
    if member is None:
        raise NotFound(f"No such user in the project: {user_id}", param=param)
    return member


def user_key(user_id: str) -> int:
    """Return the primary key of the user with this id; 0, which no user has, for an id that is malformed."""
    digits = user_id.removeprefix("user-")
    is_known = digits != user_id and digits.isascii() and digits.isdigit() and len(digits) <= 10
    return int(digits) if is_known and int(digits) <= _MAX_KEY else 0
