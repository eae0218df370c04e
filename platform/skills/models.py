"""Skills and their versions. A version never changes; its files are one zip archive."""

from django.db import models
from typing_extensions import override

from core.clock import now
from core.ids import new_id
from tenants.models import ApiKey, IdField, TeamRow


def skill_id() -> str:
    """Return a new skill id."""
    return new_id("skill")


def skill_version_id() -> str:
    """Return a new skill version id."""
    return new_id("skillver")


class Skill(TeamRow):
    """A skill. `name` and `description` are copied from its default version."""

    id = IdField(default=skill_id)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=64)
    description = models.CharField(max_length=1024)
    default_version = models.PositiveIntegerField(default=1)
    latest_version = models.PositiveIntegerField(default=1)
    # The highest number ever used: the number of a deleted version must not be used again for other files.
    last_number = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(default=now)

    class Meta:
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="skill_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="skill_by_time"),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class SkillVersion(TeamRow):
    """A version of a skill. `archive` is a zip with one top-level folder."""

    id = IdField(default=skill_version_id)
    skill = models.ForeignKey(Skill, on_delete=models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField()
    name = models.CharField(max_length=64)
    description = models.CharField(max_length=1024)
    archive = models.BinaryField()
    archive_size = models.PositiveIntegerField(help_text="In bytes, compressed.")
    files = models.PositiveIntegerField(help_text="Number of files.")
    sha256 = models.CharField(max_length=64, help_text="Of the archive, in hex.")
    created_at = models.DateTimeField(default=now)

    class Meta:
        indexes = [models.Index(fields=["team"], name="skill_version_by_team")]
        constraints = [models.UniqueConstraint(fields=["skill", "number"], name="skill_version_number_once")]

    @override
    def __str__(self) -> str:
        return f"{self.name} version {self.number} ({self.id})"
