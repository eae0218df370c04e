# mypy: allow-subclassing-any
"""What the admin's pages share: badges, times and numbers as people read them, and logs that are read by time.

Knows no table; each app's `admin` builds its pages from it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import Field, Model, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from typing_extensions import override
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import TextFilter
from unfold.contrib.filters.forms import RangeDateTimeForm
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminSelectWidget

from kernel.clock import now

SHOWN_CHARACTERS = 64 * 1024
"""How much of one payload a page shows."""

# -- words and numbers -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def badge(text: str, tone: str = "", hint: str = "") -> SafeString:
    """A coloured label; `tone` is one of Unfold's (success, danger, warning, info, primary) or empty for grey."""
    return render_to_string("unfold/helpers/label.html", {"text": text, "type": tone, "label_title": hint})


def copyable(text: str, *, href: str | None = None) -> SafeString:
    """An id in a fixed-width font with a button that copies it."""
    return render_to_string("console/copyable.html", {"text": text, "href": href})


def when(moment: datetime | None) -> SafeString | str:
    """A moment on two lines: its time (UTC; with the date unless it is today), and how long ago that is."""
    if moment is None:
        return "–"
    at = moment.astimezone(UTC)
    day = "" if at.date() == now().date() else f"{at:%d %b %Y} " if at.year != now().year else f"{at:%d %b} "
    return format_html(
        '<time class="c-when" datetime="{}" title="{} UTC"><span>{}</span><small>{}</small></time>',
        at.isoformat(),
        f"{at:%Y-%m-%d %H:%M:%S}",
        f"{day}{at:%H:%M:%S}",
        ago(at),
    )


def ago(moment: datetime) -> str:
    """`5 minutes ago`, `in 3 days`: the one unit that matters."""
    present = now()
    if abs(present - moment) < timedelta(minutes=1):
        return "just now" if moment <= present else "in a moment"
    if moment > present:
        return f"in {timesince(present, moment, depth=1)}"
    return f"{timesince(moment, present, depth=1)} ago"


def two_lines(first: str | SafeString, second: str | SafeString) -> SafeString:
    """What a cell says, and smaller below it what belongs to that."""
    return format_html('<span class="c-two"><span>{}</span><small>{}</small></span>', first, second)


def duration(milliseconds: int | None) -> str:
    """`340 ms`, `1.24 s`, `3 min 20 s`; a dash for what is not known."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.2f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


def size(count: int) -> str:
    """`812 B`, `4.1 KB`, `2.0 MB`."""
    if count < 1000:
        return f"{count} B"
    if count < 1_000_000:
        return f"{count / 1000:.1f} KB"
    return f"{count / 1_000_000:.1f} MB"


def compact(count: int) -> str:
    """`950`, `12.4k`, `3.1M`: what fits on a tile."""
    for limit, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (10_000, "k")):
        if count >= limit:
            scale = 1000 if unit == "k" else limit
            return f"{count / scale:.1f}{unit}"
    return f"{count:,}"


@dataclass(frozen=True, slots=True)
class Shown:
    """A text as a page shows it: its beginning, and how many characters were left out."""

    text: str
    hidden: int = 0

    @property
    def note(self) -> str:
        """What the page says under a text that was cut; empty for a whole one."""
        return f"Cut here: {self.hidden:,} more characters are not shown." if self.hidden else ""


def shown(text: str) -> Shown:
    """The text, cut at 64 Ki characters."""
    return Shown(text[:SHOWN_CHARACTERS], max(0, len(text) - SHOWN_CHARACTERS))


def pretty(value: Any) -> Shown:
    """A JSON value, or a string that may hold one, indented."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return shown(value)
    return shown(json.dumps(value, indent=2, ensure_ascii=False))


def json_block(value: Any) -> SafeString:
    """`pretty` as a field of a read-only form."""
    text = pretty(value)
    return render_to_string("console/code.html", {"code": text})


