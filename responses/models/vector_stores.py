"""Vector stores: their files, the passages of the files, and the vectors by which passages are found."""

from collections.abc import Sequence

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q
from typing_extensions import override

from conversations.models import File
from core.clock import now
from core.ids import new_id
from tenants.models import ApiKey, IdField, Team, TeamRow


def store_id() -> str:
    """Return a new id of a vector store."""
    return new_id("vs")


def batch_id() -> str:
    """Return a new id of a batch of files."""
    return new_id("vsfb")


class VectorStore(TeamRow):
    """A set of searchable files.

    All vectors are created with the model that embedded the first file, because vectors of different models cannot be
    compared.
    """

    id = IdField(default=store_id)
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=512, blank=True, default="")
    description = models.CharField(max_length=2048, blank=True, default="")
    metadata = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=now)
    last_active_at = models.DateTimeField(default=now)
    expires_after_days = models.PositiveIntegerField(null=True)
    embedding_model = models.CharField(max_length=200, blank=True, default="")
    dimensions = models.PositiveIntegerField(
        null=True, help_text="Dimensions of the vectors; empty while there are none."
    )

    class Meta:
        verbose_name = "vector store"
        indexes = [
            models.Index(fields=["team", "created_at", "id"], name="vector_store_by_team_and_time"),
            models.Index(fields=["created_at", "id"], name="vector_store_by_time"),
            models.Index(
                fields=["last_active_at"],
                condition=Q(expires_after_days__isnull=False),
                name="vector_store_by_activity",
            ),
        ]

    @override
    def __str__(self) -> str:
        return self.name or self.id


class VectorStoreBatch(TeamRow):
    """Files that were attached together."""

    id = IdField(default=batch_id)
    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, related_name="batches")
    created_at = models.DateTimeField(default=now)
    cancelled_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "batch of a vector store"


class EntryStatus(models.TextChoices):
    """The statuses of a file in a store."""

    IN_PROGRESS = "in_progress", "In progress"
    COMPLETED = "completed", "Completed"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


class VectorStoreFile(TeamRow):
    """A file in a store.

    The worker that processes the file holds the lease. The result is stored only if `lease_token` has not changed.
    """

    id: int
    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, related_name="entries", db_index=False)
    store_id: str
    file = models.ForeignKey(File, on_delete=models.CASCADE, related_name="+")
    file_id: str
    batch = models.ForeignKey(VectorStoreBatch, null=True, on_delete=models.SET_NULL, related_name="entries")
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    created_at = models.DateTimeField(default=now)
    status = models.CharField(max_length=12, choices=EntryStatus.choices, default=EntryStatus.IN_PROGRESS)
    attributes = models.JSONField(default=dict)
    chunk_tokens = models.PositiveIntegerField(default=800)
    overlap_tokens = models.PositiveIntegerField(default=400)
    usage_bytes = models.BigIntegerField(default=0)
    chunks = models.PositiveIntegerField(default=0)
    error_code = models.CharField(max_length=40, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    request_id = models.CharField(max_length=64, default="")
    attempt = models.PositiveIntegerField(default=0)
    lease_token = models.PositiveIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, help_text="No other worker starts with the file before.")

    class Meta:
        verbose_name = "file of a vector store"
        constraints = [models.UniqueConstraint(fields=["store", "file"], name="vector_store_file_once")]
        indexes = [
            models.Index(fields=["store", "created_at", "file"], name="vector_file_by_store_and_time"),
            models.Index(
                fields=["team", "created_at"], condition=Q(status="in_progress"), name="vector_file_in_progress"
            ),
            models.Index(
                fields=["lease_until"],
                condition=Q(status="in_progress", lease_until__isnull=False),
                name="vector_file_leased",
            ),
        ]

    @override
    def __str__(self) -> str:
        return f"{self.file_id} in {self.store_id}"


class VectorChunk(TeamRow):
    """A passage of a file. PostgreSQL generates the column `words` from the text, only for full-text search."""

    id: int
    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, related_name="+")
    store_id: str
    entry = models.ForeignKey(VectorStoreFile, on_delete=models.CASCADE, related_name="passages", db_index=False)
    entry_id: int
    position = models.PositiveIntegerField()
    text = models.TextField()

    class Meta:
        verbose_name = "passage of a vector store"
        constraints = [models.UniqueConstraint(fields=["entry", "position"], name="vector_chunk_position_once")]

    @override
    def __str__(self) -> str:
        return f"{self.entry_id}[{self.position}]"


class HalfVectorField(models.Field[Sequence[float], str]):
    """pgvector's `halfvec` without fixed dimensions. Two bytes per dimension give the same ranking as four."""

    @override
    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "halfvec"

    @override
    def get_prep_value(self, value: Sequence[float] | None) -> str | None:
        """Return the text form of the vector."""
        return None if value is None else "[" + ",".join(map(repr, value)) + "]"


class VectorEmbedding(models.Model):
    """The vector of a passage.

    The table is created by `tools.vectors.schema` instead of a migration, and only if the database has pgvector. A
    foreign key in the database deletes a vector together with its passage.
    """

    chunk = models.OneToOneField(
        VectorChunk, primary_key=True, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False
    )
    chunk_id: int
    team = models.ForeignKey(Team, on_delete=models.DO_NOTHING, related_name="+", db_constraint=False, db_index=False)
    store_id = models.CharField(max_length=64, db_collation="C")
    entry_id = models.BigIntegerField()
    dimensions = models.PositiveIntegerField()
    # No fixed dimensions, because each store may use another embedding model.
    embedding = HalfVectorField()

    class Meta:
        managed = False
        verbose_name = "vector of a passage"

    @override
    def __str__(self) -> str:
        return f"vector of {self.chunk_id}"
