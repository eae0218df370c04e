# mypy: allow-subclassing-any
"""Webhook endpoints: create, change, test, rotate the secret, enable, disable and delete."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import messages
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
_SECRET_PAGE = "admin/responses/webhookendpoint/secret.html"  # noqa: S105 - a template path
_EVENTS = [(name, name) for name in EVENT_TYPES]
_HOURS = 24


def audit_actor(request: HttpRequest) -> Actor:
    """Return the user and the request id for the audit log."""
    return Actor(name=actor(request), request_id=getattr(request, "scope", {}).get("request_id", ""))


class EndpointFields(forms.Form):
    """Fields that the forms for new and existing endpoints share."""

    name = forms.CharField(
        max_length=MAX_NAME,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "order service, production"}),
    )
    url = forms.CharField(
        max_length=MAX_URL,
        label="URL",
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "https://orders.example.com/webhooks"}),
        help_text="Must use HTTPS on port 443 and a public address, unless the platform's configuration allows others.",
    )
    event_types = forms.MultipleChoiceField(
        choices=_EVENTS, label="Events", widget=UnfoldAdminCheckboxSelectMultipleWidget
    )

    def clean_url(self) -> str:
        """Reject URLs that the egress policy blocks for deliveries."""
        url: str = self.cleaned_data["url"]
        try:
            services.check_url(url)
        except EgressRefused as refused:
            raise ValidationError(refused.message) from refused
        return url


class CreateEndpointForm(EndpointFields):
    """Form for a new endpoint."""

    team = forms.ModelChoiceField(Team.objects.none(), widget=UnfoldAdminSelectWidget, empty_label="Choose a team")
    field_order = ["team", "name", "url", "event_types"]

    def __init__(self, data: Any = None, *, teams: QuerySet[Team], **options: Any) -> None:
        super().__init__(data, **options)
        self.fields["team"].queryset = teams  # type: ignore[attr-defined]  # the field's own type is lost in the dict


class EndpointForm(forms.ModelForm[WebhookEndpoint], EndpointFields):
    """Form for an existing endpoint; its team cannot be changed."""

    class Meta:
        model = WebhookEndpoint
        fields = ["name", "url", "event_types"]


class RotateSecretForm(forms.Form):
    """Options for rotating the signing secret."""

    keep_old = forms.BooleanField(
        required=False,
        initial=True,
        label="Keep the old secret for 24 hours",
        widget=UnfoldBooleanSwitchWidget,
        help_text="Deliveries are signed with both secrets until you have installed the new one.",
    )


class TestEventForm(forms.Form):
    """Choice of the event type of a test event."""

    event_type = forms.ChoiceField(choices=_EVENTS, label="Event", widget=UnfoldAdminSelectWidget)


def _recent_deliveries(at: datetime, condition: Q) -> Coalesce:
    """Return a subquery that counts an endpoint's deliveries of the last 24 hours."""
    # Event ids begin with a time stamp, and the unique index of endpoint and event id serves this range.
    since = f"evt_{int((at - timedelta(hours=_HOURS)).timestamp() * 1000):012x}"
    rows = WebhookDelivery.objects.filter(endpoint=OuterRef("pk"), event_id__gte=since).filter(condition).order_by()
    counted = rows.values("endpoint").annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


