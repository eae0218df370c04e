# mypy: allow-subclassing-any
"""Admin pages of stored objects besides responses: batches, vector stores, files, containers, chat completions.

They are read-only: objects are changed through the API. Except for chat completions these tables are small, so their
lists are bounded by an index and a page size instead of a time range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import (
    AutocompleteSelectFilter,
    ChoicesDropdownFilter,
    MultipleChoicesDropdownFilter,
)

from console.widgets import LogAdmin, Shown, TimeFilter, badge, copyable, exact, pretty, size, tone, two_lines, when
from conversations.models import File
from kernel.clock import now
from responses.admin.search.id_lookup import url_of
from responses.containers.models import Container, ContainerFile
from responses.models import ChatCompletion
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreFile
from tenants.console.content_access import audit_read, hidden_notice, may_read
from tenants.console.roles import TeamScoped
from tenants.models import ApiKey, Team

# Rows of one table on a page. A batch may have 50,000 requests.
SHOWN_ROWS = 200
_TONES = {
    "completed": "success", "ready": "success", "failed": "danger", "expired": "warning", "cancelled": "warning",
    "cancelling": "warning", "in_progress": "info", "validating": "info", "finalizing": "info", "queued": "info",
    "running": "info",
}  # fmt: skip

Cell = str | SafeString
_Row = TypeVar("_Row", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that belong to an object. `has_more` if there are rows beyond those listed."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Content with a heading."""

    title: str
    body: Shown


class StoredObjectAdmin(LogAdmin, TeamScoped):
    """Base class: a list with a search by exact id, and a page with details, tables and content."""

    list_prefetch: tuple[str, ...] = ("team",)
    # No links to time ranges above the list.
    list_before_template = ""
    ordering = ["-created_at", "-id"]
    # Sorting by other columns would need an index for each of them.
    sortable_by = ()
    search_fields = ["id"]
    search_help_text = "Exact ID"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        # Exact ids only: a search for parts would read the whole table.
        row_id = search_term.strip()
        return (queryset.filter(pk=row_id) if row_id else queryset), False

    def details(self, row: Any) -> list[tuple[str, Cell]]:
        """Return labels and values for the top of the page."""
        raise NotImplementedError

    def tables(self, row: Any) -> list[Table]:
        """Return tables of related rows."""
        return []

    def payloads(self, row: Any) -> list[Payload]:
        """Return the content. Only called for viewers who may read it."""
        return []

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Serve the page of one object."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        rows = self.get_queryset(request)
        row = rows.filter(pk=unquote(object_id)).first()
        if row is None or not self.has_view_permission(request, row):
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        can_read = may_read(request, row.team_id)
        shown = self.payloads(row) if can_read else []
        # Only pages that display content are recorded, not those that hide it or have none.
        if shown:
            audit_read(request, row, team_id=row.team_id)
        # The notice about hidden content appears only on pages that could display content.
        has_content = type(self).payloads is not StoredObjectAdmin.payloads
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": row,
            "title": str(row),
            "is_fullwidth": "1",
            "details": [("ID", copyable(row.pk)), ("Team", _team(row.team)), *self.details(row)],
            "tables": self.tables(row),
            "payloads": shown,
            "hidden": hidden_notice(request, row.team_id) if has_content and not can_read else "",
        }
        return TemplateResponse(request, "admin/responses/storage/detail.html", context)

    @display(description="Time")
    def time(self, row: Any) -> Cell:
        return when(row.created_at)

    @display(description="ID")
    def public_id(self, row: Any) -> SafeString:
        return copyable(row.pk, href=url_of(self.model, row.pk))

    @display(description="Team")
    def team_name(self, row: Any) -> str:
        return str(row.team.name)


def _team(team: Team) -> SafeString:
    return _link(team.name, url_of(Team, team.pk))


def _key(key: ApiKey | None) -> Cell:
    return _link(str(key), url_of(ApiKey, key.pk)) if key else "–"


def _link(text: str, url: str) -> SafeString:
    return format_html('<a class="c-link" href="{}">{}</a>', url, text)


def _file(file_id: str | None) -> Cell:
    return copyable(file_id, href=reverse("console:go", args=[file_id])) if file_id else "–"


