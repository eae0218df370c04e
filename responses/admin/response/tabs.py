"""The tabs of the page of a response, in their order: what each tells, and to whom."""

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
class Tab:
    """A tab: `read` gives its template what it shows. `has_content`: the page notes who reads it."""

    name: str
    title: str
    read: Reader
    has_content: bool = False
    viewers: Roles = EVERY_ROLE

    @property
    def template(self) -> str:
        """Where its panel is written."""
        return f"admin/responses/response/tabs/{self.name}.html"


TABS = (
    Tab(name="transcript", title="Transcript", read=read_transcript),
    Tab(name="timeline", title="Timeline", read=timeline),
    Tab(name="events", title="Events", read=events, has_content=True),
    Tab(name="request", title="Request", read=read_request, has_content=True),
    Tab(name="response", title="Response", read=read_response, has_content=True),
    Tab(name="usage", title="Usage & cost", read=usage),
    Tab(name="attempts", title="Attempts", read=attempts, has_content=True),
    Tab(name="webhooks", title="Webhooks", read=webhooks),
    Tab(name="audit", title="Audit", read=audit, viewers=AuditAdmin.viewers),
)


def tabs_for(request: HttpRequest, response: Response) -> list[Tab]:
    """Those that the user may open."""
    return [tab for tab in TABS if may(request, tab.viewers, response)]


def chosen(request: HttpRequest, tabs: list[Tab]) -> Tab:
    """The tab that the address names; the first where it names none."""
    wanted = request.GET.get("tab")
    return next((tab for tab in tabs if tab.name == wanted), tabs[0])
