"""Writes: skills and versions are created, changed and deleted, each in one transaction with its audit event."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db.models import Sum

from core.db.db_threads import in_db_thread
from core.errors import InvalidValue, TooManySkills
from skills import reader, selectors
from skills.bundle import Bundle
from skills.models import Skill, SkillVersion
from tenants import scope
from tenants.audit import audit_call
from tenants.models import Team
from tenants.principal import Principal

MAX_SKILLS = 200
MAX_VERSIONS = 100
MAX_TEAM_BYTES = 1024 * 1024 * 1024
MOUNTED_AT = "/mnt/skills"
"""Directory of the skills in a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountableSkill:
    """A skill for a container. `archive` is a zip whose files are below one folder."""

    name: str
    description: str
    sha256: str
    archive: bytes = field(repr=False)

    def shown(self) -> dict[str, str]:
        """Return the fields that are stored with a container and shown to a model."""
        path = f"{MOUNTED_AT}/{self.name}"
        return {"name": self.name, "description": self.description, "path": path, "sha256": self.sha256}


def create_skill(*, principal: Principal, bundle: Bundle) -> Skill:
    """Create a skill with its first version. Raises TooManySkills."""
    with scope.team(principal.team_id):
        _check_room(principal.team_id, bundle)
        if Skill.objects.filter(team_id=principal.team_id).count() >= MAX_SKILLS:
            raise TooManySkills(f"A team can have at most {MAX_SKILLS} skills.")
        skill = Skill.objects.create(
            team_id=principal.team_id, api_key_id=principal.key_id, name=bundle.name, description=bundle.description
        )
        _insert_version(skill, bundle, number=1)
        audit_call(principal, "skill.created", skill.pk, after={"name": bundle.name, "sha256": bundle.sha256})
    return skill


def create_version(*, principal: Principal, skill: Skill, bundle: Bundle, is_default: bool) -> SkillVersion:
    """Add a version to a skill, and make it the default if `is_default`. Raises TooManySkills."""
    with scope.team(principal.team_id):
        _check_room(principal.team_id, bundle)
        row = _locked(skill)
        if SkillVersion.objects.filter(skill=row).count() >= MAX_VERSIONS:
            raise TooManySkills(f"A skill can have at most {MAX_VERSIONS} versions.")
        row.last_number = row.latest_version = row.last_number + 1
        version = _insert_version(row, bundle, number=row.last_number)
        if is_default:
            _use_by_default(row, version)
        row.save()
        after = {"version": version.number, "default": is_default, "sha256": bundle.sha256}
        audit_call(principal, "skill.version_created", row.pk, after=after)
    return version


def set_default_version(*, principal: Principal, skill: Skill, version: str) -> Skill:
    """Change the default version of a skill. Raises NotFound if the skill has no such version."""
    with scope.team(principal.team_id):
        row = _locked(skill)
        found = selectors.find_version(skill=row, version=version)
        if found is None:
            raise selectors.unknown_version(version, param="default_version")
        before = {"default_version": row.default_version}
        _use_by_default(row, found)
        row.save()
        audit_call(principal, "skill.updated", row.pk, before=before, after={"default_version": found.number})
    return row


def delete_skill(*, principal: Principal, skill: Skill) -> None:
    """Delete a skill with all of its versions. Files that are mounted in containers remain."""
    with scope.team(principal.team_id):
        row = _locked(skill, no_key=False)
        audit_call(principal, "skill.deleted", row.pk, before={"name": row.name})
        row.delete()


