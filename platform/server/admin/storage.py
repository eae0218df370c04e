# mypy: allow-subclassing-any
"""Admin pages of stored objects other than responses: batches, vector stores, files, containers, chat completions.

They are read-only: objects are changed through the API. Except for chat completions these tables are small, so their
lists are bounded by an index and a page size instead of a time range.
"""

from datetime import timedelta
from typing import Any

from django.contrib.admin import display, register
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import reverse
from django.utils.safestring import SafeString
from typing_extensions import override

from console.filters import (
    ChoicesFilter,
    RelatedFilter,
    SingleChoiceFilter,
    exact,
)
from console.logs import LogAdmin
from console.tables import Column, Table
from console.widgets import (
    TimeFilter,
    badge,
    column,
    copyable,
    key_cell,
    link,
    pretty,
    size,
    time_column,
    tone,
    two_lines,
    when,
)
from containers.models import Container, ContainerFile
from conversations.models import File
from core.clock import now
from responses.models import ChatCompletion
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreFile
from server.admin.search.lookup import url_of
from skills.models import Skill, SkillVersion
from tenants.console.content_access import audit_read
from tenants.console.permissions import TeamScoped
from tenants.console.viewer import viewer_of
from tenants.models import ApiKey, Team

# Maximum number of rows of one table on a page. A batch may have 50,000 requests.
SHOWN_ROWS = 200
_TONES = {
    "completed": "success", "ready": "success", "failed": "danger", "expired": "warning", "cancelled": "warning",
    "cancelling": "warning", "in_progress": "info", "validating": "info", "finalizing": "info", "queued": "info",
    "running": "info",
}  # fmt: skip

Cell = str | SafeString


class StoredObjectAdmin(LogAdmin, TeamScoped):
    """Base class: a list with a search by exact id, and a page with details, tables and content."""

    list_prefetch = ("team", "api_key")
    # No links to time ranges above the list.
    list_before_template = ""
    search_fields = ["id"]
    search_help_text = "Exact ID"
    time = time_column("Time", "created_at")
    team_name = column("Team", lambda row: str(row.team.name))

    def details(self, row: Any) -> list[tuple[str, Cell]]:
        """Return labels and values for the top of the page."""
        raise NotImplementedError

    def related(self, row: Any) -> Table[Any] | None:
        """Return the table of related rows."""
        return None

    def payloads(self, row: Any) -> dict[str, Any]:
        """Return the content by title. Only called for viewers who may read it."""
        return {}

    @override
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Serve the page of one object."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        viewer, row = viewer_of(request), self.get_or_404(request, object_id)
        can_read = viewer.may_read(row.team_id)
        shown = self.payloads(row) if can_read else {}
        # Only pages that display content are recorded, not those that hide it or have none.
        if shown:
            audit_read(viewer, row, team_id=row.team_id)
        # The notice about hidden content appears only on pages that could display content.
        has_content = type(self).payloads is not StoredObjectAdmin.payloads
        return self.render(
            request,
            "admin/responses/storage/detail.html",
            str(row),
            original=row,
            is_fullwidth="1",
            details=[
                ("ID", copyable(row.pk)),
                ("Team", link(url_of(Team, row.team.pk), row.team.name)),
                *self.details(row),
            ],
            table=self.related(row),
            payloads=[(title, pretty(value)) for title, value in shown.items()],
            hidden_team=row.team_id if has_content and not can_read else "",
        )

    @display(description="ID")
    def public_id(self, row: Any) -> SafeString:
        return copyable(row.pk, href=url_of(self.model, row.pk))


def _key(key: ApiKey | None) -> Cell:
    return link(url_of(ApiKey, key.pk), str(key)) if key else "–"


def _go(public_id: str | None) -> Cell:
    return copyable(public_id, href=reverse("console:go", args=[public_id])) if public_id else "–"


