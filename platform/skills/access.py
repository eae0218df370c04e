"""Access to skills and their versions: the only place where objects are looked up for a caller."""

from skills import selectors
from skills.models import Skill, SkillVersion
from tenants.principal import Principal


def get_skill(*, principal: Principal, skill_id: str) -> Skill:
    """Return a skill of the caller's team. Raises NotFound for an unknown id or another team's id."""
    found = selectors.find_skill(team_id=principal.team_id, skill_id=skill_id)
    if found is None:
        raise selectors.unknown_skill(skill_id)
    return found


def get_version(
    *, principal: Principal, skill_id: str, version: str | None, with_archive: bool = False
) -> SkillVersion:
    """Return a version of a skill of the caller's team; the default version for None. Raises NotFound."""
    skill = get_skill(principal=principal, skill_id=skill_id)
    found = selectors.find_version(skill=skill, version=version, with_archive=with_archive)
    if found is None:
        raise selectors.unknown_version(str(version))
    return found
