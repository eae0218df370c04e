"""System page, and the parts of it that the browser refreshes."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from kernel.clock import now
from responses.admin.system import configuration, health, metrics
from tenants.console.roles import STAFF
from tenants.console.site import page, render


@page("system/", name="system", viewers=STAFF)
def system(request: HttpRequest) -> HttpResponse:
    """Render the complete page."""
    context = {
        "versions": metrics.versions(),
        "migrations": metrics.migrations(),
        "groups": configuration.groups(),
    }
    return render(request, "console/system/page.html", title="System", **context, **_current_metrics())


@page("system/now/", name="system_now", viewers=STAFF)
def system_now(request: HttpRequest) -> HttpResponse:
    """Render processes, queues and databases, refreshed every five seconds."""
    return TemplateResponse(request, "console/system/now.html", _current_metrics())


@page("system/health/", name="system_health", viewers=STAFF)
def system_health(request: HttpRequest) -> HttpResponse:
    """Render the health checks, loaded after the page because they may take seconds."""
    return TemplateResponse(request, "console/system/health.html", {"checks": health.checks(), "at": now()})


def _current_metrics() -> dict[str, Any]:
    return {
        "processes": metrics.processes(),
        "queues": metrics.queues(),
        "database": metrics.database(),
        "tables": metrics.tables(),
        "broker": metrics.broker(metrics.redis_info()),
        "at": now(),
    }