@register(Batch)
class BatchAdmin(StoredObjectAdmin):
    """Batches and their progress."""

    empty_text = "A batch runs a file of requests in the background. It is created with POST /v1/batches."

    list_display = ["time", "public_id", "team_name", "state", "endpoint", "model_name", "progress"]
    list_filter = [("status", ChoicesFilter), ("team", RelatedFilter)]
    state = column("Status", lambda batch: tone(_TONES, batch.status))
    model_name = column("Model", lambda batch: batch.model or "multiple")

    @display(description="Requests")
    def progress(self, batch: Batch) -> SafeString:
        failed = f"{batch.failed:,} failed" if batch.failed else ""
        return two_lines(f"{batch.completed:,} of {batch.total:,}", failed)

    @override
    def details(self, row: Batch) -> list[tuple[str, Cell]]:
        return [
            ("Status", self.state(row)),
            ("Requests", self.progress(row)),
            ("Endpoint", row.endpoint),
            ("Model", self.model_name(row)),
            ("API key", _key(row.api_key)),
            ("Request ID", _go(row.request_id)),
            ("Input file", _go(row.input_file_id)),
            ("Output file", _go(row.output_file_id)),
            ("Error file", _go(row.error_file_id)),
            ("Created", when(row.created_at)),
            ("Started", when(row.in_progress_at)),
            ("Ended", when(row.ended_at)),
            ("Expires", when(row.expires_at)),
            ("Tokens in / out", f"{row.input_tokens:,} / {row.output_tokens:,}"),
            *self._file_failures(row),
        ]

    def _file_failures(self, row: Batch) -> list[tuple[str, Cell]]:
        if not row.file_failures:
            return []
        return [
            ("Files", two_lines(f"cannot be read or stored: {row.file_error}", f"{row.file_failures:,} attempts")),
            ("Next attempt", when(row.files_retry_at)),
        ]

    @override
    def related(self, row: Batch) -> Table[Any] | None:
        """Return the requests of a running batch. They are deleted when it ends."""
        # Without bodies and answers: the page shows up to 200 lines, and each may have megabytes.
        lines = BatchLine.objects.filter(batch=row, team_id=row.team_id).defer("body", "answer").order_by("position")
        table = Table.of(
            "Requests",
            (
                Column("Line", lambda line: str(line.position + 1)),
                Column("Custom ID", lambda line: line.custom_id),
                Column("Status", lambda line: tone(_TONES, line.state)),
                Column("HTTP status", lambda line: str(line.status_code or "–")),
                Column("Error", lambda line: line.error_code or "–"),
                Column("Tokens in / out", lambda line: f"{line.input_tokens:,} / {line.output_tokens:,}"),
                Column("Request ID", lambda line: _go(line.request_id)),
            ),
            lines,
            most=SHOWN_ROWS,
        )
        return table if table.rows else None

    @override
    def payloads(self, row: Batch) -> dict[str, Any]:
        content = {"Input errors": row.errors, "Metadata": row.metadata}
        return {title: value for title, value in content.items() if value}


@register(VectorStore)
class VectorStoreAdmin(StoredObjectAdmin):
    """Vector stores and their files."""

    empty_text = "A vector store holds files for file search. It is created with POST /v1/vector_stores."

    list_display = ["time", "public_id", "name", "team_name", "embeddings", "active", "expiry"]
    list_filter = [("team", RelatedFilter), exact("name", "name")]
    embeddings = column(
        "Embedding model",
        lambda store: two_lines(
            store.embedding_model or "–", f"{store.dimensions} dimensions" if store.dimensions else ""
        ),
    )
    active = time_column("Last used", "last_active_at")

    @display(description="Expires")
    def expiry(self, store: VectorStore) -> Cell:
        if store.expires_after_days is None:
            return "never"
        # Expiry counts from the last use, as in OpenAI's `expires_after` with anchor `last_active_at`.
        ends = store.last_active_at + timedelta(days=store.expires_after_days)
        return badge("expired", "warning") if ends <= now() else when(ends)

    @override
    def details(self, row: VectorStore) -> list[tuple[str, Cell]]:
        return [
            ("Name", row.name or "–"),
            ("Description", row.description or "–"),
            ("Embedding model", self.embeddings(row)),
            ("API key", _key(row.api_key)),
            ("Created", when(row.created_at)),
            ("Last used", self.active(row)),
            ("Expires", self.expiry(row)),
        ]

    @override
    def related(self, row: VectorStore) -> Table[Any]:
        entries = VectorStoreFile.objects.filter(store=row, team_id=row.team_id).prefetch_related("file")
        return Table.of(
            "Files",
            (
                Column("File", lambda entry: link(url_of(File, entry.file_id), entry.file.filename)),
                Column("ID", lambda entry: _go(entry.file_id)),
                Column("Status", lambda entry: two_lines(tone(_TONES, entry.status), entry.error_message)),
                Column("Chunks", lambda entry: f"{entry.chunks:,}"),
                Column("Size", lambda entry: size(entry.usage_bytes)),
                Column("Added", lambda entry: when(entry.created_at)),
            ),
            entries.order_by("-created_at", "-file_id"),
            most=SHOWN_ROWS,
        )

    @override
    def payloads(self, row: VectorStore) -> dict[str, Any]:
        return {"Metadata": row.metadata} if row.metadata else {}


