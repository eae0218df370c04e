"""Items and their placements, conversations, files and uploads.

Items are immutable and have no position. A placement puts an item into the list of a response or a conversation, so
that responses, conversations and forks share items without copying them.
"""

from datetime import datetime
from uuid import UUID

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from typing_extensions import override

from core.clock import now
from core.db.json_text import WireField
from core.ids import new_id, new_key
from tenants.models import ApiKey, IdField, TeamRow


def file_id() -> str:
    """Return a new file id, such as `file-019a…`."""
    # OpenAI separates the prefix of file ids with a hyphen, unlike that of all other ids.
    return new_id("file").replace("_", "-", 1)


class Item(TeamRow):
    """A message, call, output or other item, in its public form. Never changed after it was written."""

    key = models.UUIDField(primary_key=True, default=new_key, editable=False)
    # The public id. Not unique: a client may send an edited item under its old id.
    id = models.CharField(max_length=255, db_collation="C")
    type = models.CharField(max_length=40)
    body = WireField()
    created_at = models.DateTimeField(default=now)

    class Meta:
        indexes = [models.Index(fields=["team", "id"], name="item_by_wire_id")]

    @override
    def __str__(self) -> str:
        return self.id


def opens_context(item_type: str) -> bool:
    """Return true if the context of a model starts at the latest item of this type."""
    return item_type == "compaction"


class Section(models.TextChoices):
    """The list of an owner that a placement belongs to."""

    INPUT = "input", "Input of a response"
    OUTPUT = "output", "Output of a response"
    ITEMS = "items", "Items of a conversation"


class Placement(TeamRow):
    """The position of an item in an owner's list.

    `owner` is the id of a response or a conversation. It is not a foreign key, as this app must not depend on the app
    of responses.
    """

    id: int
    owner = models.CharField(max_length=64, db_collation="C")
    section = models.CharField(max_length=10, choices=Section.choices)
    position = models.PositiveIntegerField()
    item = models.ForeignKey(Item, on_delete=models.PROTECT, related_name="placements")
    item_id: UUID
    in_context = models.BooleanField(
        default=True, help_text="False for fragments of an interrupted turn: shown, but never sent to a model again."
    )
    opens_context = models.BooleanField(
        default=False, help_text="True for compaction items: a model reads no item before the latest one."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "section", "position"], name="placement_position_once"),
        ]
        indexes = [
            # Finds the latest compaction item without scanning the list.
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
    """Return a new conversation id."""
    return new_id("conv")


class Conversation(TeamRow):
    """A list of items that clients and responses append to.

    Its items are the placements of the section `items`, ordered by position. A position is never used twice, so that
    pagination stays correct when items are deleted.
    """

    id = IdField(default=conversation_id)
    # Null for forks that were made in the admin.
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    created_at = models.DateTimeField(default=now)
    metadata = models.JSONField(default=dict)
    next_position = models.PositiveIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="conversation_by_team_and_time"),
            # For staff, whose lists in the admin span all teams.
            models.Index(fields=["created_at", "id"], name="conversation_by_time"),
            # `jsonb_path_ops` supports only containment, which is the only filter, and is smaller than the default.
            GinIndex(fields=["metadata"], opclasses=["jsonb_path_ops"], name="conversation_by_metadata"),
        ]


class RemovedItem(TeamRow):
    """The position of an item before it was deleted from a conversation. Clients may still use its id as a cursor."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="removed", db_index=False)
    item_id = models.CharField(max_length=255, db_collation="C")
    position = models.PositiveIntegerField()

    class Meta:
        indexes = [models.Index(fields=["conversation", "item_id", "position"], name="removed_item_by_wire_id")]

    @override
    def __str__(self) -> str:
        return f"{self.item_id} of {self.conversation_id}"


class Purpose(models.TextChoices):
    """Intended use of a file."""

    ASSISTANTS = "assistants", "Assistants"
    BATCH = "batch", "Batch"
    BATCH_OUTPUT = "batch_output", "Output of a batch"
    FINE_TUNE = "fine-tune", "Fine-tuning"
    VISION = "vision", "Vision"
    USER_DATA = "user_data", "User data"
    EVALS = "evals", "Evals"


class FileState(models.TextChoices):
    """State of a file's content. Only READY files are visible to clients."""

    PENDING = "pending", "Being stored"
    READY = "ready", "Ready"
    GONE = "gone", "Being removed"


class File(TeamRow):
    """An uploaded file. Its content is in the storage `files`, under a name derived from the id.

    The row is created before the content and deleted after it. If a process dies in between, the sweep removes both
    after `sweep_at`, whatever the state of the file.
    """

    id = IdField(default=file_id)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=Purpose.choices)
    content_type = models.CharField(max_length=255)
    size = models.BigIntegerField(help_text="In bytes.")
    sha256 = models.CharField(max_length=64, default="", help_text="Of the content, in hex; empty until it is stored.")
    state = models.CharField(max_length=10, choices=FileState.choices, default=FileState.PENDING)
    created_at = models.DateTimeField(default=now)
    expires_at = models.DateTimeField(null=True)
    sweep_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="file_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="file_by_time"),
            # Partial: most files never expire and would only make the index larger.
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
        """Return true if clients can see the file at that time."""
        return self.state == FileState.READY and (self.expires_at is None or self.expires_at > at)


def upload_id() -> str:
    """Return a new upload id."""
    return new_id("upload")


def part_id() -> str:
    """Return a new id for a part of an upload."""
    return new_id("part")


class UploadState(models.TextChoices):
    """State of an upload. Clients see COMPLETING as pending."""

    PENDING = "pending", "Pending"
    COMPLETING = "completing", "Being assembled"
    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"


class Upload(TeamRow):
    """A file that is uploaded in parts, as the client declared it."""

    id = IdField(default=upload_id)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=Purpose.choices)
    content_type = models.CharField(max_length=255)
    size = models.BigIntegerField(help_text="Declared size in bytes.")
    lifetime_seconds = models.PositiveIntegerField(null=True, help_text="Lifetime of the file, from completion on.")
    state = models.CharField(max_length=10, choices=UploadState.choices, default=UploadState.PENDING)
    created_at = models.DateTimeField(default=now)
    expires_at = models.DateTimeField()
    # The file may be deleted on its own; the upload remains completed.
    file = models.ForeignKey(File, null=True, on_delete=models.SET_NULL, related_name="+")

    @override
    def __str__(self) -> str:
        return f"{self.filename} ({self.id})"


class UploadPart(TeamRow):
    """A part of an upload. Its content is a hidden file, and the part is deleted with that file."""

    id = IdField(default=part_id)
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    upload_id: str
    content = models.OneToOneField(File, on_delete=models.CASCADE, related_name="part")
    created_at = models.DateTimeField(default=now)

    @override
    def __str__(self) -> str:
        return f"{self.id} of {self.upload_id}"
