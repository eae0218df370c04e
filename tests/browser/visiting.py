"""People in front of a real browser: who they are, what they open, and what the browser complains of."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from tenants import scope
from tenants.models import Membership, Role, StaffMember, StaffRole, Team

WIDTHS = (380, 1280, 2560)
ROLES = ("administrator", *(role.value for role in Role), *(role.value for role in StaffRole))
PASSWORD = "correct horse battery"


def person(role: str, team: Team | None = None) -> User:
    """Somebody new in that role, in the team where it is one of a team."""
    name = f"{role.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
    user = User.objects.create(username=name, is_staff=True, is_superuser=role == "administrator")
    with scope.every_team():
        if role in Role.values and team is not None:
            Membership.objects.create(team=team, user=user, role=role)
        if role in StaffRole.values:
            StaffMember.objects.create(user=user, role=role)
    return user


@dataclass(kw_only=True)
class Visit:
    """A browser's page; `complaints` is what its console said."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> int:
        """Open a page, wait until it has everything, and give its status."""
        answer = self.page.goto(self.url + path, wait_until="load")
        return answer.status if answer else 0

    def wide(self, width: int, height: int = 900) -> None:
        """Make the window so wide."""
        self.page.set_viewport_size({"width": width, "height": height})

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def listen(self, message: ConsoleMessage) -> None:
        """Keep what a person would see in red or yellow."""
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{self.page.url}: {message.text}")


@contextmanager
def visiting(browser: Browser, url: str, user: User | None = None, **options: Any) -> Iterator[Visit]:
    """A page of its own, signed in without the form where a user is named."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
    context.set_default_timeout(15_000)
    if user is not None:
        sign_in(context, url, user)
    visit = Visit(page=context.new_page(), url=url)
    visit.page.on("console", visit.listen)
    visit.page.on("pageerror", lambda error: visit.complaints.append(f"{visit.page.url}: {error}"))
    yield visit
    context.close()


def sign_in(context: BrowserContext, url: str, user: User) -> None:
    """Give the browser the session of this user."""
    client = Client()
    client.force_login(user)
    context.add_cookies([{"name": name, "value": cookie.value, "url": url} for name, cookie in client.cookies.items()])
