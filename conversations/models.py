"""Items and their places, conversations, and files. Items are immutable and know no position; a placement puts one into
an owner's list."""

from datetime import datetime
from uuid import UUID, uuid4

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils.timezone import now
from typing_extensions import override

from kernel.ids import new_id
from kernel.json_text import WireDecoder
from tenants.models import ApiKey, IdField, Team


def file_id() -> str:
    """A fresh id of a file."""
    return new_id("file").replace("_", "-", 1)


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


def opens_context(item_type: str) -> bool:
    """Whether models read nothing of what stands before an item of this type."""
    return item_type == "compaction"


class Section(models.TextChoices):
    """The list of an owner in which an item stands."""

    INPUT = "input", "Input of a response"
    OUTPUT = "output", "Output of a response"
    ITEMS = "items", "Items of a conversation"


class Placement(models.Model):
    """Puts an item into an owner's list. `owner` is the id of a response or of a conversation, without a foreign key:
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
    opens_context = models.BooleanField(
        default=False, help_text="True for compaction items: a model reads nothing of what stands before the last one."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "section", "position"], name="placement_position_once"),
        ]
        indexes = [
            models.Index(
                fields=["owner", "section", "position"],
                condition=models.Q(opens_context=True),
                name="placement_opening_context",
            ),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.owner} {self.section}[{self.position}]"


def conversation_id() -> str:
    """A fresh id of a conversation."""
    return new_id("conv")


class Conversation(models.Model):
    """A list of items that goes on. The items stand in it by placements of the section `items`, in the order of their
    positions; a position that was given away once is never used again, so that pages stay whole when items go."""

    id = IdField(default=conversation_id)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    created_at = models.DateTimeField(default=now)
    metadata = models.JSONField(default=dict)
    next_position = models.PositiveIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="conversation_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="conversation_by_time"),
            GinIndex(fields=["metadata"], opclasses=["jsonb_path_ops"], name="conversation_by_metadata"),
        ]

    @override
    def __str__(self) -> str:
        return self.id


class RemovedItem(models.Model):
    """Where an item stood in a conversation that was taken out of it: who pages through the list has it as a cursor."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="removed", db_index=False)
    item_id = models.CharField(max_length=255, db_collation="C")
    position = models.PositiveIntegerField()

    class Meta:
        indexes = [models.Index(fields=["conversation", "item_id", "position"], name="removed_item_by_wire_id")]

    @override
    def __str__(self) -> str:
        return f"{self.item_id} of {self.conversation_id}"


class Purpose(models.TextChoices):
    """What a file is for."""

    ASSISTANTS = "assistants", "Assistants"
    BATCH = "batch", "Batch"
    BATCH_OUTPUT = "batch_output", "Output of a batch"
    FINE_TUNE = "fine-tune", "Fine-tuning"
    VISION = "vision", "Vision"
    USER_DATA = "user_data", "User data"
    EVALS = "evals", "Evals"


class FileState(models.TextChoices):
    """Whether a file's bytes are being stored, are there, or are being removed. Only READY ones exist for callers."""

    PENDING = "pending", "Being stored"
    READY = "ready", "Ready"
    GONE = "gone", "Being removed"


class File(models.Model):
    """An uploaded file; the bytes are in the storage `files`, under a name made of the id.

    The row is there before the bytes and goes after them, so that nothing is left behind wherever a process dies: from
    `sweep_at` on, whatever the state, the sweeper removes both.
    """

    id = IdField(default=file_id)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=Purpose.choices)
    content_type = models.CharField(max_length=255)
    size = models.BigIntegerField(help_text="In bytes.")
    sha256 = models.CharField(max_length=64, default="", help_text="Of the bytes, in hex; empty until they are stored.")
    state = models.CharField(max_length=10, choices=FileState.choices, default=FileState.PENDING)
    created_at = models.DateTimeField(default=now)
    expires_at = models.DateTimeField(null=True)
    sweep_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="file_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="file_by_time"),
            models.Index(fields=["sweep_at"], name="file_by_sweep", condition=models.Q(sweep_at__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state="ready") | models.Q(sweep_at__isnull=False), name="file_sweep_unless_ready"
            ),
            models.CheckConstraint(
                condition=~models.Q(state="ready") | ~models.Q(sha256=""), name="file_digest_when_ready"
            ),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.filename} ({self.id})"

    def exists_at(self, at: datetime) -> bool:
        """Whether callers can see it at that moment."""
        return self.state == FileState.READY and (self.expires_at is None or self.expires_at > at)


def upload_id() -> str:
    """A fresh id of an upload."""
    return new_id("upload")


def part_id() -> str:
    """A fresh id of a part."""
    return new_id("part")


class UploadState(models.TextChoices):
    """How far an upload is. Callers hear of COMPLETING as pending."""

    PENDING = "pending", "Pending"
    COMPLETING = "completing", "Being put together"
    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"


class Upload(models.Model):
    """A file that comes in parts, as its client announced it."""

    id = IdField(default=upload_id)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=Purpose.choices)
    content_type = models.CharField(max_length=255)
    size = models.BigIntegerField(help_text="In bytes, as announced.")
    lifetime_seconds = models.PositiveIntegerField(null=True, help_text="Of the file, from its completion on.")
    state = models.CharField(max_length=10, choices=UploadState.choices, default=UploadState.PENDING)
    created_at = models.DateTimeField(default=now)
    expires_at = models.DateTimeField()
    file = models.ForeignKey(File, null=True, on_delete=models.SET_NULL, related_name="+")

    @override
    def __str__(self) -> str:
        return f"{self.filename} ({self.id})"


class UploadPart(models.Model):
    """A part of an upload. Its bytes are those of a file that callers do not see, and go with it."""

    id = IdField(default=part_id)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    upload_id: str
    content = models.OneToOneField(File, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(default=now)

    @override
    def __str__(self) -> str:
        return f"{self.id} of {self.upload_id}"