@register(WebhookEndpoint)
class EndpointAdmin(TeamScoped):
    """Webhook endpoints. Leads manage those of their teams, operators all; only leads see secrets.

    The services write the audit events.
    """

    managers = MANAGERS
    form = EndpointForm
    list_display = ["name", "address", "team", "state", "success", "events", "secret_hint", "created"]
    list_filter = [("team", AutocompleteSelectFilter)]
    list_filter_submit = True
    list_fullwidth = True
    list_select_related = ["team"]
    search_fields = ["name", "url", "id"]
    ordering = ["-created_at", "-id"]
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
        rows = rows.annotate(delivered=_recent_deliveries(at, delivered), attempted=_recent_deliveries(at, attempted))
        return rows  # noqa: RET504 - the stubs call an annotated query set Any

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        is_writable = self.has_change_permission(request, obj)
        writable = ["name", "url", "event_types"] if is_writable else ["name", "address", "events"]
        fields: list[Any] = [("public_id", "state"), ("team", "secret_hint"), *writable]
        return [(None, {"fields": fields}), ("History", {"fields": [("created", "updated"), "deliveries"]})]

    # -- permissions ---------------------------------------------------------------------------------------------------

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, self.managers, obj)

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, LEADS)

    def has_rotate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return whether the user may rotate the secret, which shows the new one: leads only."""
        return may(request, LEADS) and self.has_manage_permission(request, object_id)

    def has_manage_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return whether the user may manage the endpoint, or any endpoint without an id."""
        if object_id is None:
            return may(request, self.managers)
        endpoint = self.get_object(request, unquote(str(object_id)))
        return endpoint is not None and may(request, self.managers, endpoint)

    # -- create, change, delete ----------------------------------------------------------------------------------------

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Render the form, or create the endpoint and show its secret."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = CreateEndpointForm(request.POST or None, teams=teams_for(request, LEADS))
        if request.method == "POST" and form.is_valid():
            data = form.cleaned_data
            try:
                new_secret = services.create_endpoint(
                    team_id=data["team"].pk,
                    actor=audit_actor(request),
                    name=data["name"],
                    url=data["url"],
                    event_types=data["event_types"],
                )
            except ApiError as refused:
                form.add_error(None, refused.message)
            else:
                return self._show_secret(request, new_secret, "Copy the signing secret")
        back = reverse("admin:responses_webhookendpoint_changelist")
        texts = {"button": "Create endpoint", "icon": "webhook", "variant": "primary", "back": back}
        context = {**self._context(request, "Create webhook endpoint"), **texts, "form": form}
        return TemplateResponse(request, FORM_PAGE, context)

    @override
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        data = form.cleaned_data
        services.update_endpoint(
            # `obj` has the new values already; the service compares with the stored ones for the audit event.
            endpoint=WebhookEndpoint.objects.get(pk=obj.pk),
            actor=audit_actor(request),
            name=data["name"],
            url=data["url"],
            event_types=data["event_types"],
        )

    @override
    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.delete_endpoint(endpoint=obj, actor=audit_actor(request))

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        # Django would require a delete permission for each delivery, but the deliveries belong to the endpoint.
        names = [f"{endpoint} with its deliveries" for endpoint in objs]
        return names, {"webhook endpoints": len(names)}, set(), []

    # -- actions -------------------------------------------------------------------------------------------------------

    @action(  # type: ignore[untyped-decorator]  # Unfold has no types
        description="Send test", url_path="test", icon="send", permissions=["manage"]
    )
    def send_test(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the form, or send a test event on POST."""
        endpoint = self._get_managed(request, object_id)
        form = TestEventForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            self._send(request, endpoint, form.cleaned_data["event_type"])
            return HttpResponseRedirect(self._url(endpoint))
        texts = {"button": "Send", "icon": "send", "variant": "primary"}
        description = f"Sends a signed sample event to {endpoint.url}. The object in the event does not exist."
        return self._render_form(
            request, endpoint, "Send a test event", {**texts, "description": description, "form": form}
        )

    @action(  # type: ignore[untyped-decorator]  # as above
        description="Rotate secret", url_path="rotate", icon="autorenew", permissions=["rotate"]
    )
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the confirmation page, or rotate the secret and show the new one on POST."""
        endpoint = self._get_managed(request, object_id)
        # Managing is not enough: the page shows the secret, which operators must not see.
        if not may(request, LEADS, endpoint):
            raise PermissionDenied
        if request.method == "POST":
            form = RotateSecretForm(request.POST)
            keep_old = form.is_valid() and form.cleaned_data["keep_old"]
            new_secret = services.rotate_secret(endpoint=endpoint, actor=audit_actor(request), keep_old=keep_old)
            return self._show_secret(request, new_secret, "Copy the new signing secret")
        texts = {"button": "Rotate secret", "icon": "autorenew", "variant": "primary"}
        return self._render_form(request, endpoint, "Rotate the signing secret?", {**texts, "form": RotateSecretForm()})

    @action(  # type: ignore[untyped-decorator]  # as above
        description="Enable or disable",
        url_path="switch",
        icon="power_settings_new",
        permissions=["manage"],
        variant=ActionVariant.DANGER,
    )
    def switch(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the confirmation page, or enable or disable the endpoint on POST."""
        endpoint = self._get_managed(request, object_id)
        verb = "disable" if endpoint.enabled else "enable"
        if request.method == "POST":
            services.set_enabled(endpoint=endpoint, actor=audit_actor(request), enabled=not endpoint.enabled)
            messages.success(request, f"Endpoint {endpoint} {verb}d.")
            return HttpResponseRedirect(self._url(endpoint))
        description = (
            "No more events are sent. Pending deliveries are kept until 72 hours after their event."
            if endpoint.enabled
            else "New events and pending deliveries are sent again."
        )
        texts = {
            "button": verb.capitalize(),
            "icon": "power_settings_new",
            "variant": "primary",
            "description": description,
        }
        return self._render_form(request, endpoint, f"{verb.capitalize()} this endpoint?", texts)

    def _send(self, request: HttpRequest, endpoint: WebhookEndpoint, event_type: str) -> None:
        try:
            outcome = async_to_sync(services.send_test)(endpoint=endpoint, event_type=event_type)
        except ApiError as failed:
            messages.error(request, f"Test failed. {failed.message}")
            return
        # Only a test that reached the endpoint is audited.
        services.audit_test(endpoint=endpoint, actor=audit_actor(request), event_type=event_type, result=outcome)
        result = f"The endpoint responded with status {outcome.status} in {outcome.milliseconds} ms."
        (messages.success if outcome.succeeded else messages.warning)(request, result)

    def _get_managed(self, request: HttpRequest, object_id: str) -> WebhookEndpoint:
        endpoint: WebhookEndpoint | None = self.get_object(request, unquote(object_id))
        if endpoint is None or not may(request, self.managers, endpoint):
            raise PermissionDenied
        return endpoint

    def _render_form(
        self, request: HttpRequest, endpoint: WebhookEndpoint, title: str, texts: Mapping[str, Any]
    ) -> HttpResponse:
        context = {**self._context(request, title), **texts, "original": endpoint, "back": self._url(endpoint)}
        return TemplateResponse(request, FORM_PAGE, context)

    def _show_secret(self, request: HttpRequest, new_secret: NewSecret, title: str) -> HttpResponse:
        context = {**self._context(request, title), "new_secret": new_secret, "url": self._url(new_secret.endpoint)}
        return TemplateResponse(request, _SECRET_PAGE, context)

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "opts": self.opts, "title": title, "media": self.media}

    def _url(self, endpoint: WebhookEndpoint) -> str:
        return reverse("admin:responses_webhookendpoint_change", args=[endpoint.pk])

    # -- columns -------------------------------------------------------------------------------------------------------

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

    @display(description="Success rate (24 h)")
    def success(self, endpoint: Any) -> str:
        # No rate without deliveries: zero percent would look like a failure.
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
        return format_html('<a class="c-link" href="{}?endpoint={}&period=30d">View deliveries</a>', url, endpoint.pk)

    @display(description="Created", ordering="created_at")
    def created(self, endpoint: WebhookEndpoint) -> Any:
        return when(endpoint.created_at)

    @display(description="Updated")
    def updated(self, endpoint: WebhookEndpoint) -> Any:
        return when(endpoint.updated_at)