def _request(request_id: str) -> Cell:
    return copyable(request_id, href=reverse("console:go", args=[request_id])) if request_id else "–"


def _metadata(values: dict[str, Any] | None) -> list[Payload]:
    return [Payload(title="Metadata", body=pretty(values))] if values else []


def _first_rows(rows: "QuerySet[_Row]") -> tuple[list[_Row], bool]:
    """Return the first rows, and whether there are more."""
    # One row more than shown, to learn without counting whether there are others.
    read = list(rows[: SHOWN_ROWS + 1])
    return read[:SHOWN_ROWS], len(read) > SHOWN_ROWS


@register(Batch)
class BatchAdmin(StoredObjectAdmin):
    """Batches and their progress."""

    list_display = ["time", "public_id", "team_name", "state", "endpoint", "model_name", "progress"]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_filter = [("status", MultipleChoicesDropdownFilter), ("team", AutocompleteSelectFilter)]

    @display(description="Status")
    def state(self, batch: Batch) -> SafeString:
        return tone(_TONES, batch.status)

    @display(description="Model")
    def model_name(self, batch: Batch) -> str:
        return batch.model or "multiple"

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
            ("Request ID", _request(row.request_id)),
            ("Input file", _file(row.input_file_id)),
            ("Output file", _file(row.output_file_id)),
            ("Error file", _file(row.error_file_id)),
            ("Created", when(row.created_at)),
            ("Started", when(row.in_progress_at)),
            ("Ended", when(row.ended_at)),
            ("Expires", when(row.expires_at)),
            ("Tokens in / out", f"{row.input_tokens:,} / {row.output_tokens:,}"),
        ]

    @override
    def tables(self, row: Batch) -> list[Table]:
        """Return the requests of a running batch. They are deleted when it ends."""
        # Without bodies and answers: the page shows up to 200 lines, and each may have megabytes.
        lines = BatchLine.objects.filter(batch=row, team_id=row.team_id).defer("body", "answer").order_by("position")
        shown, has_more = _first_rows(lines)
        rows = [
            [
                str(line.position + 1),
                line.custom_id,
                tone(_TONES, line.state),
                str(line.status_code or "–"),
                line.error_code or "–",
                f"{line.input_tokens:,} / {line.output_tokens:,}",
                _request(line.request_id),
            ]
            for line in shown
        ]
        headers = ["Line", "Custom ID", "Status", "HTTP status", "Error", "Tokens in / out", "Request ID"]
        return [Table(title="Requests", headers=headers, rows=rows, has_more=has_more)] if rows else []

    @override
    def payloads(self, row: Batch) -> list[Payload]:
        wrong = [Payload(title="Input errors", body=pretty(row.errors))] if row.errors else []
        return [*wrong, *_metadata(row.metadata)]


@register(VectorStore)
class VectorStoreAdmin(StoredObjectAdmin):
    """Vector stores and their files."""

    list_display = ["time", "public_id", "name", "team_name", "embeddings", "active", "expiry"]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_filter = [("team", AutocompleteSelectFilter), exact("name", "name")]

    @display(description="Embedding model")
    def embeddings(self, store: VectorStore) -> Cell:
        return two_lines(store.embedding_model or "–", f"{store.dimensions} dimensions" if store.dimensions else "")

    @display(description="Last used")
    def active(self, store: VectorStore) -> Cell:
        return when(store.last_active_at)

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
    def tables(self, row: VectorStore) -> list[Table]:
        entries = VectorStoreFile.objects.filter(store=row, team_id=row.team_id).prefetch_related("file")
        shown, has_more = _first_rows(entries.order_by("-created_at", "-file_id"))
        rows = [
            [
                _link(entry.file.filename, url_of(File, entry.file_id)),
                _file(entry.file_id),
                two_lines(tone(_TONES, entry.status), entry.error_message),
                f"{entry.chunks:,}",
                size(entry.usage_bytes),
                when(entry.created_at),
            ]
            for entry in shown
        ]
        headers = ["File", "ID", "Status", "Chunks", "Size", "Added"]
        return [Table(title="Files", headers=headers, rows=rows, has_more=has_more)]

    @override
    def payloads(self, row: VectorStore) -> list[Payload]:
        return _metadata(row.metadata)


