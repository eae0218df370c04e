"""Projects and their objects by id, for the views of the admin API. All raise `NotFound`."""

from kernel.errors import NotFound
from tenants import scope
from tenants.models import ApiKey, Team


def get_project(project_id: str, *, param: str | None = None) -> Team:
    """Return a team by its id."""
    with scope.every_team():
        team = Team.objects.filter(pk=project_id).first()
    if team is None:
        raise NotFound(f"No such project: {project_id}", param=param)
    return team


def get_key(team: Team, key_id: str, *, param: str | None = None) -> ApiKey:
    """Return a key of the team that is not revoked. Must run inside a scope that sees the team."""
    # Of the team alone: an id of another team's key is as unknown as any other.
    keys = ApiKey.objects.filter(team=team, pk=key_id, revoked_at=None)
    key = keys.select_related("created_by", "service_account").first()
    if key is None:
        raise NotFound(f"No such API key: {key_id}", param=param)
    return key
