# mypy: allow-subclassing-any
"""Forms with a write-only secret. The column is never read for a page, so it is neither decrypted nor sent."""

from typing import Any

from django import forms
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldBooleanSwitchWidget

from console.widgets import badge
from tenants.console.roles import ADMINISTRATORS_ONLY, Roles
from tenants.console.viewer import viewer_of

_SET = "Set. You do not have permission to change it."
_NOT_SET = "Not set. You do not have permission to enter it."
_BOUND = "You cannot change this while a secret is set, because the secret would be sent to the new address."


def secret_field(label: str, help_text: str) -> forms.CharField:
    """Return the field in which a secret is entered; leaving it empty keeps the stored one."""
    widget = UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"})
    return forms.CharField(required=False, strip=True, label=label, widget=widget, help_text=help_text)


def forget_field(label: str) -> forms.BooleanField:
    """Return the switch that removes the stored secret."""
    return forms.BooleanField(required=False, label=label, widget=UnfoldBooleanSwitchWidget)


def disable_secret(field: forms.Field, *, is_set: bool) -> None:
    """Let users see whether a secret is set, but not enter one. Django ignores submitted values of disabled fields."""
    field.disabled = True
    field.help_text = _SET if is_set else _NOT_SET


def secret_badge(row: Any) -> SafeString:
    """Return a badge that shows whether a secret is set."""
    return badge("set", "success") if row.has_secret else badge("none")


class SecretForm(forms.ModelForm[Any]):
    """Stores the field `new_<secret>` in the column `secret`; a field `forget_<secret>` empties the column."""

    secret = "api_key"  # noqa: S105 - the name of the column
    help_if_set = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not getattr(self.instance, "has_secret", False):
            self.fields.pop(f"forget_{self.secret}", None)
        elif self.help_if_set:
            self.fields[f"new_{self.secret}"].help_text = self.help_if_set

    @override
    def save(self, commit: bool = True) -> Any:
        new = self.cleaned_data.get(f"new_{self.secret}")
        if new or self.cleaned_data.get(f"forget_{self.secret}"):
            setattr(self.instance, self.secret, new or "")
        return super().save(commit)


class WriteOnlySecrets(ModelAdmin):
    """Admin with a `SecretForm`. Rows are annotated with `has_secret`.

    The secret is restricted to administrators and `secret_managers`; for other users its fields are disabled.
    `destination_field` names the form field with the address that receives the secret.
    """

    secret_managers: Roles = ADMINISTRATORS_ONLY
    destination_field = ""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The database checks whether a secret is set, without decrypting it.
        is_set = ExpressionWrapper(~Q(**{self.form.secret: ""}), output_field=BooleanField())
        rows: QuerySet[Any] = super().get_queryset(request).defer(self.form.secret).annotate(has_secret=is_set)
        return rows

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        hidden = "" if getattr(obj, "has_secret", False) else f"forget_{self.form.secret}"
        return [
            (title, {**options, "fields": [name for name in options["fields"] if name != hidden]})
            for title, options in super().get_fieldsets(request, obj)
        ]

    def get_form(self, request: HttpRequest, obj: Any = None, change: Any = None, **kwargs: Any) -> Any:
        """Return the form class, with disabled fields if the user may not enter secrets."""
        form = super().get_form(request, obj, change, **kwargs)
        if viewer_of(request).may(self.secret_managers, obj):
            return form
        names = (f"new_{self.form.secret}", f"forget_{self.form.secret}")
        address, is_set = self.destination_field, bool(getattr(obj, "has_secret", False))

        class RestrictedForm(form):  # type: ignore[misc, valid-type]  # a class created at run time
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                for name in names:
                    if name in self.fields:
                        disable_secret(self.fields[name], is_set=is_set)
                # Otherwise the user could have the secret sent to a server of their own.
                if is_set and address in self.fields:
                    self.fields[address].disabled = True
                    self.fields[address].help_text = _BOUND

        return RestrictedForm
