"""What full-text search looks through: the words of items, and how far they have been collected."""

from uuid import UUID

from django.db import models
from typing_extensions import override

from conversations.models import Item
from tenants.models import Team

MAX_CHARACTERS = 8000
"""So much of an item is searched."""


class SearchText(models.Model):
    """The words of an item. A foreign key in the database removes the row with its item, whoever removes that; where
    the item stands is asked when it is found. The column `words`, which PostgreSQL makes of the text, is for the search
    alone."""

    item = models.OneToOneField(
        Item, primary_key=True, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False
    )
    item_id: UUID
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    speaker = models.CharField(max_length=40, help_text="The role of a message, the type of anything else.")
    created_at = models.DateTimeField()
    text = models.TextField()

    class Meta:
        verbose_name = "search text"
        indexes = [
            models.Index(fields=["team", "created_at", "item"], name="search_text_by_team_and_time"),
            models.Index(fields=["created_at", "item"], name="search_text_by_time"),
        ]

    @override
    def __str__(self) -> str:
        return f"words of {self.item_id}"


class SearchMark(models.Model):
    """How far the placements of items have been read: all up to `through`. There is one row.

    Numbers of placements are given out before they are committed, so one below another may become visible after it.
    `safe` is a number below which that cannot happen any more. The next one, `pending`, becomes safe when no
    transaction is left that may have taken a number before it: none below `pending_xid`, which is taken later.
    """

    through = models.BigIntegerField(default=0)
    safe = models.BigIntegerField(default=0)
    pending = models.BigIntegerField(null=True)
    pending_xid = models.BigIntegerField(null=True)

    @override
    def __str__(self) -> str:
        return f"through {self.through}"
