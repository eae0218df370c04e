# mypy: allow-subclassing-any
"""Console pages of webhook endpoints and their deliveries, with actions such as test, rotate the secret and resend."""

from datetime import timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.contrib import messages
from django.contrib.admin import display, register
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from typing_extensions import override
from unfold.enums import ActionVariant
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from console.filters import ChoicesFilter, RelatedFilter, exact
from console.logs import LogAdmin
from console.widgets import (
    TimeFilter,
    badge,
    changelist_url,
    column,
    copyable,
    duration,
    first_of,
    id_column,
    json_block,
    link,
    time_column,
    tone,
    two_lines,
)
from core.clock import now
from core.errors import ApiError, EgressRefused
from deliveries.admin import attempt_table
from responses.admin import cells
from responses.webhooks import services
from responses.webhooks.events import EVENT_TYPES, payload
from responses.webhooks.models import MAX_NAME, MAX_URL, WebhookDelivery, WebhookEndpoint
from responses.webhooks.signing import hint
from tenants.console.permissions import TeamScoped
from tenants.console.roles import LEADS, OPERATORS
from tenants.console.row_actions import CONFIRM, RowAction, RowForm
from tenants.console.viewer import viewer_of
from tenants.models import Team
from tenants.models.notifications import DELIVERY_TONES, DeliveryState

MANAGERS = LEADS | OPERATORS
_SECRET_PAGE = "admin/responses/webhookendpoint/secret.html"  # noqa: S105 - a template path
_EVENTS = [(name, name) for name in EVENT_TYPES]
_HOURS = 24
# Fields of the forms that are stored as they are.
_STORED = ("name", "url", "event_types")
# Characters of the last response that the list of deliveries shows.
_SNIPPET = 80


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


class RotateSecretForm(RowForm):
    """Options for rotating the signing secret."""

    keep_old = forms.BooleanField(
        required=False,
        initial=True,
        label="Keep the old secret for 24 hours",
        widget=UnfoldBooleanSwitchWidget,
        help_text="Deliveries are signed with both secrets until you have installed the new one.",
    )


class TestEventForm(RowForm):
    """Choice of the event type of a test event."""

    event_type = forms.ChoiceField(choices=_EVENTS, label="Event", widget=UnfoldAdminSelectWidget)


def _switch_verb(endpoint: WebhookEndpoint) -> str:
    return "Disable" if endpoint.enabled else "Enable"


