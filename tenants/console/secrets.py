# mypy: allow-subclassing-any
"""Forms with write-only secrets."""

from typing import Any

from django.http import HttpRequest
from unfold.admin import ModelAdmin

from tenants.console.roles import ADMINISTRATORS_ONLY, Roles, may

_SET = "Set. You do not have permission to change it."
_NOT_SET = "Not set. You do not have permission to enter it."
_BOUND = "You cannot change this while a secret is set, because the secret would be sent to the new address."


class WriteOnlySecrets(ModelAdmin):
    """Restricts secrets in a form to administrators and `secret_managers`; for other users the fields are disabled.

    `is_set_annotation` names the query set annotation that is true where a secret is stored. `destination_field` names
    the form field with the address that receives the secret.
    """

    secret_managers: Roles = ADMINISTRATORS_ONLY
    secret_fields: tuple[str, ...] = ()
    destination_field = ""
    is_set_annotation = "has_key"

    def get_form(self, request: HttpRequest, obj: Any = None, change: Any = None, **kwargs: Any) -> Any:
        """Return the form class, with disabled fields if the user may not enter secrets."""
        form = super().get_form(request, obj, change, **kwargs)
        if may(request, self.secret_managers, obj):
            return form
        names, address, is_set = (
            self.secret_fields,
            self.destination_field,
            bool(getattr(obj, self.is_set_annotation, False)),
        )

        # Django ignores submitted values of disabled fields.
        class RestrictedForm(form):  # type: ignore[misc, valid-type]  # a class created at run time
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                for name in names:
                    if name in self.fields:
                        self.fields[name].disabled = True
                        self.fields[name].help_text = _SET if is_set else _NOT_SET
                # Otherwise the user could have the secret sent to a server of their own.
                if is_set and address in self.fields:
                    self.fields[address].disabled = True
                    self.fields[address].help_text = _BOUND

        return RestrictedForm
