"""Tabs of the response page, in display order, with the roles that may open them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from responses.admin.response.attempts import attempts
from responses.admin.response.events import events
from responses.admin.response.json_tabs import read_request, read_response
from responses.admin.response.related_records import audit, webhooks
from responses.admin.response.timeline import timeline
from responses.admin.response.transcript_tab import read_transcript
from responses.admin.response.usage import usage
from responses.models import Response
from tenants.admin.audit_log import AuditAdmin
from tenants.console.roles import EVERY_ROLE, Roles, may

Reader = Callable[[HttpRequest, Response], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTab:
    """A tab of the response page.

    `read` returns the context of its template. With `has_content`, opening the tab is recorded in the audit log.
    """

    name: str
    title: str
    read: Reader
    has_content: bool = False
    viewers: Roles = EVERY_ROLE

    @property
    def template(self) -> str:
        """Template of the panel."""
        return f"admin/responses/response/tabs/{self.name}.html"


# The first tab is shown if the URL names none.
TABS = (
    ResponseTab(name="transcript", title="Transcript", read=read_transcript),
    ResponseTab(name="timeline", title="Timeline", read=timeline),
    ResponseTab(name="events", title="Events", read=events, has_content=True),
    ResponseTab(name="request", title="Request", read=read_request, has_content=True),
    ResponseTab(name="response", title="Response", read=read_response, has_content=True),
    ResponseTab(name="usage", title="Usage & cost", read=usage),
    ResponseTab(name="attempts", title="Attempts", read=attempts, has_content=True),
    ResponseTab(name="webhooks", title="Webhooks", read=webhooks),
    ResponseTab(name="audit", title="Audit", read=audit, viewers=AuditAdmin.viewers),
)


def tabs_for(request: HttpRequest, response: Response) -> list[ResponseTab]:
    """Return the tabs that the user may open."""
    return [tab for tab in TABS if may(request, tab.viewers, response)]


def selected_tab(request: HttpRequest, tabs: list[ResponseTab]) -> ResponseTab:
    """Return the tab that `?tab=` names, or the first one."""
    name = request.GET.get("tab")
    return next((tab for tab in tabs if tab.name == name), tabs[0])
