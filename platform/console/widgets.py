# mypy: allow-subclassing-any
"""Building blocks of the admin: badges, formatted times and numbers, and lists that are bounded by time.

Independent of models; each app's `admin` package builds its pages with them.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import Field, Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from typing_extensions import override
from unfold.admin import ModelAdmin

from console.active_filters import active_filters
from console.scripts import FORM_SCRIPTS, filter_media
from console.time_form import TimeForm
from core.clock import now

SHOWN_CHARACTERS = 64 * 1024
"""Characters of one payload that a page shows."""

# -- text and numbers --------------------------------------------------------------------------------------------------


_ACRONYM = re.compile(r"\b(?:api|id|json|mcp|url)\b")


def state_words(state: str) -> str:
    """Return a status in the one spelling of all pages: `in_progress` as "In progress".

    Names with a dot, such as those of audit events, stay as they are.
    """
    words = _ACRONYM.sub(lambda match: match[0].upper(), state.replace("_", " "))
    return state if "." in state else words[:1].upper() + words[1:]


# Cached: a list renders hundreds of badges, with few different texts.
@lru_cache(maxsize=512)
def badge(text: str, tone: str = "", hint: str = "") -> SafeString:
    """Return a coloured label; `tone` is success, danger, warning, info, primary, or empty for grey."""
    title = format_html(' title="{}"', hint) if hint else ""
    return format_html('<b class="c-tag {}"{}>{}</b>', tone, title, state_words(text))


def copyable(text: str, *, href: str | None = None) -> SafeString:
    """Return an id in a fixed-width font with a copy button."""
    return render_to_string("console/copyable.html", {"text": text, "href": href})


def key_cell(key: Any) -> SafeString | str:
    """Return prefix and last four characters of an API key; a dash for None."""
    return format_html('<code class="c-code c-key">{}…{}</code>', key.prefix, key.last_four) if key else "–"


def when(moment: datetime | None, note: str = "") -> SafeString | str:
    """Return a time on two lines: UTC, with the date unless it is today, and relative to now, or a note."""
    if moment is None:
        return "–"
    at = moment.astimezone(UTC)
    day = "" if at.date() == now().date() else f"{at:%d %b %Y} " if at.year != now().year else f"{at:%d %b} "
    return format_html(
        '<time class="c-when" datetime="{}" title="{} UTC"><span>{}</span><small>{}</small></time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S}",
        f"{day}{at:%H:%M:%S}",
        note or ago(at),
    )


def ago(moment: datetime) -> str:
    """Return `5 minutes ago` or `in 3 days`, in the largest unit only."""
    present = now()
    if abs(present - moment) < timedelta(minutes=1):
        return "just now" if moment <= present else "in a moment"
    if moment > present:
        return f"in {timesince(present, moment, depth=1)}"
    return f"{timesince(moment, present, depth=1)} ago"


def link(url: str, text: object) -> SafeString:
    """Return a link for a cell."""
    return format_html('<a class="c-link" href="{}">{}</a>', url, text)


def changelist_url(name: str, /, **query: Any) -> str:
    """Return the URL of the list of a model (`app_model`) with filters."""
    url = reverse(f"admin:{name}_changelist")
    return f"{url}?{urlencode(query, doseq=True)}" if query else url


def two_lines(first: str | SafeString, second: str | SafeString) -> SafeString:
    """Return a cell with a main line and a smaller line below it."""
    return format_html('<span class="c-two"><span dir="auto">{}</span><small>{}</small></span>', first, second)


# Names in the tooltip of a cell that shows only the first one.
_MAX_HINTS = 20


def first_of(names: Sequence[str], *, none: str = "–") -> SafeString | str:
    """Return a cell with the first name and the number of the others, so that a row keeps its height.

    A tooltip has the names.
    """
    if not names:
        return none
    others = len(names) - 1
    hint = ", ".join(names[:_MAX_HINTS]) + (" …" if len(names) > _MAX_HINTS else "")
    more = f"and {others:,} other{'s' if others > 1 else ''}" if others else ""
    return format_html('<span title="{}">{}</span>', hint, two_lines(names[0], more))


def duration(milliseconds: int | None) -> str:
    """Return `340 ms`, `1.24 s` or `3 min 20 s`; a dash for None."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.2f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


