# mypy: allow-subclassing-any
"""Admin pages of admin keys. Only administrators see, create and revoke them; a secret is shown once."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import register
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from console.widgets import badge, column, id_column, key_cell, time_column
from core.clock import now
from organization.admin.key_forms import AddressesField, addresses_field
from tenants import services
from tenants.console.permissions import PlatformOnly
from tenants.console.roles import ADMINISTRATORS_ONLY
from tenants.console.row_actions import RowAction
from tenants.console.viewer import viewer_of
from tenants.models import AdminKey, AdminScope


class AdminKeyForm(forms.ModelForm[AdminKey]):
    """A new admin key."""

    scopes = forms.MultipleChoiceField(
        choices=AdminScope.choices,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="Give the key only what its program needs. It cannot call models.",
    )
    allowed_addresses: AddressesField = addresses_field()

    class Meta:
        model = AdminKey
        fields = ["name", "scopes", "expires_at", "allowed_addresses"]


def _state(key: AdminKey) -> SafeString:
    if key.revoked_at is not None:
        return badge("revoked", "danger", f"since {key.revoked_at:%Y-%m-%d %H:%M} UTC")
    if key.expires_at is not None and key.expires_at <= now():
        return badge("expired", "warning", f"since {key.expires_at:%Y-%m-%d %H:%M} UTC")
    return badge("active", "success")


@register(AdminKey)
class AdminKeyAdmin(PlatformOnly):
    """Keys of the admin API."""

    empty_text = "An admin key manages teams, keys and usage with the admin API."
    add_label = "Create an admin key"

    viewers = ADMINISTRATORS_ONLY
    managers = ADMINISTRATORS_ONLY
    form = AdminKeyForm
    list_display = ["name", "key", "scope_list", "owner", "state", "last_used", "expires"]
    list_select_related = ["created_by"]
    search_fields = ["name", "prefix", "last_four", "id"]
    ordering = ["-created_at", "-id"]
    actions_detail = ["revoke"]
    key = column("Key", key_cell)
    public_id = id_column()
    owner = column("Created by", lambda key: key.created_by.get_username() if key.created_by else "–")
    state = column("Status", _state)
    scope_list = column("Scopes", lambda key: ", ".join(key.scopes))
    address_list = column("Allowed IP addresses", lambda key: ", ".join(key.allowed_addresses or ()) or "any")
    last_used = time_column("Last used", "last_used_at", missing="never", ordering="last_used_at")
    expires = time_column("Expires", "expires_at", missing="never", ordering="expires_at")
    created = time_column("Created", "created_at", ordering="created_at")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        if obj is None:
            return [(None, {"fields": ["name", "scopes", "expires_at", "allowed_addresses"]})]
        return [
            (None, {"fields": [("key", "state"), ("name", "public_id"), "scope_list", "expires", "address_list"]}),
            ("History", {"fields": [("created", "owner"), ("last_used", "last_used_address")]}),
        ]

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def save_model(self, request: HttpRequest, obj: AdminKey, form: Any, change: Any) -> None:
        new = services.create_admin_key(
            name=obj.name,
            scopes=obj.scopes,
            expires_at=obj.expires_at,
            allowed_addresses=obj.allowed_addresses,
            actor=viewer_of(request).actor,
            created_by=request.user.pk,
        )
        obj.pk = new.key.pk
        form.new_key = new

    @override
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        context = {"show_save_and_add_another": False, **(extra_context or {})}
        page: HttpResponse = super().add_view(request, form_url, context)
        return page

    @override
    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        # `response_add` receives only the object, whose columns do not have the secret.
        self._remember(request, form)
        return super().construct_change_message(request, form, formsets, add)

    @staticmethod
    def _remember(request: Any, form: Any) -> None:
        request.new_key = form.new_key

    @override
    def response_add(self, request: Any, obj: AdminKey, post_url_continue: Any = None) -> HttpResponse:
        # No redirect after the POST: the secret would have to be stored in between.
        template, api = "admin/tenants/adminkey/created.html", request.build_absolute_uri("/v1")
        new = request.new_key
        return self.render(
            request, template, "Copy your new admin key", new=new, secret=new.secret, api=api, url=self.page_of(obj)
        )

    @RowAction(
        title="Revoke",
        icon="block",
        permits=lambda viewer, key: viewer.may(ADMINISTRATORS_ONLY),
        question="Revoke this admin key?",
        button="Revoke key",
        button_variant="danger",
        template="admin/tenants/adminkey/revoke.html",
        variant=ActionVariant.DANGER,
    )
    def revoke(self, request: HttpRequest, key: AdminKey) -> None:
        """Revoke the key."""
        if services.revoke_admin_key(key=key, actor=viewer_of(request).actor):
            messages.success(request, f"{key.name} is revoked.")
