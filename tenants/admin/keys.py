# mypy: allow-subclassing-any
"""API keys: made here with the secret shown once, revoked, never deleted. No page can show or change a secret."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import AutocompleteSelectFilter, DropdownFilter
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from kernel.clock import now
from kernel.console import badge, copyable, when
from tenants import scope, services
from tenants.admin.audited import Audited, actor
from tenants.admin.roles import LEADS, TeamScoped, may, teams_for
from tenants.models import ApiKey, Model, Scope, Team, ToolKind

_LIFETIMES = (("30", "30 days"), ("60", "60 days"), ("90", "90 days"), ("365", "1 year"), ("", "Never"))


class ModelNames(forms.CharField):
    """Model names, separated by commas; nothing: None, every model that the team has."""

    @override
    def prepare_value(self, value: Any) -> Any:
        return ", ".join(value) if isinstance(value, list) else value

    @override
    def to_python(self, value: Any) -> Any:
        names = [name.strip() for name in (value or "").replace("\n", ",").split(",")]
        return [name for name in names if name] or None

    @override
    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.to_python(self.prepare_value(initial)) != self.to_python(data))


class Scopes(forms.MultipleChoiceField):
    """The scopes of a key, or the tools; `*` swallows all others."""

    @override
    def clean(self, value: Any) -> list[str]:
        chosen: list[str] = super().clean(value)
        return [Scope.ALL.value] if Scope.ALL.value in chosen else chosen


def _model_names() -> ModelNames:
    return ModelNames(
        required=False,
        label="Allowed models",
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "gpt-4.1, demo"}),
        help_text="Names separated by commas. Empty: every model that the team has.",
    )


def _scopes() -> Scopes:
    return Scopes(choices=Scope.choices, widget=UnfoldAdminCheckboxSelectMultipleWidget, initial=[Scope.ALL.value])


def tool_kinds() -> Scopes:
    """The tools of the server that a key or a team may use; none chosen: none."""
    widget = UnfoldAdminCheckboxSelectMultipleWidget
    return Scopes(choices=ToolKind.choices, widget=widget, initial=[ToolKind.ALL.value], required=False)


def _a_model(key: ApiKey) -> str:
    """A model name for the examples beside a new key."""
    if key.allowed_models:
        return key.allowed_models[0]
    # With fewer teams in sight, models that belong to other teams would look like everybody's.
    with scope.every_team():
        visible = Q(teams__isnull=True) | Q(teams=key.team_id)
        named = Model.objects.filter(visible, enabled=True).exclude(name="*")
        return named.order_by("created_at").values_list("name", flat=True).first() or "your-model"


class NewKeyForm(forms.Form):
    """What a new key is to be."""

    team = forms.ModelChoiceField(Team.objects.none(), widget=UnfoldAdminSelectWidget, empty_label="Choose a team")
    name = forms.CharField(
        max_length=120,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "checkout service, production"}),
        help_text="Where the key will be used. It stands in lists and in the audit log.",
    )
    scopes = _scopes()
    allowed_models = _model_names()
    tools = tool_kinds()
    lifetime = forms.ChoiceField(
        choices=_LIFETIMES, required=False, initial="90", label="Expires after", widget=UnfoldAdminSelectWidget
    )

    def __init__(self, data: Any = None, *, teams: QuerySet[Team], **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["team"].queryset = teams  # type: ignore[attr-defined]  # the field's own type is lost in the dict

    def expires_at(self, present: datetime) -> datetime | None:
        """When the key ends to work."""
        days = self.cleaned_data["lifetime"]
        return present + timedelta(days=int(days)) if days else None


class KeyForm(forms.ModelForm[ApiKey]):
    """What may be changed about a key."""

    scopes = _scopes()
    allowed_models = _model_names()
    tools = tool_kinds()

    class Meta:
        model = ApiKey
        fields = ["name", "scopes", "allowed_models", "tools", "expires_at"]


class StatusFilter(DropdownFilter):
    """Keys that work, that have expired, that were revoked."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("active", "Active"), ("expired", "Expired"), ("revoked", "Revoked")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        is_expired = Q(expires_at__lte=now())
        match self.value():
            case "active":
                return queryset.filter(~is_expired, revoked_at=None)
            case "expired":
                return queryset.filter(is_expired, revoked_at=None)
            case "revoked":
                return queryset.filter(revoked_at__isnull=False)
        return queryset


