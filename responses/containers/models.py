"""Containers and the files that were seen in them. What runs, and what the files hold, is with the sandbox service."""

from datetime import datetime, timedelta

from django.db import models
from typing_extensions import override

from kernel.clock import now
from kernel.ids import new_id
from tenants.models import ApiKey, IdField, Team

DATA = "/mnt/data"
"""Where the files of a container are."""
IDLE_MINUTES = 20


def container_id() -> str:
    """The id of a container."""
    return new_id("cntr")


def container_file_id() -> str:
    """The id of a file in a container."""
    return new_id("cfile")


class Container(models.Model):
    """A place where code runs. It is there until it was not used for a while, or was deleted."""

    id = IdField(default=container_id)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=255)
    memory_limit = models.CharField(max_length=3, default="1g")
    idle_minutes = models.PositiveIntegerField(default=IDLE_MINUTES, help_text="After these it expires.")
    created_at = models.DateTimeField(default=now)
    last_active_at = models.DateTimeField(default=now)
    lost = models.BooleanField(default=False, help_text="Its processes ended before it had expired.")

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
        """Whether it can be used at that moment."""
        return not self.lost and at < self.last_active_at + timedelta(minutes=self.idle_minutes)


class FileSource(models.TextChoices):
    """Who made a file."""

    USER = "user", "User"
    ASSISTANT = "assistant", "Assistant"


class ContainerFile(models.Model):
    """A file that is, or was, in a container. `changed` is the service's word for the moment of its last change."""

    id = IdField(default=container_file_id)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    container = models.ForeignKey(Container, on_delete=models.CASCADE, related_name="files", db_index=False)
    path = models.CharField(max_length=1024)
    size = models.BigIntegerField(help_text="In bytes.")
    changed = models.BigIntegerField()
    source = models.CharField(max_length=10, choices=FileSource.choices)
    created_at = models.DateTimeField(default=now)

    class Meta:
        indexes = [models.Index(fields=["container", "created_at", "id"], name="container_file_by_time")]
        constraints = [models.UniqueConstraint(fields=["container", "path"], name="container_file_by_path")]

    @override
    def __str__(self) -> str:
        return f"{self.path} ({self.id})"
