"""The objects that the endpoints of `/v1/skills` return."""

from typing import Literal

from typing_extensions import TypedDict

from core.http.objects import Deleted, UnixTime


class Skill(TypedDict):
    """A skill: instructions and files for a task. Its name and description are those of the default version."""

    id: str
    object: Literal["skill"]
    created_at: UnixTime
    default_version: str
    description: str
    latest_version: str
    name: str


class SkillVersion(TypedDict):
    """A version of a skill."""

    id: str
    object: Literal["skill.version"]
    created_at: UnixTime
    description: str
    name: str
    skill_id: str
    version: str


class DeletedSkillVersion(TypedDict):
    """Confirmation of a deletion."""

    id: str
    object: Literal["skill.version.deleted"]
    deleted: bool
    version: str


DeletedSkill = Deleted[Skill, Literal["skill.deleted"]]
