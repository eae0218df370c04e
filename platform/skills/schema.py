"""Skills in requests: a reference to a skill of `/v1/skills`, or an inline zip archive."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from core.http.validation import SkillId
from core.http.wire import BY_TYPE, Wire
from skills.bundle import MAX_DESCRIPTION, MAX_NAME, NAME

MAX_SKILLS = 50
# In characters of base64. Limited because the archive is part of the stored response and of its events. Larger skills
# have to be uploaded to `/v1/skills`.
MAX_INLINE = 4 * 1024 * 1024


class SkillReference(Wire):
    """References a skill created with the /v1/skills endpoint."""

    type: Literal["skill_reference"]
    skill_id: SkillId
    version: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,8}|latest)$")] | None = None


class InlineSkillSource(Wire):
    """Inline skill payload."""

    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: Annotated[str, Field(min_length=1, max_length=MAX_INLINE, repr=False)]


class InlineSkill(Wire):
    """Defines an inline skill for this request."""

    type: Literal["inline"]
    name: Annotated[str, Field(max_length=MAX_NAME, pattern=f"^{NAME}$")]
    description: Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION)]
    source: InlineSkillSource


Skills = Annotated[
    list[Annotated[SkillReference | InlineSkill, BY_TYPE]],
    Field(max_length=MAX_SKILLS),
]


def instructions(skills: Sequence[Mapping[str, Any]]) -> str:
    """Return instructions with the name, path and description of each skill; an empty string without skills."""
    if not skills:
        return ""
    lines = [f"- {skill['name']} in {skill['path']}: {skill['description']}" for skill in skills]
    return "\n".join(["Folders with instructions; read the matching SKILL.md before you start a task:", *lines])
