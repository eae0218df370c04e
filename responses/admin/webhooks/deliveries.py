# mypy: allow-subclassing-any
"""Webhook deliveries: list, attempts with their results, manual redelivery."""

from typing import Any

from django.contrib import messages
from django.contrib.admin import display, register
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter, MultipleChoicesDropdownFilter
from unfold.decorators import action

from console.widgets import LogAdmin, TimeFilter, badge, copyable, duration, exact, tone, two_lines, when
from responses.admin import cells
from responses.admin.webhooks.endpoints import FORM_PAGE, MANAGERS, audit_actor
from responses.webhooks import services
from responses.webhooks.models import DeliveryState, WebhookDelivery
from tenants.console.roles import TeamScoped, may

_TONES = {
    DeliveryState.PENDING.value: "info",
    DeliveryState.DELIVERED.value: "success",
    DeliveryState.FAILED.value: "danger",
}
# Characters of the last response that the list shows.
_SNIPPET = 80


@register(WebhookDelivery)
class DeliveryAdmin(LogAdmin, TeamScoped):
    """Read-only list of deliveries; a delivery is one event for one endpoint."""

    list_display = ["time", "event", "receiver", "about", "state_badge", "attempts", "answer", "next_attempt"]
    list_display_links = ["time"]
    list_prefetch = ("team", "endpoint")
    list_filter = [
        ("created_at", TimeFilter),
        ("state", MultipleChoicesDropdownFilter),
        ("team", AutocompleteSelectFilter),
        exact("endpoint", "endpoint ID"),
        exact("event_type", "event"),
    ]
    search_fields = ["event_id"]
    search_help_text = "Exact ID of the event (evt_…) or of the object it is about"
    ordering = ["-created_at", "-id"]
    sortable_by = ()
    actions_detail = ["resend"]
    readonly_fields = [
        "time", "event", "receiver", "about", "state_badge", "next_attempt", "answer", "attempt_table",
    ]  # fmt: skip
    fieldsets = [
        (None, {"fields": [("time", "state_badge"), ("event", "about"), ("receiver", "next_attempt"), "answer"]}),
        ("Attempts", {"fields": ["attempt_table"]}),
    ]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        found = queryset.filter(Q(event_id=term) | Q(object_id=term)) if term else queryset
        return found, False

    # Unfold calls this without an id for the list, and with the id of the page for a detail action.
    def has_resend_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Return whether the user may manage the endpoint of the delivery, or any endpoint without an id."""
        if object_id is None:
            return may(request, MANAGERS)
        delivery = self.get_object(request, unquote(str(object_id)))
        return delivery is not None and may(request, MANAGERS, delivery)

    @action(  # type: ignore[untyped-decorator]  # Unfold has no types
        description="Resend", url_path="resend", icon="replay", permissions=["resend"]
    )
    def resend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the confirmation page, or schedule an immediate attempt on POST."""
        delivery: WebhookDelivery | None = self.get_object(request, unquote(object_id))
        if delivery is None or not may(request, MANAGERS, delivery):
            raise PermissionDenied
        back = reverse("admin:responses_webhookdelivery_change", args=[delivery.pk])
        if request.method == "POST":
            self._resend(request, delivery)
            return HttpResponseRedirect(back)
        description = (
            f"{delivery.endpoint.name} receives the event again with the same ID, so it can detect the duplicate."
        )
        texts = {"button": "Resend", "icon": "replay", "variant": "primary", "description": description, "back": back}
        page = {**self.admin_site.each_context(request), "opts": self.opts, "title": "Resend this event?"}
        return TemplateResponse(request, FORM_PAGE, {**page, **texts, "original": delivery, "media": self.media})

    def _resend(self, request: HttpRequest, delivery: WebhookDelivery) -> None:
        if not delivery.endpoint.enabled:
            messages.error(request, "The endpoint is disabled. Enable it first.")
        elif services.resend(delivery=delivery, actor=audit_actor(request)):
            messages.success(request, "The event is being resent.")
        else:
            messages.info(request, "An attempt is already in progress.")

    # -- columns -------------------------------------------------------------------------------------------------------

    @display(description="Time")
    def time(self, delivery: WebhookDelivery) -> Any:
        return when(delivery.created_at)

    @display(description="Event")
    def event(self, delivery: WebhookDelivery) -> SafeString:
        return two_lines(delivery.event_type, copyable(delivery.event_id))

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
            # The delivery worker skips disabled endpoints; the delivery stays pending until it is enabled or expires.
            return badge("on hold", "warning", "endpoint is disabled")
        return tone(_TONES, delivery.state)

    @display(description="Last response")
    def answer(self, delivery: WebhookDelivery) -> SafeString | str:
        if not delivery.attempts:
            return "–"
        texts = delivery.last_error or delivery.last_body
        status = f"{delivery.last_status or 'no response'} after {duration(delivery.last_ms)}"
        return two_lines(status, texts[:_SNIPPET])

    @display(description="Next attempt")
    def next_attempt(self, delivery: WebhookDelivery) -> Any:
        return f"{delivery.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC" if delivery.next_attempt_at else "–"

    @display(description="Attempts")
    def attempt_table(self, delivery: WebhookDelivery) -> SafeString:
        # The history is stored oldest first.
        attempts = list(reversed(delivery.history))
        return render_to_string("admin/responses/webhookendpoint/attempts.html", {"attempts": attempts})
