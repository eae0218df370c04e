"""The page of the system, and the parts of it that it asks for again while somebody looks."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from kernel.clock import now
from responses.admin.system import configuration, health, metrics
from tenants.console.roles import STAFF
from tenants.console.site import page, render


@page("system/", name="system", viewers=STAFF)
def system(request: HttpRequest) -> HttpResponse:
    """Versions and configuration, which stay, around what changes."""
    context = {
        "versions": metrics.versions(),
        "migrations": metrics.migrations(),
        "groups": configuration.groups(),
    }
    return render(request, "console/system/page.html", title="System", **context, **_changing())


@page("system/now/", name="system_now", viewers=STAFF)
def system_now(request: HttpRequest) -> HttpResponse:
    """Processes, queues and stores as they are now."""
    return TemplateResponse(request, "console/system/now.html", _changing())


@page("system/health/", name="system_health", viewers=STAFF)
def system_health(request: HttpRequest) -> HttpResponse:
    """Whether the dependencies answer."""
    return TemplateResponse(request, "console/system/health.html", {"checks": health.checks(), "at": now()})


def _changing() -> dict[str, Any]:
    return {
        "processes": metrics.processes(),
        "queues": metrics.queues(),
        "database": metrics.database(),
        "tables": metrics.tables(),
        "broker": metrics.broker(metrics.redis_info()),
        "at": now(),
    }
