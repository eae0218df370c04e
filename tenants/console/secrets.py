# mypy: allow-subclassing-any
"""Forms with secrets: who may not enter them sees whether they are set, and cannot send them to another address."""

from typing import Any

from django.http import HttpRequest
from unfold.admin import ModelAdmin

from tenants.console.roles import ADMINISTRATORS_ONLY, Roles, may

_SET = "Set. Only those who keep secrets may change it."
_NOT_SET = "Not set. Only those who keep secrets may enter it."
_BOUND = "Only those who keep secrets may change it while one is set: it would be sent there."


class WriteOnlySecrets(ModelAdmin):
    """Administrators enter secrets, and `secret_managers`; for others who may save the form the fields are disabled.

    `is_set_annotation` names the query set annotation that is true where a secret is stored. `destination_field` names
    the form field with the address that receives the secret.
    """

    secret_managers: Roles = ADMINISTRATORS_ONLY
    secret_fields: tuple[str, ...] = ()
    destination_field = ""
    is_set_annotation = "has_key"

    def get_form(self, request: HttpRequest, obj: Any = None, change: Any = None, **kwargs: Any) -> Any:
        """The form, or the same with disabled fields, which take nothing that is sent."""
        form = super().get_form(request, obj, change, **kwargs)
        if may(request, self.secret_managers, obj):
            return form
        names, address, is_set = (
            self.secret_fields,
            self.destination_field,
            bool(getattr(obj, self.is_set_annotation, False)),
        )

        class Guarded(form):  # type: ignore[misc, valid-type]  # made just now
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options)
                for name in names:
                    if name in self.fields:
                        self.fields[name].disabled = True
                        self.fields[name].help_text = _SET if is_set else _NOT_SET
                if is_set and address in self.fields:
                    self.fields[address].disabled = True
                    self.fields[address].help_text = _BOUND

        return Guarded