def delete_version(*, principal: Principal, skill: Skill, version: str) -> SkillVersion:
    """Delete a version, and the skill too if it was the only version. Raises NotFound.

    Raises InvalidValue for the default version of a skill that has others.
    """
    with scope.team(principal.team_id):
        row = _locked(skill, no_key=False)
        found = selectors.find_version(skill=row, version=version)
        if found is None:
            raise selectors.unknown_version(version)
        others = SkillVersion.objects.filter(skill=row).exclude(pk=found.pk)
        newest = others.order_by("-number").values_list("number", flat=True).first()
        if newest is not None and found.number == row.default_version:
            raise InvalidValue(
                "The default version of a skill cannot be deleted. Set another default version first.", param="version"
            )
        audit_call(principal, "skill.version_deleted", row.pk, before={"version": found.number})
        deleted_id = found.pk
        if newest is None:
            row.delete()
        else:
            SkillVersion.objects.filter(pk=found.pk).delete()
            row.latest_version = newest
            row.save()
    found.pk = deleted_id
    return found


async def find_mountable(
    *, team_id: str, skills: Sequence[Mapping[str, Any]], param: str, waits: bool = False
) -> list[MountableSkill]:
    """Return the skills that a request names, in order. Raises NotFound or InvalidValue with the index in `param`.

    Raises Overloaded if too many archives are waiting to be read, unless `waits` is true.
    """
    found: list[MountableSkill] = []
    for index, wanted in enumerate(skills):
        where = f"{param}[{index}]"
        if wanted["type"] == "inline":
            skill = await _inline(wanted, where, waits=waits)
        else:
            skill = await in_db_thread(partial(_referenced, team_id, wanted["skill_id"], wanted.get("version"), where))
        if any(skill.name == mountable.name for mountable in found):
            raise InvalidValue(f"Invalid '{where}': another skill is named '{skill.name}' as well.", param=where)
        found.append(skill)
    return found


async def _inline(wanted: Mapping[str, Any], where: str, *, waits: bool) -> MountableSkill:
    param = f"{where}.source.data"
    try:
        archive = base64.b64decode(wanted["source"]["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidValue(f"Invalid '{param}': expected base64.", param=param) from error
    bundle = await reader.read_archive(archive, param=param, waits=waits)
    return MountableSkill(
        name=wanted["name"], description=wanted["description"], sha256=bundle.sha256, archive=bundle.archive
    )


def _referenced(team_id: str, skill_id: str, version: str | None, where: str) -> MountableSkill:
    with scope.team(team_id):
        skill = selectors.find_skill(team_id=team_id, skill_id=skill_id)
        if skill is None:
            raise selectors.unknown_skill(skill_id, param=f"{where}.skill_id")
        found = selectors.find_version(skill=skill, version=version, with_archive=True)
    if found is None:
        raise selectors.unknown_version(str(version), param=f"{where}.version")
    return MountableSkill(
        name=found.name, description=found.description, sha256=found.sha256, archive=bytes(found.archive)
    )


def _check_room(team_id: str, bundle: Bundle) -> None:
    # Locks the team: two simultaneous requests could otherwise both pass the check.
    Team.objects.select_for_update(no_key=True).get(pk=team_id)
    used = SkillVersion.objects.filter(team_id=team_id).aggregate(total=Sum("archive_size"))["total"] or 0
    if used + len(bundle.archive) > MAX_TEAM_BYTES:
        raise TooManySkills(f"The skills of a team have at most {MAX_TEAM_BYTES // 1024 // 1024} MiB together.")


def _insert_version(skill: Skill, bundle: Bundle, *, number: int) -> SkillVersion:
    return SkillVersion.objects.create(
        team_id=skill.team_id,
        skill=skill,
        number=number,
        name=bundle.name,
        description=bundle.description,
        archive=bundle.archive,
        archive_size=len(bundle.archive),
        files=bundle.files,
        sha256=bundle.sha256,
    )


def _use_by_default(skill: Skill, version: SkillVersion) -> None:
    skill.default_version, skill.name, skill.description = version.number, version.name, version.description


def _locked(skill: Skill, *, no_key: bool = True) -> Skill:
    row = Skill.objects.select_for_update(no_key=no_key).filter(pk=skill.pk).first()
    if row is None:
        raise selectors.unknown_skill(skill.pk)
    return row
