# mypy: allow-subclassing-any
"""Webhook endpoints: made and rotated with the secret shown once, tested, switched off and on, deleted."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import admin, messages
from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.contrib.filters.admin import AutocompleteSelectFilter
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from console.widgets import badge, copyable, two_lines, when
from kernel.clock import now
from kernel.errors import ApiError, EgressRefused
from responses.webhooks import services
from responses.webhooks.events import EVENT_TYPES
from responses.webhooks.models import MAX_NAME, MAX_URL, DeliveryState, WebhookDelivery, WebhookEndpoint
from responses.webhooks.services import Actor, NewSecret
from responses.webhooks.signing import hint
from tenants.console.audited_admin import actor
from tenants.console.roles import LEADS, OPERATORS, TeamScoped, may, teams_for
from tenants.models import Team

MANAGERS = LEADS | OPERATORS
FORM_PAGE = "admin/responses/webhookendpoint/form.html"
_SECRET_PAGE = "admin/responses/webhookendpoint/secret.html"  # noqa: S105 - the page of one
_EVENTS = [(name, name) for name in EVENT_TYPES]
_HOURS = 24


def acting(request: HttpRequest) -> Actor:
    """Who does it, for the audit log."""
    return Actor(name=actor(request), request_id=getattr(request, "scope", {}).get("request_id", ""))


class _Settings(forms.Form):
    """What an endpoint is, apart from its team."""

    name = forms.CharField(
        max_length=MAX_NAME,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "order service, production"}),
    )
    url = forms.CharField(
        max_length=MAX_URL,
        label="URL",
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "https://orders.example.com/webhooks"}),
        help_text="https, on port 443 and at a public address, unless the platform's configuration opens others.",
    )
    event_types = forms.MultipleChoiceField(
        choices=_EVENTS, label="Events", widget=UnfoldAdminCheckboxSelectMultipleWidget
    )

    def clean_url(self) -> str:
        """Refuse what no delivery could reach."""
        url: str = self.cleaned_data["url"]
        try:
            services.check_url(url)
        except EgressRefused as refused:
            raise ValidationError(refused.message) from refused
        return url


class NewEndpointForm(_Settings):
    """What a new endpoint is to be."""

    team = forms.ModelChoiceField(Team.objects.none(), widget=UnfoldAdminSelectWidget, empty_label="Choose a team")
    field_order = ["team", "name", "url", "event_types"]

    def __init__(self, data: Any = None, *, teams: QuerySet[Team], **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["team"].queryset = teams  # type: ignore[attr-defined]  # the field's own type is lost in the dict


class EndpointForm(forms.ModelForm[WebhookEndpoint], _Settings):
    """What can be changed about one."""

    class Meta:
        model = WebhookEndpoint
        fields = ["name", "url", "event_types"]


class RotateForm(forms.Form):
    """How to rotate."""

    keep_old = forms.BooleanField(
        required=False,
        initial=True,
        label="Keep the old secret for 24 hours",
        widget=UnfoldBooleanSwitchWidget,
        help_text="Deliveries are signed with both, so that nothing is refused while the new one is installed.",
    )


class SampleForm(forms.Form):
    """What to send."""

    event_type = forms.ChoiceField(choices=_EVENTS, label="Event", widget=UnfoldAdminSelectWidget)


def _recent(at: datetime, narrow: Q) -> Coalesce:
    """How many of an endpoint's deliveries of the last 24 hours; ids of events tell their time."""
    since = f"evt_{int((at - timedelta(hours=_HOURS)).timestamp() * 1000):012x}"
    rows = WebhookDelivery.objects.filter(endpoint=OuterRef("pk"), event_id__gte=since).filter(narrow).order_by()
    counted = rows.values("endpoint").annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