@register(WebhookEndpoint)
class EndpointAdmin(TeamScoped):
    """Webhook endpoints. Leads manage the endpoints of their teams, operators manage all. Only leads see secrets.

    The services write the audit events.
    """

    empty_text = "A webhook tells your server when a response in the background has ended."
    add_label = "Add a webhook"

    managers = MANAGERS
    form = EndpointForm
    list_display = ["name", "address", "team", "state", "success", "first_events", "created"]
    list_filter = [("team", RelatedFilter)]
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
    public_id = id_column()
    address = column("URL", lambda endpoint: copyable(endpoint.url))
    # Without deliveries, no rate is shown, because zero percent would look like a failure.
    success = column(
        "Success rate (24 h)",
        lambda row: f"{100 * row.delivered // row.attempted} % of {row.attempted}" if row.attempted else "–",
    )
    first_events = column("Events", lambda endpoint: first_of(endpoint.event_types))
    events = column("Events", lambda endpoint: ", ".join(endpoint.event_types))
    secret_hint = column("Secret", lambda endpoint: hint(endpoint.secret))
    deliveries = column(
        "Deliveries",
        lambda endpoint: link(
            changelist_url("responses_webhookdelivery", endpoint=endpoint.pk, period="30d"), "View deliveries"
        ),
    )
    created = time_column("Created", "created_at", ordering="created_at")
    updated = time_column("Updated", "updated_at")

    @override
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Event ids begin with a time stamp, and the unique index of endpoint and event id serves this range.
        since = f"evt_{int((now() - timedelta(hours=_HOURS)).timestamp() * 1000):012x}"
        recent = WebhookDelivery.objects.filter(endpoint=OuterRef("pk"), event_id__gte=since)
        conditions = {"delivered": Q(state=DeliveryState.DELIVERED), "attempted": Q(attempts__gt=0)}
        counts = {
            name: Coalesce(
                Subquery(
                    recent.filter(condition)
                    .order_by()
                    .values("endpoint")
                    .annotate(number=Count("pk"))
                    .values("number"),
                    output_field=IntegerField(),
                ),
                0,
            )
            for name, condition in conditions.items()
        }
        rows: QuerySet[Any] = super().get_queryset(request).annotate(**counts)
        return rows

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> list[tuple[Any, Any]]:
        is_writable = self.has_change_permission(request, obj)
        writable = ["name", "url", "event_types"] if is_writable else ["name", "address", "events"]
        fields: list[Any] = [("public_id", "state"), ("team", "secret_hint"), *writable]
        return [(None, {"fields": fields}), ("History", {"fields": [("created", "updated"), "deliveries"]})]

    # -- permissions ---------------------------------------------------------------------------------------------------

    @override
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(self.managers, obj)

    @override
    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return viewer_of(request).may(LEADS)

    # -- create, change, delete ----------------------------------------------------------------------------------------

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Render the form, or create the endpoint and show its secret."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = CreateEndpointForm(request.POST or None, teams=viewer_of(request).teams(LEADS))
        if request.method == "POST" and form.is_valid():
            values = {name: form.cleaned_data[name] for name in _STORED}
            try:
                endpoint = services.create_endpoint(
                    team_id=form.cleaned_data["team"].pk, actor=viewer_of(request).actor, **values
                )
            except ApiError as refused:
                form.add_error(None, refused.message)
            else:
                return self._show_secret(request, endpoint, "Copy the signing secret")
        return self.render(
            request,
            CONFIRM,
            "Create webhook endpoint",
            form=form,
            button="Create endpoint",
            icon="webhook",
            variant="primary",
            back=changelist_url("responses_webhookendpoint"),
        )

    @override
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:
        # `obj` already has the new values. The service compares them with the stored values for the audit event.
        stored = WebhookEndpoint.objects.get(pk=obj.pk)
        values = {name: form.cleaned_data[name] for name in _STORED}
        services.update_endpoint(endpoint=stored, actor=viewer_of(request).actor, **values)

    @override
    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        services.delete_endpoint(endpoint=obj, actor=viewer_of(request).actor)

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        # Django would require a delete permission for each delivery, but the deliveries belong to the endpoint.
        names = [f"{endpoint} with its deliveries" for endpoint in objs]
        return names, {"webhook endpoints": len(names)}, set(), []

    # -- actions -------------------------------------------------------------------------------------------------------

    @RowAction(
        title="Send test",
        icon="send",
        permits=lambda viewer, endpoint: viewer.may(MANAGERS, endpoint),
        question="Send a test event",
        button="Send",
        description=lambda endpoint: (
            f"Sends a signed sample event to {endpoint.url}. The object in the event does not exist."
        ),
        form=TestEventForm,
        path="test",
    )
    def send_test(self, request: HttpRequest, endpoint: WebhookEndpoint, form: TestEventForm) -> None:
        """Send a test event."""
        event_type = form.cleaned_data["event_type"]
        try:
            outcome = async_to_sync(services.send_test)(endpoint=endpoint, event_type=event_type)
        except ApiError as failed:
            messages.error(request, f"Test failed. {failed.message}")
            return
        # Only a test that reached the endpoint is audited.
        services.audit_test(endpoint=endpoint, actor=viewer_of(request).actor, event_type=event_type, result=outcome)
        result = f"The endpoint responded with status {outcome.status} in {outcome.milliseconds} ms."
        (messages.success if outcome.succeeded else messages.warning)(request, result)

    @RowAction(
        title="Rotate secret",
        icon="autorenew",
        # The permission to manage endpoints is not enough: the next page shows the secret, which operators may not see.
        permits=lambda viewer, endpoint: viewer.may(LEADS, endpoint),
        question="Rotate the signing secret?",
        form=RotateSecretForm,
    )
    def rotate(self, request: HttpRequest, endpoint: WebhookEndpoint, form: RotateSecretForm) -> HttpResponse:
        """Rotate the secret and show the new one."""
        keep_old = form.cleaned_data["keep_old"]
        changed = services.rotate_secret(endpoint=endpoint, actor=viewer_of(request).actor, keep_old=keep_old)
        return self._show_secret(request, changed, "Copy the new signing secret")

    @RowAction(
        title="Enable or disable",
        icon="power_settings_new",
        permits=lambda viewer, endpoint: viewer.may(MANAGERS, endpoint),
        question=lambda endpoint: f"{_switch_verb(endpoint)} this endpoint?",
        button=_switch_verb,
        description=lambda endpoint: (
            "No more events are sent. Pending deliveries are kept until 72 hours after their event."
            if endpoint.enabled
            else "New events and pending deliveries are sent again."
        ),
        variant=ActionVariant.DANGER,
    )
    def switch(self, request: HttpRequest, endpoint: WebhookEndpoint) -> None:
        """Enable or disable the endpoint."""
        verb = _switch_verb(endpoint).lower()
        services.set_enabled(endpoint=endpoint, actor=viewer_of(request).actor, enabled=not endpoint.enabled)
        messages.success(request, f"Endpoint {endpoint} {verb}d.")

    def _show_secret(self, request: HttpRequest, endpoint: WebhookEndpoint, title: str) -> HttpResponse:
        return self.render(
            request, _SECRET_PAGE, title, endpoint=endpoint, secret=endpoint.secret, url=self.page_of(endpoint)
        )

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Status")
    def state(self, endpoint: WebhookEndpoint) -> SafeString:
        if not endpoint.enabled:
            since = f"since {endpoint.disabled_at:%Y-%m-%d %H:%M} UTC"
            return two_lines(badge("disabled", "danger", since), endpoint.get_disabled_reason_display())
        if endpoint.failing_since is not None:
            return badge("failing", "warning", f"since {endpoint.failing_since:%Y-%m-%d %H:%M} UTC")
        return badge("enabled", "success")