def size(count: int) -> str:
    """Return `812 B`, `4.1 KB` or `2.0 MB`, with decimal units."""
    if count < 1000:
        return f"{count} B"
    if count < 1_000_000:
        return f"{count / 1000:.1f} KB"
    return f"{count / 1_000_000:.1f} MB"


def compact(count: int) -> str:
    """Return `950`, `12.4k` or `3.1M`, short enough for a tile."""
    for limit, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (10_000, "k")):
        if count >= limit:
            scale = 1000 if unit == "k" else limit
            return f"{count / scale:.1f}{unit}"
    return f"{count:,}"


@dataclass(frozen=True, slots=True)
class Shown:
    """Beginning of a text, and the number of characters that were left out."""

    text: str
    hidden: int = 0

    @property
    def note(self) -> str:
        """Note below a truncated text; empty for a complete one."""
        return f"Truncated: {self.hidden:,} more characters not shown." if self.hidden else ""


def shown(text: str) -> Shown:
    """Return the text, truncated to 64 Ki characters."""
    return Shown(text[:SHOWN_CHARACTERS], max(0, len(text) - SHOWN_CHARACTERS))


def pretty(value: Any) -> Shown:
    """Return a JSON value, or a string that contains one, with indentation; other strings unchanged."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return shown(value)
    return shown(json.dumps(value, indent=2, ensure_ascii=False))


def json_block(value: Any) -> SafeString:
    """Return indented JSON as a field of a read-only form."""
    return render_to_string("console/code.html", {"code": pretty(value)})


# Spreadsheets run a cell that starts with one of these characters as a formula; an apostrophe before it makes it text.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class _Echo:
    """Pseudo-file for `csv.writer`, which then returns each line instead of writing it."""

    def write(self, line: str) -> str:
        return line


def csv_lines(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a CSV file."""
    writer = csv.writer(_Echo())
    for row in rows:
        yield writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in row])


