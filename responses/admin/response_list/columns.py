"""Columns of the response list, and which of them each user has chosen.

A page shows fifty rows, so their cells are plain: classes of list.css instead of the theme's, and no widgets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from console.widgets import ago, duration
from core.clock import now
from responses.admin import cells
from responses.models import Response
from tenants.console.content_access import HIDDEN
from tenants.models import ListColumns

_LIST = "responses"
# Longer names are cut by the width of their column at most widths, so that they need a tooltip.
_SHORT = 14
Cell = SafeString | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListColumn:
    """A column. `name` is also its class in list.css: `c-list-<name>`."""

    name: str
    title: str
    cell: Callable[[Response], Cell]
    is_default: bool = True


def _two(first: Cell, second: Cell) -> Cell:
    return format_html("{}<small>{}</small>", first, second) if second else first


def _name(text: str) -> Cell:
    title = format_html(' title="{}"', text) if len(text) > _SHORT else ""
    return format_html('<span dir="auto"{}>{}</span>', title, text)


def _time(row: Response) -> Cell:
    at, today = row.created_at.astimezone(UTC), now()
    # Seconds matter for recent responses only; a day leaves no room for them.
    form = "%H:%M:%S" if at.date() == today.date() else "%d %b %H:%M" if at.year == today.year else "%d %b %Y"
    whole, shown = f"{at:%Y-%m-%d %H:%M:%S} UTC", f"{at:{form}}"
    link = format_html('<a href="{}" title="{}">{}</a>', cells.url(row.pk), whole, shown)
    return _two(link, ago(at))


def _status(row: Response) -> Cell:
    tone = cells.STATUS_TONES.get(row.status, "")
    return _two(format_html('<b class="c-tag {}">{}</b>', tone, row.status.replace("_", " ")), cells.mode(row))


def _text(row: Response, text: str) -> Cell:
    """Return a preview, masked unless the row is `readable`."""
    # An empty preview stays empty: a mask would suggest that there is text.
    shown = text if getattr(row, "readable", False) or not text else HIDDEN
    return format_html('<span dir="auto">{}</span>', shown)


def _output(row: Response) -> Cell:
    preview = _text(row, row.output_preview) if row.stored else "not stored"
    # The reason comes first: the preview may be long and is cut.
    reason = row.error_code or row.incomplete_reason
    if reason is None:
        return preview
    return format_html('<b class="c-tag {}">{}</b> {}', "danger" if row.error_code else "warning", reason, preview)


def _team(row: Response) -> Cell:
    return _two(_name(row.team.name), f"{row.api_key.prefix}…{row.api_key.last_four}")


def _model(row: Response) -> Cell:
    # Routes may map a model name to another name at the upstream.
    is_same = row.upstream_model == row.model
    return _two(_name(row.model), "" if is_same else _name(f"→ {row.upstream_model}"))


def _tokens(row: Response) -> Cell:
    cached = f"{row.cached_tokens:,} cached" if row.cached_tokens else ""
    return _two(f"{row.input_tokens:,} / {row.output_tokens:,}", cached)


COLUMNS = (
    ListColumn(name="time", title="Time", cell=_time),
    ListColumn(name="status", title="Status", cell=_status),
    ListColumn(name="input", title="Input", cell=lambda row: _text(row, row.input_preview)),
    ListColumn(name="output", title="Output", cell=_output),
    ListColumn(name="team", title="Team", cell=_team),
    ListColumn(name="model", title="Model", cell=_model),
    ListColumn(name="tokens", title="Tokens", cell=_tokens),
    ListColumn(name="cost", title="Cost", cell=cells.cost),
    ListColumn(name="duration", title="Duration", cell=lambda row: duration(row.duration_ms)),
    ListColumn(name="ttft", title="First token", cell=lambda row: duration(row.first_token_ms)),
    ListColumn(name="id", title="ID", cell=lambda row: row.pk, is_default=False),
    ListColumn(name="conversation", title="Conversation", cell=cells.conversation, is_default=False),
    ListColumn(name="turns", title="Turns", cell=lambda row: f"{row.turns:,}", is_default=False),
    ListColumn(name="tools", title="Tool calls", cell=cells.tools, is_default=False),
    ListColumn(
        name="reasoning", title="Reasoning tokens", cell=lambda row: f"{row.reasoning_tokens:,}", is_default=False
    ),
    ListColumn(name="user", title="End user", cell=lambda row: _name(row.end_user or "–"), is_default=False),
    ListColumn(name="request", title="Request ID", cell=lambda row: row.request_id or "–", is_default=False),
)
DEFAULT = [column.name for column in COLUMNS if column.is_default]


def _choices(request: HttpRequest) -> QuerySet[ListColumns]:
    # Users are always signed in here: the admin's decorator has checked it.
    return ListColumns.objects.filter(user=cast("User", request.user), name=_LIST)


def chosen_columns(request: HttpRequest) -> Sequence[ListColumn]:
    """Return the columns that the user sees, in the order of the list."""
    choice = _choices(request).first()
    names = set(choice.columns if choice else DEFAULT)
    # The time is the link to the response's page, so it is always shown.
    return [column for column in COLUMNS if column.name in names or column.name == "time"]


@require_POST
def choose_columns(request: HttpRequest) -> HttpResponse:
    """Store the columns that a user has chosen, or restore the default, and return to the list."""
    rows = _choices(request)
    if "reset" in request.POST:
        rows.delete()
    else:
        given = set(request.POST.getlist("column"))
        names = [column.name for column in COLUMNS if column.name in given]
        rows.update_or_create(user=cast("User", request.user), name=_LIST, defaults={"columns": names})
    back = request.POST.get("back", "")
    is_safe = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    return HttpResponseRedirect(back if is_safe else reverse("admin:responses_response_changelist"))