# -- deliveries --------------------------------------------------------------------------------------------------------


@register(WebhookDelivery)
class DeliveryAdmin(LogAdmin, TeamScoped):
    """Read-only list of deliveries; a delivery is one event for one endpoint."""

    empty_text = "Deliveries appear here once an event is sent to a webhook."

    list_display = ["time", "event", "receiver", "about", "state_badge", "attempts", "answer", "next_attempt"]
    list_prefetch = ("team", "endpoint")
    list_filter = [
        ("created_at", TimeFilter),
        ("state", ChoicesFilter),
        ("team", RelatedFilter),
        exact("endpoint", "endpoint ID"),
        exact("event_type", "event"),
    ]
    search_fields = ["event_id"]
    search_help_text = "Exact ID of the event (evt_…) or of the object it is about"
    actions_detail = ["resend"]
    fieldsets = [
        (None, {"fields": [("time", "state_badge"), ("event", "about"), ("receiver", "next_attempt"), "answer"]}),
        ("Body", {"fields": ["sent_body"]}),
        ("Attempts", {"fields": ["attempt_table"]}),
    ]

    @override
    def search_condition(self, request: HttpRequest, term: str) -> Q:
        return Q(event_id=term) | Q(object_id=term)

    @RowAction(
        title="Resend",
        icon="replay",
        permits=lambda viewer, delivery: viewer.may(MANAGERS, delivery),
        question="Resend this event?",
        description=lambda delivery: (
            f"{delivery.endpoint.name} receives the event again with the same ID, so it can detect the duplicate."
        ),
    )
    def resend(self, request: HttpRequest, delivery: WebhookDelivery) -> None:
        """Schedule an immediate attempt."""
        if not delivery.endpoint.enabled:
            messages.error(request, "The endpoint is disabled. Enable it first.")
        elif services.resend(delivery=delivery, actor=viewer_of(request).actor):
            messages.success(request, "The event is being resent.")
        else:
            messages.info(request, "An attempt is already in progress.")

    # -- columns -------------------------------------------------------------------------------------------------------

    time = time_column("Time", "created_at")
    event = column("Event", lambda delivery: two_lines(delivery.event_type, copyable(delivery.event_id)))

    @display(description="Endpoint")
    def receiver(self, delivery: WebhookDelivery) -> SafeString:
        url = reverse("admin:responses_webhookendpoint_change", args=[delivery.endpoint_id])
        return two_lines(copyable(delivery.endpoint.name, href=url), delivery.team.name)

    @display(description="Object")
    def about(self, delivery: WebhookDelivery) -> SafeString:
        is_response = delivery.object_id.startswith("resp_")
        return copyable(delivery.object_id, href=cells.url(delivery.object_id) if is_response else None)

    @display(description="Status")
    def state_badge(self, delivery: WebhookDelivery) -> SafeString:
        if delivery.state == DeliveryState.PENDING and not delivery.endpoint.enabled:
            # The delivery worker skips disabled endpoints. The delivery stays pending until the endpoint is enabled or
            # the delivery expires.
            return badge("on hold", "warning", "endpoint is disabled")
        return tone(DELIVERY_TONES, delivery.state)

    @display(description="Last response")
    def answer(self, delivery: WebhookDelivery) -> SafeString | str:
        if not delivery.attempts:
            return "–"
        texts = delivery.last_error or delivery.last_body
        status = f"{delivery.last_status or 'no response'} after {duration(delivery.last_ms)}"
        return two_lines(status, texts[:_SNIPPET])

    next_attempt = column(
        "Next attempt",
        lambda delivery: f"{delivery.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC" if delivery.next_attempt_at else "–",
    )

    # As every attempt sends it; it names the object and has no content.
    sent_body = column("Body", lambda delivery: json_block(payload(delivery).decode()))
    attempt_table = column("Attempts", lambda delivery: attempt_table(delivery.history))
