"""Items and their places. Items are immutable and know no position; a placement puts one into an owner's list."""

from uuid import UUID, uuid4

from django.db import models
from django.utils.timezone import now
from typing_extensions import override

from kernel.jsontext import WireDecoder
from tenants.models import ApiKey, Team


class Item(models.Model):
    """One thing said, called or answered, as the wire writes it. Never changed after it was written."""

    key = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    # The id on the wire. Not unique: a client may send an edited item under the id that it once had.
    id = models.CharField(max_length=255, db_collation="C")
    type = models.CharField(max_length=40)
    body = models.JSONField(decoder=WireDecoder)
    created_at = models.DateTimeField(default=now)

    class Meta:
        indexes = [models.Index(fields=["team", "id", "created_at"], name="item_by_wire_id")]

    @override
    def __str__(self) -> str:
        return self.id


class Section(models.TextChoices):
    """The list of an owner in which an item stands."""

    INPUT = "input", "Input of a response"
    OUTPUT = "output", "Output of a response"


class Placement(models.Model):
    """Puts an item into an owner's list. `owner` is a response's (later: a conversation's) id, without a foreign key:
    this app knows nothing of inference."""

    id: int
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    owner = models.CharField(max_length=64, db_collation="C")
    section = models.CharField(max_length=10, choices=Section.choices)
    position = models.PositiveIntegerField()
    item = models.ForeignKey(Item, on_delete=models.PROTECT, related_name="placements")
    item_id: UUID
    in_context = models.BooleanField(
        default=True, help_text="False for fragments of a turn that was cut: shown, but never sent to a model again."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "section", "position"], name="placement_position_once"),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.owner} {self.section}[{self.position}]"
