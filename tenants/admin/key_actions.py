# mypy: allow-subclassing-any
"""What is done to an API key beside changing it: a new secret, a switch, an end. Each asks before it acts."""

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
    """Whether the user may change, disable and revoke a key: leads, operators, and the developer who made it."""
    return may(request, KEY_MANAGERS, key) or _created_by_user(request, key)


def may_rotate_key(request: HttpRequest, key: ApiKey) -> bool:
    """Whether the user may have a new secret of a key: no operator, who would hold it then."""
    return may(request, LEADS, key) or _created_by_user(request, key)


class KeyActions(ModelAdmin):
    """The buttons of a key's page."""

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """For one key: whether there is anything left to revoke."""
        if object_id is None:
            return may(request, KEY_MANAGERS | CONTRIBUTORS)
        key = self._unrevoked(request, object_id)
        return key is not None and may_manage_key(request, key)

    def has_disable_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Whether the key works, and the user may switch it off."""
        key = self._unrevoked(request, object_id)
        return key is not None and key.disabled_at is None and may_manage_key(request, key)

    def has_enable_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Whether the key is switched off, and the user may switch it on."""
        key = self._unrevoked(request, object_id)
        return key is not None and key.disabled_at is not None and may_manage_key(request, key)

    def has_rotate_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Whether the user may have a new secret."""
        key = self._unrevoked(request, object_id)
        return key is not None and may_rotate_key(request, key)

    def has_clone_permission(self, request: HttpRequest, object_id: str) -> bool:
        """Whether the user may make a key for the same team."""
        key = self.get_object(request, unquote(str(object_id)))
        return key is not None and may(request, CONTRIBUTORS, key)

    @action(  # type: ignore[untyped-decorator]  # Unfold has no types
        description="Revoke", url_path="revoke", icon="block", permissions=["revoke"], variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, and on POST revoke."""
        key = self.get_object(request, unquote(object_id))
        if key is None:
            return self._unknown(request, object_id)
        if not may_manage_key(request, key):
            raise PermissionDenied
        if request.method != "POST":
            context = {**self._context(request, "Revoke this key?"), "key": key, "original": key}
            return TemplateResponse(request, "admin/tenants/apikey/revoke.html", context)
        if services.revoke_key(key=key, actor=actor(request)):
            messages.success(request, f"The key {key} is revoked. It stops working everywhere within two seconds.")
        else:
            messages.info(request, f"The key {key} had been revoked before.")
        return HttpResponseRedirect(self._url("change", key.pk))

    @action(description="Disable", url_path="disable", icon="pause", permissions=["disable"])  # type: ignore[untyped-decorator]  # the same
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, and on POST switch it off."""
        return self._switch(request, object_id, enabled=False)

    @action(description="Enable", url_path="enable", icon="play_arrow", permissions=["enable"])  # type: ignore[untyped-decorator]  # the same
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, and on POST switch it on again."""
        return self._switch(request, object_id, enabled=True)

    @action(description="Clone", url_path="clone", icon="content_copy", permissions=["clone"])  # type: ignore[untyped-decorator]  # the same
    def clone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The form of a new key that begins with what this one may."""
        return HttpResponseRedirect(f"{self._url('add')}?clone={object_id}")

    @action(description="Rotate", url_path="rotate", icon="autorenew", permissions=["rotate"])  # type: ignore[untyped-decorator]  # the same
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the grace, and on POST answer with the new secret: it is in that answer and nowhere else."""
        key = self.get_object(request, unquote(object_id))
        if key is None:
            return self._unknown(request, object_id)
        if key.revoked_at is not None or not may_rotate_key(request, key):
            raise PermissionDenied
        form = RotateKeyForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            made = services.rotate_key(key=key, grace=form.grace_period(), actor=actor(request))
            return self.show_secret(request, made, "Copy the new secret")
        context = {**self._context(request, "Give this key a new secret?"), "key": key, "original": key, "form": form}
        return TemplateResponse(request, "admin/tenants/apikey/rotate.html", context)

    def show_secret(self, request: HttpRequest, made: services.NewKey, title: str) -> HttpResponse:
        """The one page that ever shows this secret."""
        context = {
            **self._context(request, title),
            "made": made,
            "api": request.build_absolute_uri("/v1"),
            "model": _a_model(made.key),
            "url": self._url("change", made.key.pk),
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
        messages.success(request, f"The key {key} is {state}, everywhere within two seconds.")
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


def _a_model(key: ApiKey) -> str:
    """A model name for the examples beside a new key."""
    if key.allowed_models:
        return key.allowed_models[0]
    return next(iter(model_names_of([key.team_id])), "your-model")