@register(ApiKey)
class KeyAdmin(Audited, TeamScoped):
    """A team lead makes, changes and revokes the keys of the team; everybody in it sees them."""

    managers = LEADS
    form = KeyForm
    actions = None
    list_display = [
        "name",
        "key",
        "team",
        "state",
        "scope_list",
        "model_list",
        "tool_list",
        "last_used",
        "expires",
        "created",
    ]
    list_filter = [StatusFilter, ("team", AutocompleteSelectFilter)]
    list_filter_submit = True
    list_fullwidth = True
    list_select_related = ["team"]
    search_fields = ["name", "prefix", "last_four", "id"]
    ordering = ["-created_at", "-id"]
    show_facets = admin.ShowFacets.NEVER
    actions_row = ["revoke"]
    actions_detail = ["revoke"]
    readonly_fields = [
        "key", "state", "team", "public_id", "scope_list", "model_list", "tool_list", "expires", "created",
        "created_by", "last_used",
    ]  # fmt: skip

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        writable = ["scopes", "allowed_models", "tools", "expires_at"]
        shown = ["scope_list", "model_list", "tool_list", "expires"]
        fields = writable if self.has_change_permission(request, obj) else shown
        history = ["created", "created_by", "last_used"]
        return [
            (None, {"fields": [("key", "state"), ("team", "public_id"), "name", *fields]}),
            ("History", {"fields": [tuple(history)]}),
        ]

    # -- what may be done ----------------------------------------------------------------------------------------------

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @override
    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_over = obj is not None and obj.revoked_at is not None
        return not is_over and super().has_change_permission(request, obj)

    def has_revoke_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """For one key: whether there is anything left to revoke."""
        if object_id is None:
            return may(request, self.managers)
        key = self.get_object(request, unquote(str(object_id)))
        return key is not None and key.revoked_at is None and may(request, self.managers, key)

    # -- making --------------------------------------------------------------------------------------------------------

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """The form, and on success the page with the secret: it is in that answer and nowhere else."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        initial = {"team": request.GET.get("team")}
        form = NewKeyForm(request.POST or None, teams=teams_for(request, self.managers), initial=initial)
        if request.method == "POST" and form.is_valid():
            return self._created(request, self._create(request, form))
        context = {**self._context(request, "Create an API key"), "form": form}
        return TemplateResponse(request, "admin/tenants/apikey/add.html", context)

    def _create(self, request: HttpRequest, form: NewKeyForm) -> services.NewKey:
        wanted = form.cleaned_data
        return services.create_key(
            team=wanted["team"],
            name=wanted["name"],
            scopes=wanted["scopes"],
            allowed_models=wanted["allowed_models"],
            tools=wanted["tools"],
            expires_at=form.expires_at(now()),
            actor=actor(request),
            created_by=request.user.pk,
        )

    def _created(self, request: HttpRequest, made: services.NewKey) -> HttpResponse:
        context = {
            **self._context(request, "Copy your new key"),
            "made": made,
            "api": request.build_absolute_uri("/v1"),
            "model": _a_model(made.key),
            "url": self._url("change", made.key.pk),
        }
        return TemplateResponse(request, "admin/tenants/apikey/created.html", context)

    # -- revoking ------------------------------------------------------------------------------------------------------

    @action(  # type: ignore[untyped-decorator]  # Unfold has no types
        description="Revoke", url_path="revoke", icon="block", permissions=["revoke"], variant=ActionVariant.DANGER
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, and on POST revoke."""
        key = self.get_object(request, unquote(object_id))
        if key is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[no-any-return]
        if not may(request, self.managers, key):
            raise PermissionDenied
        if request.method != "POST":
            context = {**self._context(request, "Revoke this key?"), "key": key, "original": key}
            return TemplateResponse(request, "admin/tenants/apikey/revoke.html", context)
        if services.revoke_key(key=key, actor=actor(request)):
            messages.success(request, f"The key {key} is revoked. It stops working everywhere within two seconds.")
        else:
            messages.info(request, f"The key {key} had been revoked before.")
        return HttpResponseRedirect(self._url("change", key.pk))

    # -- showing -------------------------------------------------------------------------------------------------------

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "opts": self.opts, "title": title, "media": self.media}

    def _url(self, page: str, *args: str) -> str:
        return reverse(f"admin:tenants_apikey_{page}", args=args)

    @display(description="Key")
    def key(self, key: ApiKey) -> SafeString:
        return format_html('<code class="c-code">{}…{}</code>', key.prefix, key.last_four)

    @display(description="ID")
    def public_id(self, key: ApiKey) -> SafeString:
        return copyable(key.pk)

    @display(description="Status")
    def state(self, key: ApiKey) -> SafeString:
        if key.revoked_at is not None:
            return badge("revoked", "danger", f"since {key.revoked_at:%Y-%m-%d %H:%M} UTC")
        if key.expires_at is not None and key.expires_at <= now():
            return badge("expired", "warning")
        return badge("active", "success")

    @display(description="Scopes")
    def scope_list(self, key: ApiKey) -> str:
        return "everything" if Scope.ALL.value in key.scopes else ", ".join(key.scopes)

    @display(description="Models")
    def model_list(self, key: ApiKey) -> str:
        return ", ".join(key.allowed_models) if key.allowed_models else "all"

    @display(description="Tools")
    def tool_list(self, key: ApiKey) -> str:
        return "all" if ToolKind.ALL.value in key.tools else ", ".join(key.tools) or "none"

    @display(description="Last used", ordering="last_used_at")
    def last_used(self, key: ApiKey) -> Any:
        return when(key.last_used_at) if key.last_used_at else "never"

    @display(description="Expires", ordering="expires_at")
    def expires(self, key: ApiKey) -> Any:
        return when(key.expires_at) if key.expires_at else "never"

    @display(description="Created", ordering="created_at")
    def created(self, key: ApiKey) -> Any:
        return when(key.created_at)
