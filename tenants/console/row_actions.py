# mypy: allow-subclassing-any
"""Actions on objects: a button on the page, a confirmation page, and the change once it is confirmed.

    @RowAction(title="Revoke", icon="block", permits=may_revoke, question="Revoke this key?")
    def revoke(self, request: HttpRequest, key: ApiKey) -> HttpResponse | None:
        ...

The method runs on a confirmed POST. It returns the page to show, or None for the page of the object, and raises
`ActionFailed` if the object does not allow the action. Without a question, the method runs on GET as well, so it must
change nothing and only redirect to another page.

List the name of the method in `actions_detail` to show a button on the page of the object, in `actions_row` to show a
button in each row of the list, and in `selection_actions` to offer the action for selected rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin import helpers
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.admin import ModelAdmin
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminTextInputWidget

from tenants.console.roles import ADMINISTRATORS_ONLY, Roles
from tenants.console.viewer import Viewer, viewer_of

CONFIRM = "console/confirm.html"


class ActionFailed(Exception):
    """The object does not allow the action. The message is shown to the user."""


class RowForm(forms.Form):
    """Form of a confirmation page. `rows` are the objects of the action."""

    def __init__(self, data: Any = None, *, rows: Sequence[Any] = ()) -> None:
        super().__init__(data)
        self.rows = rows


_TOO_SHORT = "Enter at least 5 characters."


class ReasonForm(RowForm):
    """Asks for the reason of an action."""

    reason = forms.CharField(
        label="Reason (recorded in the audit log)",
        min_length=5,
        max_length=500,
        widget=UnfoldAdminTextInputWidget,
        error_messages={"required": _TOO_SHORT, "min_length": _TOO_SHORT},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAction:
    """Declaration of an action, used to decorate the method that performs it. Texts may be functions of the object.

    - `permits`: returns true if the viewer may perform the action on an object.
    - `applies`: returns true if the state of an object allows the action; otherwise the button is hidden and the method
      fails.
    - `question`: title of the confirmation page; required for an action that changes something.
    - `button`, `button_variant`: the button of the confirmation page, by default with the title of the action.
    - `description`: the text of the confirmation page; alternatively, `template` extends `console/confirm.html`.
    - `form`: the form of the confirmation page; the method receives it after it was validated.
    - `list_roles`: the roles that see the action in the list. The theme can show an action only on all rows or on none.
    - `done`: the past participle for success messages ("3 responses cancelled"); without it, the method writes its own
      message.
    """

    title: str
    icon: str
    permits: Callable[[Viewer, Any], bool]
    applies: Callable[[Any], bool] = lambda _: True
    not_applicable: str = ""
    question: str | Callable[[Any], str] = ""
    button: str | Callable[[Any], str] = ""
    button_variant: str = "primary"
    description: str | Callable[[Any], str] = ""
    template: str = CONFIRM
    form: type[RowForm] | None = None
    path: str = ""
    variant: ActionVariant = ActionVariant.DEFAULT
    list_roles: Roles = ADMINISTRATORS_ONLY
    done: str = ""
    # Otherwise a template would call it as a decorator instead of reading its title.
    do_not_call_in_templates: ClassVar[bool] = True

    def __call__(self, perform: Callable[..., HttpResponse | None]) -> Callable[..., HttpResponse]:
        """Return the view of the action, with the attributes that Unfold reads."""

        @wraps(perform)
        def view(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
            row = admin.get_or_404(request, object_id)
            if not self.permits(viewer_of(request), row):
                raise PermissionDenied
            form = self._form(request, [row], is_confirmed=request.method == "POST")
            if self.question and (request.method != "POST" or (form is not None and not form.is_valid())):
                return self._confirmation_page(admin, request, [row], form, title=_text(self.question, row))
            # Read before an action that may delete the row.
            row_pk, page_url, shown = row.pk, admin.page_of(row), None
            try:
                shown = self._perform(perform, admin, request, row, form)
            except ActionFailed as failed:
                messages.error(request, f"{row_pk}: {failed}")
            else:
                if self.done:
                    messages.success(request, f"{row_pk} {self.done}.")
            return shown or HttpResponseRedirect(page_url)

        attributes = {
            "row_action": self,
            "on_selection": partial(self._on_selection, perform),
            "short_description": self.title,
            "url_path": self.path or perform.__name__,
            "icon": self.icon,
            "variant": self.variant,
            "attrs": {},
        }
        for name, value in attributes.items():
            setattr(view, name, value)
        return view

    def is_offered(self, viewer: Viewer, row: Any) -> bool:
        """Return true if the viewer may perform the action on an object in its present state."""
        return self.permits(viewer, row) and self.applies(row)

    def _on_selection(
        self, perform: Callable[..., HttpResponse | None], admin: Any, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse:
        """Serve the confirmation page for the selected rows, or perform the action on them if it was confirmed."""
        # `defer(None)`: otherwise the columns that the list defers would be read again for each row.
        selected = list(queryset.defer(None))
        rows = [row for row in selected if self.is_offered(viewer_of(request), row)]
        # Django posts the action first without `confirmed`; the confirmation page posts the same action with it.
        is_confirmed = "confirmed" in request.POST
        form = self._form(request, rows, is_confirmed=is_confirmed)
        if not is_confirmed or (form is not None and not form.is_valid()):
            name = admin.opts.verbose_name if len(rows) == 1 else admin.opts.verbose_name_plural
            title = f"{self.title}: {len(rows)} {name}"
            return self._confirmation_page(admin, request, rows, form, title=title, skipped=len(selected) - len(rows))
        done, last_error = 0, ""
        for row in rows:
            row_pk = row.pk
            try:
                self._perform(perform, admin, request, row, form)
                done += 1
            except ActionFailed as failed:
                last_error = f"{row_pk}: {failed}"
        if done:
            name = admin.opts.verbose_name if done == 1 else admin.opts.verbose_name_plural
            messages.success(request, f"{done} {name} {self.done}.")
        if done < len(rows):
            messages.error(request, f"{len(rows) - done} could not be {self.done}. {last_error}")
        return HttpResponseRedirect(request.get_full_path())

    def _perform(
        self,
        perform: Callable[..., HttpResponse | None],
        admin: Any,
        request: HttpRequest,
        row: Any,
        form: RowForm | None,
    ) -> HttpResponse | None:
        if not self.applies(row):
            raise ActionFailed(self.not_applicable)
        return perform(admin, request, row) if form is None else perform(admin, request, row, form)

    def _form(self, request: HttpRequest, rows: Sequence[Any], *, is_confirmed: bool) -> RowForm | None:
        return None if self.form is None else self.form(request.POST if is_confirmed else None, rows=rows)

    def _confirmation_page(
        self,
        admin: Any,
        request: HttpRequest,
        rows: Sequence[Any],
        form: RowForm | None,
        *,
        title: str,
        skipped: int | None = None,
    ) -> HttpResponse:
        """Render the page for one object, or for the selected rows; `skipped` rows were selected but are left out."""
        is_selection = skipped is not None
        selection = {"action": request.POST.get("action", ""), "confirmed": "yes"}
        page: HttpResponse = admin.render(
            request,
            self.template,
            title,
            row_action=self,
            rows=rows,
            skipped=skipped,
            form=form if rows else None,
            original=None if is_selection else rows[0],
            description=_text(self.description, rows[0]) if rows else "",
            button=_text(self.button or self.title, rows[0]) if rows else "",
            icon=self.icon,
            variant=self.button_variant,
            back=request.get_full_path() if is_selection else admin.page_of(rows[0]),
            posted=selection if is_selection else {},
            selected_name=helpers.ACTION_CHECKBOX_NAME if is_selection else "",
        )
        return page


def _text(text: str | Callable[[Any], str], row: Any) -> str:
    return text(row) if callable(text) else text


class RowActions(ModelAdmin):
    """Admin that shows the actions that the viewer may perform on an object and on selected rows of the list."""

    # Names of the methods by the names that the form of the list posts.
    selection_actions: Mapping[str, str] = {}

    def get_actions_detail(self, request: HttpRequest, object_id: int | str) -> list[Any]:
        row = self.get_object(request, unquote(str(object_id)))
        return [] if row is None else self.offered_actions(request, row)

    def offered_actions(self, request: HttpRequest, row: Any) -> list[Any]:
        """Return the actions that the viewer may perform on an object in its present state."""
        actions = super().get_actions_detail(request, row.pk)
        return [action for action in actions if action.method.row_action.is_offered(viewer_of(request), row)]

    def get_actions_row(self, request: HttpRequest) -> list[Any]:
        actions = super().get_actions_row(request)
        return [action for action in actions if viewer_of(request).may(action.method.row_action.list_roles)]

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions: dict[str, Any] = super().get_actions(request)
        for name, method_name in self.selection_actions.items():
            method = getattr(self, method_name)
            if viewer_of(request).may(method.row_action.list_roles):
                actions[name] = (method.on_selection, name, method.row_action.title)
        return actions
