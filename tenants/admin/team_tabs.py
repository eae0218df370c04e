"""Registry of the tabs of a team's page. Each tab is a function, in this app or in apps that depend on it:

    @tab("webhooks", title="Webhooks", template="admin/responses/team/webhooks.html")
    def webhooks(request: HttpRequest, team: Team) -> dict[str, Any]: ...

A tab reads a bounded number of rows and links to the list with all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from tenants.console.roles import EVERY_ROLE, Roles, may
from tenants.models import Team

Fill = Callable[[HttpRequest, Team], dict[str, Any]]
# A fixed order, as the order of registration depends on imports.
ORDER = ("overview", "members", "keys", "models", "webhooks", "usage", "audit", "settings", "danger")
SETTINGS = "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTab:
    """A tab and the roles that may see it. The tab without a template is the form of the team's settings."""

    name: str
    title: str
    template: str
    fill: Fill
    viewers: Roles


_tabs: dict[str, TeamTab] = {}


def tab(name: str, *, title: str, template: str, viewers: Roles = EVERY_ROLE) -> Callable[[Fill], Fill]:
    """Register a function that returns a tab's context. The tab is visible to these roles and to administrators."""

    def register(fill: Fill) -> Fill:
        _tabs[name] = TeamTab(name=name, title=title, template=template, fill=fill, viewers=viewers)
        return fill

    return register


def tabs_for(request: HttpRequest, team: Team) -> list[TeamTab]:
    """Return the tabs that the user may see, in display order."""
    found = [_tabs[name] for name in ORDER if name in _tabs]
    return [each for each in found if may(request, each.viewers, team)]


@tab(SETTINGS, title="Settings", template="")
def _settings(request: HttpRequest, team: Team) -> dict[str, Any]:
    return {}
