"""The index for full-text search: the texts of items, and the progress of their collection."""

from uuid import UUID

from django.db import models
from typing_extensions import override

from conversations.models import Item
from tenants.models import TeamRow

MAX_CHARACTERS = 8000
"""Maximum number of searchable characters of an item. The rest of the text is cut off."""


class SearchText(TeamRow):
    """The searchable text of an item.

    A foreign key in the database deletes the row together with its item. A search looks up the placements only of the
    items that it has found. PostgreSQL generates the column `words` from the text, only for the search.
    """

    # No constraint in Django: a migration creates the foreign key with ON DELETE CASCADE.
    item = models.OneToOneField(
        Item, primary_key=True, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False
    )
    item_id: UUID
    speaker = models.CharField(max_length=40, help_text="The role of a message, or the type of another item.")
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
        return f"text of {self.item_id}"


class SearchMark(models.Model):
    """The progress of the collection: all placements up to the id `through` have been read. The table has one row.

    Ids are assigned before their rows are committed, so a lower id may become visible after a higher id. Up to the id
    `safe`, this cannot happen any more. `pending` is the next value of `safe`. It becomes safe when all transactions
    have ended that may have been assigned a lower id. These are the transactions before `pending_xid`, which is read
    later than `pending`.
    """

    through = models.BigIntegerField(default=0)
    safe = models.BigIntegerField(default=0)
    pending = models.BigIntegerField(null=True)
    pending_xid = models.BigIntegerField(null=True)

    @override
    def __str__(self) -> str:
        return f"through {self.through}"
