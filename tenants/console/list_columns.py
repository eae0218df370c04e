# mypy: allow-subclassing-any
"""Lists whose columns each user chooses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST
from typing_extensions import override
from unfold.admin import ModelAdmin

from console.tables import Column, Row, Table
from console.widgets import changelist_url
from tenants.models import ListColumns


@dataclass(frozen=True, slots=True)
class ListColumn(Column[Row]):
    """A column of a list. `name` is also its class in list.css: `c-list-<name>`."""

    name: str = field(kw_only=True)
    is_default: bool = field(default=True, kw_only=True)


class ChosenColumns(ModelAdmin):
    """List that is rendered as a `Table` of the columns that the user has chosen.

    `list_columns` are the columns to choose from, in their order. The first one is always shown, as it contains the
    link to the page of the row.
    """

    list_columns: Sequence[ListColumn[Any]]
    # Name of the list under which users' choices are stored.
    list_columns_name: str

    @override
    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_columns"
        return [path("columns/", self.admin_site.admin_view(self.columns_view), name=name), *super().get_urls()]

    @override
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        page: HttpResponse = super().changelist_view(request, extra_context)
        # A redirect has no context data.
        context = getattr(page, "context_data", None) or {}
        if "cl" in context:
            columns = self._chosen(request)
            context["table"] = Table(title="", columns=columns, rows=context["cl"].result_list)
            context["column_choices"] = [(column, column in columns) for column in self.list_columns]
        return page

    @method_decorator(require_POST)
    def columns_view(self, request: HttpRequest) -> HttpResponse:
        """Store the columns that a user has chosen, or restore the default, and return to the list."""
        rows = self._choices(request)
        if "reset" in request.POST:
            rows.delete()
        else:
            posted = set(request.POST.getlist("column"))
            names = [column.name for column in self.list_columns if column.name in posted]
            user = cast("User", request.user)
            rows.update_or_create(user=user, name=self.list_columns_name, defaults={"columns": names})
        back = request.POST.get("back", "")
        is_safe = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
        return HttpResponseRedirect(
            back if is_safe else changelist_url(f"{self.opts.app_label}_{self.opts.model_name}")
        )

    def _choices(self, request: HttpRequest) -> QuerySet[ListColumns]:
        # Users are always signed in here: the admin's decorator has checked it.
        return ListColumns.objects.filter(user=cast("User", request.user), name=self.list_columns_name)

    def _chosen(self, request: HttpRequest) -> Sequence[ListColumn[Any]]:
        choice = self._choices(request).first()
        first, *others = self.list_columns
        return [first] + [
            column for column in others if (column.is_default if choice is None else column.name in choice.columns)
        ]