def made_at(wire_id: str) -> datetime | None:
    """When an id of `kernel.ids` was made; None for other strings."""
    _, _, digits = wire_id.partition("_")
    try:
        return datetime.fromtimestamp(int(digits[:12], 16) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


# -- reading by time ---------------------------------------------------------------------------------------------------


class Period(NamedTuple):
    """A stretch of time that ends now. `length` None: since midnight, UTC."""

    name: str
    title: str
    length: timedelta | None

    def since(self, present: datetime) -> datetime:
        """Its beginning."""
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
_OPEN_START = timedelta(days=30)
_BY_NAME = {period.name: period for period in PERIODS}


class TimeForm(RangeDateTimeForm):
    """A period that ends now, or a range of one's own."""

    fields: dict[str, forms.Field]

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(name, *args, **kwargs)
        choices = [("", "Last 24 hours"), *((p.name, _spoken(p)) for p in PERIODS if p.name != DEFAULT_PERIOD)]
        widget = UnfoldAdminSelectWidget(attrs={"aria-label": "Period"})
        self.fields = {"period": forms.ChoiceField(required=False, choices=choices, widget=widget), **self.fields}


class TimeFilter(admin.FieldListFilter):
    """Bounds a list by time, always: a range if one is given, else a period, else the last 24 hours.

    A search by id looks everywhere, since it needs no scan. A range without a beginning begins 30 days before its end.
    """

    template = "unfold/filters/filters_datetime_range.html"
    form_class = TimeForm

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
        yield {"request": self.request, "form": self.form_class(name=self.field_path, data=given)}

    @property
    def period(self) -> str:
        """The period that is in force; empty for a range of one's own, or a search."""
        return "" if self.until or self.since is None else self._name()

    def links(self, changelist: ChangeList) -> list[dict[str, Any]]:
        """A link for each period that keeps the other filters."""
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
        since, until = self._moment("from", "00:00:00"), self._moment("to", "23:59:59")
        if since or until:
            return since or (until or present) - _OPEN_START, until or present
        if is_search and not self._given("period"):
            return None, None
        return _BY_NAME[self._name()].since(present), None

    def _name(self) -> str:
        name = self._given("period")
        return name if name in _BY_NAME else DEFAULT_PERIOD

    def _given(self, name: str) -> str:
        values = self.used_parameters.get(name) or [""]
        return str(values[-1] if isinstance(values, list) else values)

    def _moment(self, end: str, default_time: str) -> datetime | None:
        date, time = (self._given(f"{self.field_path}_{end}_{part}") for part in (0, 1))
        try:
            return datetime.fromisoformat(f"{date}T{time or default_time}").replace(tzinfo=UTC)
        except ValueError:
            return None


def _spoken(period: Period) -> str:
    return period.title if period.length is None else f"Last {period.title}"


def exact(name: str, title: str, lookup: str | None = None) -> type[TextFilter]:
    """A filter with a text box that wants the exact value of a column."""

    class Exact(TextFilter):
        parameter_name = name

        def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
            value = (self.value() or "").replace("\x00", "").strip()
            return queryset.filter(**{lookup or name: value}) if value else queryset

    Exact.title = title
    return Exact


class LogAdmin(ModelAdmin):
    """A table that is only ever appended to: read-only, newest first, never counted, bounded by a `TimeFilter` (or
    small, without one)."""

    actions: tuple[str, ...] | None = None
    list_per_page = 50
    list_fullwidth = True
    list_filter_submit = True
    paginator = InfinitePaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_before_template = "console/periods.html"
    # What the columns show of other tables. Fetched, not joined (and no foreign key stands in `list_display` itself,
    # since Django would join it): behind row-level security the planner takes joined rows for a filter, and reads the
    # whole period instead of one page.
    list_prefetch: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.prefetch_related(*self.list_prefetch)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        changelist = super().get_changelist_instance(request)
        span = next((spec for spec in changelist.filter_specs if isinstance(spec, TimeFilter)), None)
        if span is not None:
            changelist.span = span
            changelist.periods = span.links(changelist)
        return changelist  # type: ignore[no-any-return]  # Unfold has no types


def tone(tones: Mapping[str, str], value: str) -> SafeString:
    """A badge for a value of a closed set; what the set does not know is grey."""
    return badge(value.replace("_", " "), tones.get(value, ""))
