# mypy: allow-subclassing-any
"""Actions on one object: a button on its page, a confirmation page, and the change once it is confirmed.

    @RowAction(title="Revoke", icon="block", permits=may_revoke, question="Revoke this key?")
    def revoke(self, request: HttpRequest, key: ApiKey) -> HttpResponse | None:
        ...

The method runs on a confirmed POST, and returns a page to show or None for the page of the object. Without a question
it runs on GET as well, so it may only lead to another page. Its name goes into `actions_detail`, and into `actions_row`
for a button in each row of the list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django import forms
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.admin import ModelAdmin
from unfold.enums import ActionVariant

from tenants.console.roles import ADMINISTRATORS_ONLY, Roles
from tenants.console.viewer import Viewer, viewer_of

CONFIRM = "console/confirm.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAction:
    """Declaration of an action; the decorator of the method that performs it. Texts may be functions of the object.

    - `permits`: whether the viewer may perform it on an object, in its present state.
    - `question`: title of the confirmation page; required for an action that changes something.
    - `button`, `button_variant`: the button of that page, by default with the title of the action.
    - `description`: the text of that page; another `template` may extend `console/confirm.html` instead.
    - `form`: asked for on that page; the method receives it once it is valid.
    - `list_roles`: the roles that see the action in the list, where the theme shows it on all rows or on none.
    """

    title: str
    icon: str
    permits: Callable[[Viewer, Any], bool]
    question: str | Callable[[Any], str] = ""
    button: str | Callable[[Any], str] = ""
    button_variant: str = "primary"
    description: str | Callable[[Any], str] = ""
    template: str = CONFIRM
    form: type[forms.Form] | None = None
    path: str = ""
    variant: ActionVariant = ActionVariant.DEFAULT
    list_roles: Roles = ADMINISTRATORS_ONLY

    def __call__(self, perform: Callable[..., HttpResponse | None]) -> Callable[..., HttpResponse]:
        """Return the view of the action, with the attributes that Unfold reads."""

        @wraps(perform)
        def view(admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
            row = admin.get_object(request, unquote(str(object_id)))
            if row is None or not self.permits(viewer_of(request), row):
                raise PermissionDenied
            form = None if self.form is None else self.form(request.POST if request.method == "POST" else None)
            if self.question and (request.method != "POST" or (form is not None and not form.is_valid())):
                return self._confirmation_page(admin, request, row, form)
            shown = perform(admin, request, row) if form is None else perform(admin, request, row, form)
            return shown or HttpResponseRedirect(admin.page_of(row))

        attributes = {
            "row_action": self,
            "short_description": self.title,
            "url_path": self.path or perform.__name__,
            "icon": self.icon,
            "variant": self.variant,
            "attrs": {},
        }
        for name, value in attributes.items():
            setattr(view, name, value)
        return view

    def _confirmation_page(self, admin: Any, request: HttpRequest, row: Any, form: forms.Form | None) -> HttpResponse:
        page: HttpResponse = admin.render(
            request,
            self.template,
            _text(self.question, row),
            original=row,
            description=_text(self.description, row),
            form=form,
            button=_text(self.button or self.title, row),
            icon=self.icon,
            variant=self.button_variant,
            back=admin.page_of(row),
        )
        return page


def _text(text: str | Callable[[Any], str], row: Any) -> str:
    return text(row) if callable(text) else text


class RowActions(ModelAdmin):
    """Shows the actions of an object that the viewer may perform."""

    def get_actions_detail(self, request: HttpRequest, object_id: int | str) -> list[Any]:
        row = self.get_object(request, unquote(str(object_id)))
        if row is None:
            return []
        actions = super().get_actions_detail(request, object_id)
        return [action for action in actions if action.method.row_action.permits(viewer_of(request), row)]

    def get_actions_row(self, request: HttpRequest) -> list[Any]:
        actions = super().get_actions_row(request)
        return [action for action in actions if viewer_of(request).may(action.method.row_action.list_roles)]