@register(File)
class FileAdmin(StoredObjectAdmin):
    """Uploaded and generated files, without their content."""

    list_display = ["time", "public_id", "filename", "team_name", "purpose", "shown_size", "state_badge", "expiry"]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_filter = [("purpose", ChoicesDropdownFilter), ("team", AutocompleteSelectFilter)]

    @display(description="Size")
    def shown_size(self, file: File) -> str:
        return size(file.size)

    @display(description="Status")
    def state_badge(self, file: File) -> SafeString:
        # Retention deletes expired files some time after they expire; the API treats them as deleted already.
        if file.expires_at is not None and file.expires_at <= now():
            return badge("expired", "warning")
        return tone(_TONES, file.state)

    @display(description="Expires")
    def expiry(self, file: File) -> Cell:
        return when(file.expires_at) if file.expires_at else "never"

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
    def tables(self, row: File) -> list[Table]:
        entries = VectorStoreFile.objects.filter(file=row, team_id=row.team_id).prefetch_related("store")
        shown, has_more = _first_rows(entries.order_by("-created_at"))
        rows = [
            [_link(str(entry.store), url_of(VectorStore, entry.store_id)), tone(_TONES, entry.status)]
            for entry in shown
        ]
        table = Table(title="Vector stores", headers=["Vector store", "Status"], rows=rows, has_more=has_more)
        return [table] if rows else []


@register(Container)
class ContainerAdmin(StoredObjectAdmin):
    """Containers in which code interpreter and shell commands run."""

    list_display = ["time", "public_id", "name", "team_name", "state", "memory_limit", "active"]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_filter = [("team", AutocompleteSelectFilter), exact("name", "name")]

    @display(description="Status")
    def state(self, container: Container) -> SafeString:
        # Rows outlive their containers, for example when the sandbox service restarts.
        if container.lost:
            return badge("lost", "danger", "Its processes ended before it expired")
        return badge("running", "success") if container.runs_at(now()) else badge("expired")

    @display(description="Last used")
    def active(self, container: Container) -> Cell:
        return when(container.last_active_at)

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
    def tables(self, row: Container) -> list[Table]:
        files = ContainerFile.objects.filter(container=row, team_id=row.team_id).order_by("-created_at", "-id")
        shown, has_more = _first_rows(files)
        rows = [
            [file.path, copyable(file.pk), size(file.size), file.get_source_display(), when(file.created_at)]
            for file in shown
        ]
        headers = ["Path", "ID", "Size", "Source", "First seen"]
        return [Table(title="Files", headers=headers, rows=rows, has_more=has_more)]


@register(ChatCompletion)
class ChatCompletionAdmin(StoredObjectAdmin):
    """Stored chat completions: those requested with `store` set to true."""

    list_display = ["time", "public_id", "team_name", "key", "model"]
    list_display_links = ["time"]
    list_prefetch = ("team", "api_key")
    list_before_template = LogAdmin.list_before_template
    list_filter = [("created_at", TimeFilter), ("team", AutocompleteSelectFilter), exact("model", "model")]

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Content may be large and is only needed on the page of one completion.
        return super().get_queryset(request).defer("messages", "body", "parameters", "metadata")

    @display(description="API key")
    def key(self, completion: ChatCompletion) -> Cell:
        key = completion.api_key
        return format_html('<code class="c-code">{}…{}</code>', key.prefix, key.last_four) if key else "–"

    @override
    def details(self, row: ChatCompletion) -> list[tuple[str, Cell]]:
        return [
            ("Model", row.model),
            ("API key", _key(row.api_key)),
            ("Request ID", _request(row.request_id)),
            ("Created", when(row.created_at)),
        ]

    @override
    def payloads(self, row: ChatCompletion) -> list[Payload]:
        return [
            Payload(title="Messages", body=pretty(row.messages)),
            Payload(title="Completion", body=pretty(row.body)),
            Payload(title="Parameters", body=pretty(row.parameters)),
            *_metadata(row.metadata),
        ]
