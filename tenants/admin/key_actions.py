# mypy: allow-subclassing-any
"""Actions on an API key: rotate, clone, disable, enable and revoke. Each asks for confirmation."""

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action
from unfold.enums import ActionVariant

from tenants import services
from tenants.admin.key_forms import RotateKeyForm, model_names_of
from tenants.console.audited_admin import actor
from tenants.console.roles import CONTRIBUTORS, LEADS, OPERATORS, may
from tenants.models import ApiKey, Role

KEY_MANAGERS = LEADS | OPERATORS
_DEVELOPERS = frozenset({Role.DEVELOPER})


def _created_by_user(request: HttpRequest, key: ApiKey) -> bool:
    return key.created_by_id == request.user.pk and may(request, _DEVELOPERS, key)


def may_manage_key(request: HttpRequest, key: ApiKey) -> bool:
    """Return true for users who may change, disable and revoke a key: leads, operators and the key's developer."""
    return may(request, KEY_MANAGERS, key) or _created_by_user(request, key)


def may_rotate_key(request: HttpRequest, key: ApiKey) -> bool:
    """Return true for users who may rotate a key: leads and the key's developer."""
    # Not operators: they would see the new secret and could act as the team.
    return may(request, LEADS, key) or _created_by_user(request, key)


class KeyActions(ModelAdmin):
    """Buttons on the page of an API key."""

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return true if the user may revoke this key, or any key if none is given."""
        if object_id is None:
            return may(request, KEY_MANAGERS | CONTRIBUTORS)
        key = self._unrevoked(request, object_id)
        return key is not None and may_manage_key(request, key)

    def has_disable_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Return true if the key is enabled and the user may disable it."""
        key = self._unrevoked(request, object_id)
        return key is not None and key.disabled_at is None and may_manage_key(request, key)

    def has_enable_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Return true if the key is disabled and the user may enable it."""
        key = self._unrevoked(request, object_id)
        return key is not None and key.disabled_at is not None and may_manage_key(request, key)

    def has_rotate_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Return true if the user may rotate the key."""
        key = self._unrevoked(request, object_id)
        return key is not None and may_rotate_key(request, key)

    def has_clone_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Return true if the user may create a key for the same team."""
        key = self.get_object(request, unquote(str(object_id)))
        return key is not None and may(request, CONTRIBUTORS, key)

    @action(  # type: ignore[untyped-decorator]  # Unfold has no types
        description="Revoke", url_path="revoke", icon="block", permissions=["revoke"], variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation page; on POST, revoke the key."""
        key = self.get_object(request, unquote(object_id))
        if key is None:
            return self._unknown(request, object_id)
        if not may_manage_key(request, key):
            raise PermissionDenied
        if request.method != "POST":
            context = {**self._context(request, "Revoke this key?"), "key": key, "original": key}
            return TemplateResponse(request, "admin/tenants/apikey/revoke.html", context)
        if services.revoke_key(key=key, actor=actor(request)):
            messages.success(request, f"The key {key} was revoked. It stops working everywhere within two seconds.")
        else:
            messages.info(request, f"The key {key} was already revoked.")
        return HttpResponseRedirect(self._url("change", key.pk))

    @action(description="Disable", url_path="disable", icon="pause", permissions=["disable"])  # type: ignore[untyped-decorator]  # the same
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation page; on POST, disable the key."""
        return self._switch(request, object_id, enabled=False)

    @action(description="Enable", url_path="enable", icon="play_arrow", permissions=["enable"])  # type: ignore[untyped-decorator]  # the same
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the confirmation page; on POST, enable the key."""
        return self._switch(request, object_id, enabled=True)

    @action(description="Clone", url_path="clone", icon="content_copy", permissions=["clone"])  # type: ignore[untyped-decorator]  # the same
    def clone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to the form of a new key, prefilled from this one."""
        return HttpResponseRedirect(f"{self._url('add')}?clone={object_id}")

    @action(description="Rotate", url_path="rotate", icon="autorenew", permissions=["rotate"])  # type: ignore[untyped-decorator]  # the same
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form for the grace period; on POST, rotate the key and show the new secret once."""
        key = self.get_object(request, unquote(object_id))
        if key is None:
            return self._unknown(request, object_id)
        if key.revoked_at is not None or not may_rotate_key(request, key):
            raise PermissionDenied
        form = RotateKeyForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            rotated = services.rotate_key(key=key, grace=form.grace_period(), actor=actor(request))
            return self.show_secret(request, rotated, "Copy the new secret")
        context = {**self._context(request, "Rotate this key?"), "key": key, "original": key, "form": form}
        return TemplateResponse(request, "admin/tenants/apikey/rotate.html", context)

    def show_secret(self, request: HttpRequest, new: services.NewKey, title: str) -> HttpResponse:
        """Return the only page that shows this secret."""
        # No redirect after the POST: the secret would have to be stored in between.
        context = {
            **self._context(request, title),
            "new": new,
            "api": request.build_absolute_uri("/v1"),
            "model": _example_model(new.key),
            "url": self._url("change", new.key.pk),
        }
        return TemplateResponse(request, "admin/tenants/apikey/created.html", context)

    def _switch(self, request: HttpRequest, object_id: str, *, enabled: bool) -> HttpResponse:
        key = self.get_object(request, unquote(object_id))
        if key is None:
            return self._unknown(request, object_id)
        if key.revoked_at is not None or not may_manage_key(request, key):
            raise PermissionDenied
        if request.method != "POST":
            title = "Enable this key?" if enabled else "Disable this key?"
            context = {**self._context(request, title), "key": key, "original": key, "enabled": enabled}
            return TemplateResponse(request, "admin/tenants/apikey/switch.html", context)
        services.enable_key(key=key, enabled=enabled, actor=actor(request))
        state = "enabled" if enabled else "disabled"
        messages.success(request, f"The key {key} was {state}. This takes effect everywhere within two seconds.")
        return HttpResponseRedirect(self._url("change", key.pk))

    def _unrevoked(self, request: HttpRequest, object_id: str) -> ApiKey | None:
        key: ApiKey | None = self.get_object(request, unquote(str(object_id)))
        return key if key is not None and key.revoked_at is None else None

    def _unknown(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[no-any-return]

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "opts": self.opts, "title": title, "media": self.media}

    def _url(self, page: str, *args: str) -> str:
        return reverse(f"admin:tenants_apikey_{page}", args=args)


def _example_model(key: ApiKey) -> str:
    if key.allowed_models:
        return key.allowed_models[0]
    return next(iter(model_names_of([key.team_id])), "your-model")