@register(WebhookEndpoint)
class EndpointAdmin(TeamScoped):
    """A team lead manages the endpoints of the team, operators do all but what shows a secret, the team sees them.

    The audit lines are the services'.
    """

    managers = MANAGERS
    form = EndpointForm
    actions = None
    list_display = ["name", "address", "team", "state", "success", "events", "secret_hint", "created"]
    list_filter = [("team", AutocompleteSelectFilter)]
    list_filter_submit = True
    list_fullwidth = True
    list_select_related = ["team"]
    search_fields = ["name", "url", "id"]
    ordering = ["-created_at", "-id"]
    show_facets = admin.ShowFacets.NEVER
    actions_detail = ["send_test", "rotate", "switch"]
    change_form_before_template = "admin/responses/webhookendpoint/banner.html"
    readonly_fields = [
        "public_id", "state", "team", "secret_hint", "address", "events", "created", "updated", "deliveries",
    ]  # fmt: skip

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        at = now()
        delivered, attempted = Q(state=DeliveryState.DELIVERED), Q(attempts__gt=0)
        rows = rows.annotate(delivered=_recent(at, delivered), attempted=_recent(at, attempted))
        return rows  # noqa: RET504 - the stubs call an annotated query set Any

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        is_writable = self.has_change_permission(request, obj)
        writable = ["name", "url", "event_types"] if is_writable else ["name", "address", "events"]
        facts: list[Any] = [("public_id", "state"), ("team", "secret_hint"), *writable]
        return [(None, {"fields": facts}), ("History", {"fields": [("created", "updated"), "deliveries"]})]

    # -- what may be done ----------------------------------------------------------------------------------------------

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.managers, obj)

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, LEADS)

    def has_rotate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Whether the user may be shown a new secret."""
        return may(request, LEADS) and self.has_manage_permission(request, object_id)

    def has_manage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """For one endpoint: whether it is the user's to manage."""
        if object_id is None:
            return may(request, self.managers)
        endpoint = self.get_object(request, unquote(str(object_id)))
        return endpoint is not None and may(request, self.managers, endpoint)

    # -- making, changing, deleting ------------------------------------------------------------------------------------

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """The form, and on success the page with the secret: it is in that answer and nowhere else."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = NewEndpointForm(request.POST or None, teams=teams_for(request, LEADS))
        if request.method == "POST" and form.is_valid():
            wanted = form.cleaned_data
            try:
                made = services.create_endpoint(
                    team_id=wanted["team"].pk,
                    actor=acting(request),
                    name=wanted["name"],
                    url=wanted["url"],
                    event_types=wanted["event_types"],
                )
            except ApiError as refused:
                form.add_error(None, refused.message)
            else:
                return self._show_secret(request, made, "Copy the signing secret")
        back = reverse("admin:responses_webhookendpoint_changelist")
        words = {"button": "Create endpoint", "icon": "webhook", "variant": "primary", "back": back}
        context = {**self._context(request, "Create a webhook endpoint"), **words, "form": form}
        return TemplateResponse(request, FORM_PAGE, context)

    @override
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        wanted = form.cleaned_data
        services.update_endpoint(
            endpoint=WebhookEndpoint.objects.get(pk=obj.pk),
            actor=acting(request),
            name=wanted["name"],
            url=wanted["url"],
            event_types=wanted["event_types"],
        )

    @override
    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.delete_endpoint(endpoint=obj, actor=acting(request))

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """Deliveries go with their endpoint, whoever may see or change them."""
        names = [f"{endpoint} with its deliveries" for endpoint in objs]
        return names, {"webhook endpoints": len(names)}, set(), []

    # -- actions -------------------------------------------------------------------------------------------------------

    @action(  # type: ignore[untyped-decorator]  # Unfold has no types
        description="Send test", url_path="test", icon="send", permissions=["manage"]
    )
    def send_test(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for an event, and on POST send a sample of it."""
        endpoint = self._managed(request, object_id)
        form = SampleForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._send(request, endpoint, form.cleaned_data["event_type"])
            return HttpResponseRedirect(self._url(endpoint))
        words = {"button": "Send", "icon": "send", "variant": "primary"}
        lead = (
            f"A sample goes to {endpoint.url} at once, signed as all others. It tells of an object that does not exist."
        )
        return self._ask(request, endpoint, "Send a test event", {**words, "lead": lead, "form": form})

    @action(  # type: ignore[untyped-decorator]  # as above
        description="Rotate secret", url_path="rotate", icon="autorenew", permissions=["rotate"]
    )
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, and on POST show the new secret."""
        endpoint = self._managed(request, object_id)
        if not may(request, LEADS, endpoint):
            raise PermissionDenied
        if request.method == "POST":
            form = RotateForm(request.POST)
            keep_old = form.is_valid() and form.cleaned_data["keep_old"]
            made = services.rotate_secret(endpoint=endpoint, actor=acting(request), keep_old=keep_old)
            return self._show_secret(request, made, "Copy the new signing secret")
        words = {"button": "Rotate secret", "icon": "autorenew", "variant": "primary"}
        return self._ask(request, endpoint, "Rotate the signing secret?", {**words, "form": RotateForm()})

    @action(  # type: ignore[untyped-decorator]  # as above
        description="Switch on or off",
        url_path="switch",
        icon="power_settings_new",
        permissions=["manage"],
        variant=ActionVariant.DANGER,
    )
    def switch(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask, and on POST do it."""
        endpoint = self._managed(request, object_id)
        verb = "off" if endpoint.enabled else "on"
        if request.method == "POST":
            services.set_enabled(endpoint=endpoint, actor=acting(request), enabled=not endpoint.enabled)
            messages.success(request, f"The endpoint {endpoint} is switched {verb}.")
            return HttpResponseRedirect(self._url(endpoint))
        lead = (
            "It is told nothing any more. What waits for it is kept, and given up 72 hours after its event."
            if endpoint.enabled
            else "It is told of events again, and of those that wait for it."
        )
        words = {"button": f"Switch {verb}", "icon": "power_settings_new", "variant": "primary", "lead": lead}
        return self._ask(request, endpoint, f"Switch this endpoint {verb}?", words)

    def _send(self, request: HttpRequest, endpoint: WebhookEndpoint, event_type: str) -> None:
        try:
            outcome = async_to_sync(services.send_test)(endpoint=endpoint, event_type=event_type)
        except ApiError as failed:
            messages.error(request, f"Nobody answered. {failed.message}")
            return
        services.note_test(endpoint=endpoint, actor=acting(request), event_type=event_type, outcome=outcome)
        told = f"It answered with {outcome.status} after {outcome.milliseconds} ms."
        (messages.success if outcome.succeeded else messages.warning)(request, told)

    def _managed(self, request: HttpRequest, object_id: str) -> WebhookEndpoint:
        endpoint: WebhookEndpoint | None = self.get_object(request, unquote(object_id))
        if endpoint is None or not may(request, self.managers, endpoint):
            raise PermissionDenied
        return endpoint

    def _ask(
        self, request: HttpRequest, endpoint: WebhookEndpoint, title: str, words: Mapping[str, Any]
    ) -> HttpResponse:
        context = {**self._context(request, title), **words, "original": endpoint, "back": self._url(endpoint)}
        return TemplateResponse(request, FORM_PAGE, context)

    def _show_secret(self, request: HttpRequest, made: NewSecret, title: str) -> HttpResponse:
        context = {**self._context(request, title), "made": made, "url": self._url(made.endpoint)}
        return TemplateResponse(request, _SECRET_PAGE, context)

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "opts": self.opts, "title": title, "media": self.media}

    def _url(self, endpoint: WebhookEndpoint) -> str:
        return reverse("admin:responses_webhookendpoint_change", args=[endpoint.pk])

    # -- showing -------------------------------------------------------------------------------------------------------

    @display(description="ID")
    def public_id(self, endpoint: WebhookEndpoint) -> SafeString:
        return copyable(endpoint.pk)

    @display(description="URL")
    def address(self, endpoint: WebhookEndpoint) -> SafeString:
        return copyable(endpoint.url)

    @display(description="Status")
    def state(self, endpoint: WebhookEndpoint) -> SafeString:
        if not endpoint.enabled:
            since = f"since {endpoint.disabled_at:%Y-%m-%d %H:%M} UTC"
            return two_lines(badge("disabled", "danger", since), endpoint.get_disabled_reason_display())
        if endpoint.failing_since is not None:
            return badge("failing", "warning", f"since {endpoint.failing_since:%Y-%m-%d %H:%M} UTC")
        return badge("enabled", "success")

    @display(description="Success, 24 h")
    def success(self, endpoint: Any) -> str:
        if not endpoint.attempted:
            return "–"
        return f"{100 * endpoint.delivered // endpoint.attempted} % of {endpoint.attempted}"

    @display(description="Events")
    def events(self, endpoint: WebhookEndpoint) -> str:
        return ", ".join(endpoint.event_types)

    @display(description="Secret")
    def secret_hint(self, endpoint: WebhookEndpoint) -> str:
        return hint(endpoint.secret)

    @display(description="Deliveries")
    def deliveries(self, endpoint: WebhookEndpoint) -> SafeString:
        url = reverse("admin:responses_webhookdelivery_changelist")
        return format_html('<a class="c-link" href="{}?endpoint={}&period=30d">Show them</a>', url, endpoint.pk)

    @display(description="Created", ordering="created_at")
    def created(self, endpoint: WebhookEndpoint) -> Any:
        return when(endpoint.created_at)

    @display(description="Changed")
    def updated(self, endpoint: WebhookEndpoint) -> Any:
        return when(endpoint.updated_at)
