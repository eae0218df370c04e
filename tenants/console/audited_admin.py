# mypy: allow-subclassing-any
"""Auditing of changes made in the admin, in the same transaction as the change."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Model, QuerySet
from django.forms import BaseModelForm
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from tenants.audit import audit
from tenants.console.viewer import Viewer, viewer_of
from tenants.models import Team

# Names of form fields, including those of Django's user forms.
_SECRET = frozenset({"password", "password1", "password2", "new_api_key", "new_authorization", "new_hook_secret"})
_MASK = "•••"


def audit_row(
    viewer: Viewer,
    row: Model,
    verb: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    action: str = "",
    team_id: str | None = None,
    target: str = "",
) -> None:
    """Write an audit line `<kind>.<verb>` about a row, or another `action`. Team and target default to the row's."""
    kind = str(row._meta.verbose_name).lower().replace(" ", "_")  # noqa: SLF001 - Django's documented API for models
    audit(
        team_id=team_id or (row.pk if isinstance(row, Team) else getattr(row, "team_id", None)),
        actor=viewer.actor,
        action=action or f"{kind}.{verb}",
        target=target or str(row.pk),
        before=before,
        after=after,
    )


class AuditedAdmin(ModelAdmin):
    """Admin that audits saved and deleted rows: changed fields with old and new values, and with secrets masked."""

    def save_model(self, request: HttpRequest, obj: Model, form: BaseModelForm[Any], change: Any) -> None:
        super().save_model(request, obj, form, change)
        before = _values(form.initial, form.changed_data) if change else {}
        audit_row(viewer_of(request), obj, "updated" if change else "created", before=before, after=_cleaned(form))

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: Any) -> None:
        # Collected first, as Django empties the primary keys of rows that it deletes.
        formset_keys = {id(row_form.instance): row_form.instance.pk for row_form in formset.forms}
        super().save_formset(request, form, formset, change)
        forms = {id(row_form.instance): row_form for row_form in formset.forms}
        for row in formset.new_objects:
            audit_row(viewer_of(request), row, "created", after=_cleaned(forms[id(row)]))
        for row, fields in formset.changed_objects:
            row_form = forms[id(row)]
            audit_row(
                viewer_of(request), row, "updated", before=_values(row_form.initial, fields), after=_cleaned(row_form)
            )
        for row in formset.deleted_objects:
            audit_deleted(viewer_of(request), row, row_pk=formset_keys[id(row)])

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        row_pk = obj.pk
        super().delete_model(request, obj)
        audit_deleted(viewer_of(request), obj, row_pk=row_pk)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        # One by one, so that each deletion is audited.
        for row in queryset:
            self.delete_model(request, row)


def audit_deleted(viewer: Viewer, row: Model, *, row_pk: Any) -> None:
    """Audit the deletion of a row. `row_pk` is its primary key, which Django has emptied by then."""
    row.pk = row_pk
    audit_row(viewer, row, "deleted", before={"object": str(row)})


def _cleaned(form: BaseModelForm[Any]) -> dict[str, Any]:
    return _values(form.cleaned_data, form.changed_data)


def _values(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: _MASK if name in _SECRET else _plain(values.get(name)) for name in names}


def _plain(value: Any) -> Any:
    match value:
        # Only JSON types may be stored in the audit log.
        case None | bool() | int() | float() | str():
            return value
        case Model():
            return str(value.pk)
        case datetime():
            return value.isoformat()
        case list() | tuple() | QuerySet():
            return [_plain(element) for element in value]
    return str(value)
