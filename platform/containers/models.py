"""Containers and the known files in them. Processes and file contents are kept by the sandbox service."""

from datetime import datetime, timedelta

from django.db import models
from typing_extensions import override

from core.clock import now
from core.ids import new_id
from tenants.models import ApiKey, IdField, TeamRow

DATA = "/mnt/data"
"""Directory of a container's files."""
# OpenAI's default, and also the maximum.
IDLE_MINUTES = 20


def container_id() -> str:
    return new_id("cntr")


def container_file_id() -> str:
    return new_id("cfile")


class Container(TeamRow):
    """An isolated environment where code runs. It ends when it is deleted or has been idle for some time."""

    id = IdField(default=container_id)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=255)
    memory_limit = models.CharField(max_length=3, default="1g")
    idle_minutes = models.PositiveIntegerField(
        default=IDLE_MINUTES, help_text="The container expires after this many minutes without activity."
    )
    created_at = models.DateTimeField(default=now)
    last_active_at = models.DateTimeField(default=now)
    # Name, description, path and digest of each skill in it.
    skills = models.JSONField(default=list)
    allowed_domains = models.JSONField(default=list, help_text="Domains that its programs can reach; none by default.")
    # Set when the sandbox service no longer knows the container, for example after a restart.
    lost = models.BooleanField(default=False, help_text="The container ended before its expiration time.")

    class Meta:
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="container_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="container_by_time"),
            models.Index(fields=["last_active_at"], name="container_by_use"),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    def runs_at(self, at: datetime) -> bool:
        """Return True if the container can be used at this time."""
        # The sandbox service ends idle containers by the same rule, so no request is needed to find out.
        return not self.lost and at < self.last_active_at + timedelta(minutes=self.idle_minutes)


class FileSource(models.TextChoices):
    """Origin of a file."""

    USER = "user", "User"
    ASSISTANT = "assistant", "Assistant"


class ContainerFile(TeamRow):
    """A file that is or was in a container. `changed` is the modification time as the sandbox service reports it."""

    id = IdField(default=container_file_id)
    container = models.ForeignKey(Container, on_delete=models.CASCADE, related_name="files", db_index=False)
    path = models.CharField(max_length=1024)
    size = models.BigIntegerField(help_text="Size in bytes.")
    changed = models.BigIntegerField()
    source = models.CharField(max_length=10, choices=FileSource.choices)
    created_at = models.DateTimeField(default=now)

    class Meta:
        indexes = [models.Index(fields=["container", "created_at", "id"], name="container_file_by_time")]
        constraints = [models.UniqueConstraint(fields=["container", "path"], name="container_file_by_path")]

    @override
    def __str__(self) -> str:
        return f"{self.path} ({self.id})"
