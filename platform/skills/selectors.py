"""Reads of skills and their versions, and their JSON representations."""

from django.db.models import QuerySet

from core.clock import unix
from core.errors import NotFound
from core.http.pagination import Page, PageRequest, keyset
from skills import objects
from skills.models import Skill, SkillVersion

LATEST = "latest"


def list_skills(*, team_id: str, page: PageRequest) -> Page[Skill]:
    """List a team's skills by creation time."""
    return keyset(
        Skill.objects.filter(team_id=team_id),
        page=page,
        find=lambda cursor: find_skill(team_id=team_id, skill_id=cursor),
        unknown=unknown_skill,
    )


def find_skill(*, team_id: str, skill_id: str) -> Skill | None:
    """Return a team's skill, or None."""
    # PostgreSQL rejects NUL in a parameter, and no id contains it.
    return None if "\x00" in skill_id else Skill.objects.filter(pk=skill_id, team_id=team_id).first()


def list_versions(*, skill: Skill, page: PageRequest) -> Page[SkillVersion]:
    """List the versions of a skill by number, without their archives."""
    rows = _versions(skill)
    return keyset(
        rows,
        page=page,
        find=lambda cursor: None if "\x00" in cursor else rows.filter(pk=cursor).first(),
        unknown=unknown_version,
        by=("number",),
    )


def find_version(*, skill: Skill, version: str | None, with_archive: bool = False) -> SkillVersion | None:
    """Return the version with this number, the newest for `latest`, or the default one for None. None if unknown.

    The archive is loaded only `with_archive`.
    """
    rows = SkillVersion.objects.filter(skill=skill) if with_archive else _versions(skill)
    match version:
        case None:
            number = skill.default_version
        case str() as text if text == LATEST:
            number = skill.latest_version
        # At most nine digits: larger numbers exceed the column.
        case str() as text if text.isascii() and text.isdigit() and len(text) <= 9:
            number = int(text)
        case _:
            return None
    return rows.filter(number=number).first()


def _versions(skill: Skill) -> QuerySet[SkillVersion]:
    return SkillVersion.objects.filter(skill=skill).defer("archive")


def unknown_skill(skill_id: str, *, param: str | None = None) -> NotFound:
    """Return the error for an unknown skill, also used for skills of other teams."""
    return NotFound(f"Skill with id '{skill_id}' not found.", param=param)


def unknown_version(version: str, *, param: str | None = None) -> NotFound:
    """Return the error for a version that the skill does not have."""
    return NotFound(f"Skill version '{version}' not found.", param=param)


def public_skill(skill: Skill) -> objects.Skill:
    """Return the skill as the API shows it."""
    return {
        "id": skill.pk,
        "object": "skill",
        "created_at": unix(skill.created_at),
        "default_version": str(skill.default_version),
        "description": skill.description,
        "latest_version": str(skill.latest_version),
        "name": skill.name,
    }


def public_version(version: SkillVersion) -> objects.SkillVersion:
    """Return the version as the API shows it."""
    return {
        "id": version.pk,
        "object": "skill.version",
        "created_at": unix(version.created_at),
        "description": version.description,
        "name": version.name,
        "skill_id": version.skill_id,
        "version": str(version.number),
    }