def csv_file(name: str, rows: Iterable[Iterable[str]]) -> HttpResponse:
    """Return rows as a CSV file to download."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(csv_lines(rows), content_type="text/csv; charset=utf-8", headers=headers)


# -- columns -----------------------------------------------------------------------------------------------------------


def column(title: str, cell: Callable[[Any], Any], *, ordering: str | None = None) -> Callable[[Any, Any], Any]:
    """Return a method of an admin class that shows the cell of a row in a list or on a page."""

    @admin.display(description=title, ordering=ordering)
    def method(_: ModelAdmin, row: Any) -> Any:
        return cell(row)

    return method


def time_column(
    title: str, field: str, *, missing: str = "–", ordering: str | None = None
) -> Callable[[Any, Any], Any]:
    """Return a column with a time."""
    return column(title, lambda row: when(moment) if (moment := getattr(row, field)) else missing, ordering=ordering)


def count_column(title: str, field: str) -> Callable[[Any, Any], Any]:
    """Return a column with a number."""
    return column(title, lambda row: f"{getattr(row, field):,}")


def id_column() -> Callable[[Any, Any], Any]:
    """Return a column with the id."""
    return column("ID", lambda row: copyable(row.pk))


# -- lists bounded by time ---------------------------------------------------------------------------------------------


class Period(NamedTuple):
    """Period that ends now. `length` None means since midnight, UTC."""

    name: str
    title: str
    length: timedelta | None

    def since(self, present: datetime) -> datetime:
        """Return the beginning of the period."""
        if self.length is None:
            return present.replace(hour=0, minute=0, second=0, microsecond=0)
        return present - self.length


PERIODS = (
    Period("1h", "1 hour", timedelta(hours=1)),
    Period("24h", "24 hours", timedelta(hours=24)),
    Period("today", "Today", None),
    Period("7d", "7 days", timedelta(days=7)),
    Period("30d", "30 days", timedelta(days=30)),
)
DEFAULT_PERIOD = "24h"
_DEFAULT_RANGE = timedelta(days=30)
_BY_NAME = {period.name: period for period in PERIODS}


def _period_choices() -> list[tuple[str, str]]:
    titles = {period.name: f"Last {period.title}" if period.length else period.title for period in PERIODS}
    return [("", titles.pop(DEFAULT_PERIOD)), *titles.items()]


class TimeFilter(admin.FieldListFilter):
    """Filter that always bounds a list by time: by a custom range, a period, or by default the last 24 hours.

    A search is not bounded. A range without a beginning starts 30 days before its end.
    """

    template = "console/filters/time.html"
    form_class = TimeForm
    parameters_shown_elsewhere = ("period",)

    def __init__(
        self,
        field: "Field[Any, Any]",
        request: HttpRequest,
        params: dict[str, Any],
        model: type[Model],
        model_admin: admin.ModelAdmin[Any],
        field_path: str,
    ) -> None:
        super().__init__(field, request, params, model, model_admin, field_path)
        self.title = "time"
        self.request = request
        self.since, self.until = self._bounds(now(), is_search=bool(request.GET.get(SEARCH_VAR)))

    @override
    def expected_parameters(self) -> list[str | None]:
        return ["period", *(f"{self.field_path}_{end}_{part}" for end in ("from", "to") for part in (0, 1))]

    @override
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.since is not None:
            queryset = queryset.filter(**{f"{self.field_path}__gte": self.since})
        if self.until is not None:
            queryset = queryset.filter(**{f"{self.field_path}__lte": self.until})
        return queryset

    @override
    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        given = {name: self._given(name) for name in self.expected_parameters() if name}
        yield {"request": self.request, "form": self.form_class(self.field_path, _period_choices(), data=given)}

    @property
    def period(self) -> str:
        """Name of the active period; empty for a custom range or a search."""
        return "" if self.until or self.since is None else self._name()

    def links(self, changelist: ChangeList) -> list[dict[str, Any]]:
        """Return a link for each period that keeps the other filters."""
        # "p", the page number, is dropped too: the new list may be shorter.
        ranges = [name for name in self.expected_parameters() if name and name != "period"]
        return [
            {
                "title": period.title,
                "query": changelist.get_query_string({"period": period.name}, [*ranges, "p"]),
                "active": period.name == self.period,
            }
            for period in PERIODS
        ]

    def _bounds(self, present: datetime, *, is_search: bool) -> tuple[datetime | None, datetime | None]:
        since, until = self._range_end("from", "00:00:00"), self._range_end("to", "23:59:59")
        if since or until:
            return since or (until or present) - _DEFAULT_RANGE, until or present
        # A search looks up ids in an index, so it needs no bounds to be fast.
        if is_search and not self._given("period"):
            return None, None
        return _BY_NAME[self._name()].since(present), None

    def _name(self) -> str:
        name = self._given("period")
        return name if name in _BY_NAME else DEFAULT_PERIOD

    def _given(self, name: str) -> str:
        values = self.used_parameters.get(name) or [""]
        return str(values[-1] if isinstance(values, list) else values)

    def _range_end(self, end: str, default_time: str) -> datetime | None:
        date, time = (self._given(f"{self.field_path}_{end}_{part}") for part in (0, 1))
        try:
            return datetime.fromisoformat(f"{date}T{time or default_time}").replace(tzinfo=UTC)
        except ValueError:
            return None


class ConsoleAdmin(ModelAdmin):
    """Admin of a model with the console's defaults, and with the options of its query set as attributes."""

    actions: Any = None
    show_facets = admin.ShowFacets.NEVER
    # Columns that no page reads, such as secrets: decrypting them would be wasted work.
    list_defer: tuple[str, ...] = ()
    list_annotations: Mapping[str, Any] = {}
    # Relations that columns show. They are prefetched instead of joined, and `list_display` of a log contains no
    # foreign keys, as Django would join those: under row-level security the planner treats a join as a filter, and
    # reads the whole period instead of one page.
    list_prefetch: tuple[str, ...] = ()

    # Texts of an empty list: what it would contain, and what to do for it to contain something.
    empty_title = ""
    empty_text = ""
    empty_icon = "inbox"
    # Label of the button that adds an object, such as "Create an API key".
    add_label = ""

    @property
    def media(self) -> forms.Media:
        return forms.Media(js=FORM_SCRIPTS)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        # A list that is opened to choose an object for a form returns it by Django's scripts.
        scripts = ["admin/js/actions.js", *(FORM_SCRIPTS if IS_POPUP_VAR in request.GET else ())]
        media = {"media": forms.Media(js=scripts), "filter_media": filter_media(self.get_list_filter(request))}
        page = super().changelist_view(request, {**media, **(extra_context or {})})
        # A redirect has no context data.
        context = getattr(page, "context_data", None) or {}
        if (changelist := context.get("cl")) is not None:
            # On the change list: the context of its results contains nothing else.
            changelist.active_filters = active_filters(request, changelist)
            changelist.is_narrowed = bool(changelist.active_filters or changelist.query)
        return page

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: Any = super().get_queryset(request).defer(*self.list_defer).annotate(**self.list_annotations)
        return rows.prefetch_related(*self.list_prefetch)  # type: ignore[no-any-return]  # annotated rows have no type

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the parameters of the list's filters."""
        # Django would accept any column and annotation. A user without access to content could guess it letter by
        # letter, with a lookup such as `output__startswith`.
        filters = self.get_list_filter(request)
        names = {getattr(entry, "parameter_name", "") for entry in filters if isinstance(entry, type)}
        columns = [
            entry[0] if isinstance(entry, list | tuple) else entry for entry in filters if not isinstance(entry, type)
        ]
        is_of_filter = lookup in {*names, *columns, "period"} or lookup.startswith(
            tuple(f"{name}_" for name in columns)
        )
        # Django's own check still keeps columns of related rows out.
        return is_of_filter and bool(super().lookup_allowed(lookup, value, request))

    def get_or_404(self, request: HttpRequest, object_id: str) -> Any:
        """Return the object with an id from a URL. Raises 404 if it does not exist or the user cannot see it."""
        found = self.get_object(request, unquote(str(object_id)))
        if found is None or not self.has_view_permission(request, found):
            raise Http404
        return found

    # These views check first that the object exists. Django checks the permission for the whole model first: a model
    # that is read-only would answer 403 to an unknown id, and the 403 of a history would reveal that an id exists. The
    # page of an object is read more often, and answers 404 itself.
    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        if request.method == "POST":
            self.get_or_404(request, object_id)
        return super().change_view(request, object_id, form_url, extra_context)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        self.get_or_404(request, object_id)
        return super().delete_view(request, object_id, extra_context)

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        self.get_or_404(request, object_id)
        return super().history_view(request, object_id, extra_context)

    def render(self, request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
        """Render a page below the model's list."""
        frame = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, "title": title}
        page: Any = TemplateResponse(request, template, {**frame, **context})
        # Such pages are not compressed (`server.assets.compression`).
        page.shows_secret = "secret" in context
        return page  # type: ignore[no-any-return]

    def page_of(self, row: Model) -> str:
        """Return the URL of the page of an object."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[row.pk])


def tone(tones: Mapping[str, str], value: str) -> SafeString:
    """Return a badge for a value, coloured by `tones`; values without a tone are grey."""
    return badge(value, tones.get(value, ""))
