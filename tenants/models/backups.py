"""The last backup of the installation."""

from django.db import models
from typing_extensions import override


class LastBackup(models.Model):
    """The time whose state the last complete backup has. The table has one row, or none before the first backup."""

    # A fixed key keeps the table at one row.
    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    state_of = models.DateTimeField()

    @override
    def __str__(self) -> str:
        return f"{self.state_of:%Y-%m-%d %H:%M} UTC"
