# mypy: allow-subclassing-any
"""Admin pages of upstreams and models. API keys of upstreams are write-only."""

from typing import Any

from django import forms
from django.contrib.admin import display, register
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.utils import unquote
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.admin import ModelAdmin as UnfoldAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from console.filters import SelectFilter
from console.widgets import badge, column, id_column, link, time_column, two_lines
from core.basic_auth import split_credentials
from core.clock import now
from routing import price_updates
from routing.admin.capabilities import CapabilityForm, capability_labels, fieldsets
from routing.admin.health import health_by_route, health_cell
from routing.admin.prices import PriceInline, described
from routing.admin.route_page import route_url
from tenants import services
from tenants.console.audited_admin import AuditedAdmin
from tenants.console.permissions import PlatformOnly
from tenants.console.roles import OPERATORS
from tenants.console.secrets import SecretForm, WriteOnlySecrets, forget_field, secret_badge, secret_field
from tenants.console.team_access import SharedObjectAdmin, TeamsInline, enabled_badge
from tenants.console.viewer import viewer_of
from tenants.models import Model, ModelVisibility, Upstream
from tenants.prices import NO_PRICE, Dimension, amount


class UpstreamForm(SecretForm):
    """An upstream with its API key."""

    help_if_set = "A key is set. Leave empty to keep it."
    # Replaces the model's field, whose validator rejects hosts without a dot, such as those of containers.
    address = forms.RegexField(
        r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        label="Base URL",
        max_length=200,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "https://api.openai.com/v1"}),
        help_text="Up to and including /v1. A user name and password in it are stored encrypted, in place of the key.",
        error_messages={"invalid": "Enter an http or https URL without a query."},
    )
    new_api_key = secret_field("API key", "Encrypted at rest and never shown again.")
    forget_api_key = forget_field("Remove the stored key")

    class Meta:
        model = Upstream
        fields = ["name", "wire_api", "is_default", "region"]
        labels = {"wire_api": "API", "is_default": "Default"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.credentials = ""
        # Earlier versions stored credentials in the URL.
        self.initial.setdefault("address", split_credentials(self.instance.base_url)[0])

    def clean_address(self) -> str:
        """Return the URL without a trailing slash and without credentials.

        Paths are appended to the URL. The credentials become the secret.
        """
        address, self.credentials = split_credentials(str(self.cleaned_data["address"]).rstrip("/"))
        if self.credentials and self.fields["new_api_key"].disabled:
            raise forms.ValidationError("You do not have permission to enter a user name and password.")
        return address

    @override
    def clean(self) -> dict[str, Any]:
        """Store the credentials of the URL as the secret."""
        given = super().clean() or {}
        if self.credentials and (given.get("new_api_key") or given.get("forget_api_key")):
            self.add_error("new_api_key", "An upstream has either a key or a user name and password in its URL.")
        elif self.credentials:
            given["new_api_key"] = self.credentials
            self.changed_data.append("new_api_key")
        return given

    @override
    def save(self, commit: bool = True) -> Any:
        self.instance.base_url = self.cleaned_data["address"]
        return super().save(commit)


class HealthColumn(UnfoldAdmin):
    """Adds the success rate of calls to a list and to the page of an object. Takes one lookup for a whole list."""

    def health_key(self, row: Any) -> tuple[str, str]:
        """Return the upstream id and the model whose calls count for a row; an empty model means all of them."""
        raise NotImplementedError

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Return the list, with the call health of each row attached."""
        changelist, found = super().get_changelist_instance(request), health_by_route()
        for row in changelist.result_list:
            row.call_health = found.get(self.health_key(row))
        return changelist

    @override
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        found = health_by_route().get(self.health_key(row)) if row is not None else None
        context = (extra_context or {}) | {
            "may_try": viewer_of(request).may(OPERATORS),
            "health": health_cell(found) if found else "",
        }
        return super().change_view(request, object_id, form_url, context)  # type: ignore[no-any-return]

    health = column("Successful calls", lambda row: health_cell(getattr(row, "call_health", None)))


@register(Upstream)
class UpstreamAdmin(HealthColumn, WriteOnlySecrets, AuditedAdmin, PlatformOnly):
    """Upstreams, which serve models."""

    empty_text = "An upstream is a server that runs models. Connect one, and its models can be offered."
    add_label = "Connect an upstream"

    form = UpstreamForm
    destination_field = "address"
    change_form_outer_before_template = "admin/tenants/upstream/tools.html"
    list_display = [
        "name", "shown_address", "shown_api", "health", "key_state", "default_state", "model_count", "created",
    ]  # fmt: skip
    list_fullwidth = True
    list_annotations = {"model_count": Count("models")}
    search_fields = ["name", "base_url"]
    ordering = ["name"]
    readonly_fields = ["public_id", "created"]
    fieldsets = [
        (None, {"fields": ["name", "address", "wire_api", "new_api_key", "forget_api_key", "is_default", "region"]})
    ]
    public_id = id_column()
    shown_api = column("API", Upstream.get_wire_api_display)
    shown_address = column("Base URL", lambda row: format_html('<code class="c-code">{}</code>', row.base_url))
    key_state = column("API key", secret_badge)
    default_state = column("Default", lambda row: badge("default", "primary") if row.is_default else "")
    created = time_column("Created", "created_at", ordering="created_at")

    @override
    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        (_, options), *_ = super().get_fieldsets(request, obj)
        return [
            (None, {"fields": options["fields"] if obj is None else [("public_id", "created"), *options["fields"]]})
        ]

    @override
    def health_key(self, row: Any) -> tuple[str, str]:
        """Return the key for all calls of the upstream."""
        return row.pk, ""

    @override
    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        # The guided page has a link to the plain form. Popups are opened by forms that wait for a new row.
        is_plain = request.method == "POST" or "plain" in request.GET or IS_POPUP_VAR in request.GET
        if not is_plain and self.has_add_permission(request):
            return HttpResponseRedirect(reverse("console:upstream_connect"))
        return super().add_view(request, form_url, extra_context)  # type: ignore[no-any-return]

    @override
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        super().save_model(request, obj, form, change)
        # At most one upstream is the default.
        if obj.is_default:
            Upstream.objects.exclude(pk=obj.pk).filter(is_default=True).update(is_default=False)

    @display(description="Models")
    def model_count(self, upstream: Any) -> SafeString:
        url = reverse("admin:tenants_model_changelist")
        link = '<a class="c-link" href="{}?upstream={}">{}</a>'
        return format_html(link, url, upstream.pk, upstream.model_count)


class UpstreamFilter(SelectFilter):
    """Filters models by upstream. Unlike Django's filter, it does not read the upstreams' keys."""

    title = "upstream"
    parameter_name = "upstream"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(Upstream.objects.order_by("name").values_list("pk", "name"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(upstream_id=self.value()) if self.value() else queryset


class VisibilityInline(TeamsInline):
    """Teams that may use a model."""

    model = ModelVisibility


@register(Model)
class ModelAdmin(HealthColumn, SharedObjectAdmin):
    """Models with their routes, prices and capabilities."""

    empty_text = "A model is a name that clients use, and the upstream that answers."
    add_label = "Add a model"

    form = CapabilityForm
    list_display = [
        "name",
        "route",
        "order",
        "health",
        "price_list",
        "special",
        "visible_to",
        "state",
    ]
    change_form_outer_before_template = "admin/tenants/model/tools.html"
    list_filter = [UpstreamFilter, "enabled"]
    list_defer = ("upstream__api_key",)
    list_filter_submit = True
    list_fullwidth = True
    search_fields = ["name", "upstream_model"]
    ordering = ["name", "priority", "upstream__name"]
    inlines = [PriceInline, VisibilityInline]
    list_prefetch = ("teams", "price_entries")
    fieldsets = [
        (
            None,
            {
                "fields": [
                    "name",
                    ("upstream", "upstream_model"),
                    ("priority", "weight"),
                    "fallback_for",
                    "serves",
                    "enabled",
                    "shutdown_date",
                ]
            },
        ),
        *fieldsets(),
    ]

    @override
    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: Any) -> None:
        super().save_related(request, form, formsets, change)
        services.restrict_to_keys(form.instance, form.cleaned_data["only_keys"])
        # A new model without prices gets the published ones if its provider is certain.
        if not change and not form.instance.price_entries.exists():
            price_updates.add_listed_prices(form.instance, at=now(), actor=viewer_of(request).actor)

    @override
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        model = self.get_object(request, unquote(object_id)) if viewer_of(request).may(OPERATORS) else None
        compared = price_updates.compare(model, at=now()) if model is not None else None
        context: dict[str, Any] = {"published": described(compared)} if compared is not None else {}
        if model is not None:
            context["route_url"] = route_url(model.name)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("upstream")

    @override
    def health_key(self, row: Any) -> tuple[str, str]:
        """Return the key for the calls of the model, or for all calls of the upstream for `*`."""
        return row.upstream_id, "" if row.name == "*" else row.name

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "upstream":
            # The keys are not read, as one of them may be impossible to decrypt.
            kwargs["queryset"] = Upstream.objects.defer("api_key").order_by("name")
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @display(description="API keys")
    def only_keys(self, model: Model) -> str:
        """Return the ids, for viewers who may not change them."""
        return ", ".join(sorted(key.pk for key in model.keys.all())) or "–"

    @override
    @display(description="Status", ordering="enabled")
    def state(self, model: Model) -> SafeString:
        """Return whether the model is enabled, and below it the date of its shutdown."""
        shutdown = f"shutdown {model.shutdown_date:%Y-%m-%d}" if model.shutdown_date else ""
        return two_lines(enabled_badge(model), shutdown)

    @display(description="Upstream")
    def route(self, model: Model) -> SafeString:
        name = model.upstream_model or ("same name" if model.name == "*" else model.name)
        return two_lines(str(model.upstream), format_html('<code class="c-code">→ {}</code>', name))

    @display(description="Priority, weight", ordering="priority")
    def order(self, model: Model) -> SafeString:
        return two_lines(
            link(route_url(model.name), f"{model.priority}, weight {model.weight}"),
            f"fallback for {model.fallback_for}" if model.fallback_for else "",
        )

    @display(description="USD per million tokens")
    def price_list(self, model: Model) -> SafeString | str:
        prices = model.prices()
        if not prices:
            return NO_PRICE
        read, cached = prices.usual(Dimension.INPUT), prices.usual(Dimension.CACHED_INPUT)
        discount = f"{amount(cached)} cached, " if cached is not None else ""
        return two_lines(f"{amount(read)} in", f"{discount}{amount(prices.usual(Dimension.OUTPUT))} out")

    @display(description="Capabilities")
    def special(self, model: Model) -> SafeString | str:
        labels = capability_labels(model)
        return two_lines(labels[0], ", ".join(labels[1:])) if labels else "–"