@register(File)
class FileAdmin(StoredObjectAdmin):
    """Uploaded and generated files, without their content."""

    empty_text = "Files are uploaded with POST /v1/files."

    list_display = ["time", "public_id", "filename", "team_name", "purpose", "shown_size", "state_badge", "expiry"]
    list_filter = [("purpose", SingleChoiceFilter), ("team", RelatedFilter)]
    shown_size = column("Size", lambda file: size(file.size))
    expiry = time_column("Expires", "expires_at", missing="never")

    @display(description="Status")
    def state_badge(self, file: File) -> SafeString:
        # Retention deletes expired files some time after they expire; the API treats them as deleted already.
        if file.expires_at is not None and file.expires_at <= now():
            return badge("expired", "warning")
        return tone(_TONES, file.state)

    @override
    def details(self, row: File) -> list[tuple[str, Cell]]:
        return [
            ("Name", row.filename),
            ("Purpose", row.get_purpose_display()),
            ("Content type", row.content_type),
            ("Size", f"{row.size:,} bytes"),
            ("Status", self.state_badge(row)),
            ("SHA-256", copyable(row.sha256) if row.sha256 else "–"),
            ("API key", _key(row.api_key)),
            ("Created", when(row.created_at)),
            ("Expires", self.expiry(row)),
        ]

    @override
    def related(self, row: File) -> Table[Any] | None:
        entries = VectorStoreFile.objects.filter(file=row, team_id=row.team_id).prefetch_related("store")
        table = Table.of(
            "Vector stores",
            (
                Column("Vector store", lambda entry: link(url_of(VectorStore, entry.store_id), str(entry.store))),
                Column("Status", lambda entry: tone(_TONES, entry.status)),
            ),
            entries.order_by("-created_at"),
            most=SHOWN_ROWS,
        )
        return table if table.rows else None


@register(Container)
class ContainerAdmin(StoredObjectAdmin):
    """Containers in which code interpreter and shell commands run."""

    empty_text = "Containers are created for the code interpreter, or with POST /v1/containers."

    list_display = ["time", "public_id", "name", "team_name", "state", "memory_limit", "active"]
    list_filter = [("team", RelatedFilter), exact("name", "name")]
    active = time_column("Last used", "last_active_at")

    @display(description="Status")
    def state(self, container: Container) -> SafeString:
        # Rows outlive their containers, for example when the sandbox service restarts.
        if container.lost:
            return badge("lost", "danger", "Its processes ended before it expired")
        return badge("running", "success") if container.runs_at(now()) else badge("expired")

    @override
    def details(self, row: Container) -> list[tuple[str, Cell]]:
        return [
            ("Name", row.name),
            ("Status", self.state(row)),
            ("Memory limit", row.memory_limit),
            ("Expires after", f"{row.idle_minutes} minutes of inactivity"),
            ("API key", _key(row.api_key)),
            ("Created", when(row.created_at)),
            ("Last used", self.active(row)),
        ]

    @override
    def related(self, row: Container) -> Table[Any]:
        files = ContainerFile.objects.filter(container=row, team_id=row.team_id)
        return Table.of(
            "Files",
            (
                Column("Path", lambda file: file.path),
                Column("ID", lambda file: copyable(file.pk)),
                Column("Size", lambda file: size(file.size)),
                Column("Source", lambda file: file.get_source_display()),
                Column("First seen", lambda file: when(file.created_at)),
            ),
            files.order_by("-created_at", "-id"),
            most=SHOWN_ROWS,
        )


@register(Skill)
class SkillAdmin(StoredObjectAdmin):
    """Skills of teams. Their files are read through the API."""

    empty_text = "Skills are uploaded with POST /v1/skills."

    list_display = ["time", "public_id", "name", "team_name", "default_version", "latest_version"]
    list_filter = [("team", RelatedFilter), exact("name", "name")]

    @override
    def details(self, row: Skill) -> list[tuple[str, Cell]]:
        return [
            ("Name", row.name),
            ("Description", row.description),
            ("Default version", str(row.default_version)),
            ("Latest version", str(row.latest_version)),
            ("API key", _key(row.api_key)),
            ("Created", when(row.created_at)),
        ]

    @override
    def related(self, row: Skill) -> Table[Any]:
        versions = SkillVersion.objects.filter(skill=row, team_id=row.team_id).defer("archive")
        return Table.of(
            "Versions",
            (
                Column("Version", lambda version: str(version.number)),
                Column("ID", lambda version: copyable(version.pk)),
                Column("Name", lambda version: version.name),
                Column("Files", lambda version: str(version.files)),
                Column("Size", lambda version: size(version.archive_size)),
                Column("Created", lambda version: when(version.created_at)),
            ),
            versions.order_by("-number"),
            most=SHOWN_ROWS,
        )


@register(ChatCompletion)
class ChatCompletionAdmin(StoredObjectAdmin):
    """Chat completions that were requested with `store` set to true."""

    empty_text = "Chat completions are listed if the request has store set to true."

    list_display = ["time", "public_id", "team_name", "key", "model"]
    list_before_template = LogAdmin.list_before_template
    list_filter = [("created_at", TimeFilter), ("team", RelatedFilter), exact("model", "model")]

    # Content may be large and is only needed on the page of one completion.
    list_defer = ("messages", "body", "parameters", "metadata")
    key = column("API key", lambda completion: key_cell(completion.api_key))

    @override
    def details(self, row: ChatCompletion) -> list[tuple[str, Cell]]:
        return [
            ("Model", row.model),
            ("API key", _key(row.api_key)),
            ("Request ID", _go(row.request_id)),
            ("Created", when(row.created_at)),
        ]

    @override
    def payloads(self, row: ChatCompletion) -> dict[str, Any]:
        content = {"Messages": row.messages, "Completion": row.body, "Parameters": row.parameters}
        return {**content, "Metadata": row.metadata} if row.metadata else content
