"""Browser sessions of users: roles, pages, and the errors of the console."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response

from tenants import scope
from tenants.models import Membership, Role, StaffMember, StaffRole, Team
from tests.support.waiting import PATIENCE

WIDTHS = (380, 1280, 2560)
ROLES = ("administrator", *(role.value for role in Role), *(role.value for role in StaffRole))
PASSWORD = "correct horse battery"
_REPORT = """document.addEventListener('securitypolicyviolation', (event) => console.error(
  `Violation of ${event.effectiveDirective}: ${event.blockedURI} in ${event.sourceFile}:${event.lineNumber}`))"""


def person(role: str, team: Team | None = None) -> User:
    """Create a user with this role; a team role applies to `team`."""
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
    """A browser page; `complaints` are the errors and warnings of its console."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    # Answers of the server; a test clears them before it opens a page whose requests it counts.
    answers: list[Response] = field(default_factory=list)

    def open(self, path: str) -> int:
        """Open a page, wait until it has loaded, and return its status."""
        answer = self.page.goto(self.url + path, wait_until="load")
        return answer.status if answer else 0

    def wide(self, width: int, height: int = 900) -> None:
        """Set the width of the window."""
        self.page.set_viewport_size({"width": width, "height": height})
        # The page is notified of it later.
        self.page.wait_for_function("width => innerWidth === width", arg=width)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        root = "document.documentElement"
        return int(self.page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))

    def record(self, answer: Response) -> None:
        """Record an answer of the server."""
        self.answers.append(answer)

    def bytes_of_code(self) -> int:
        """Return the size of the page and its scripts as they were sent. Scripts in the cache count, too."""
        code = [answer for answer in self.answers if answer.request.resource_type in {"document", "script"}]
        return sum(int(answer.headers.get("content-length", 0)) for answer in code)

    def listen(self, message: ConsoleMessage) -> None:
        """Record errors and warnings."""
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{self.page.url}: {message.text}")


@contextmanager
def visiting(browser: Browser, url: str, user: User | None = None, **options: Any) -> Iterator[Visit]:
    """Open a page in a new browser context, signed in as `user` if given."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], **options)
    context.set_default_timeout(PATIENCE * 1000)
    if user is not None:
        sign_in(context, url, user)
    context.add_init_script(_REPORT)
    visit = Visit(page=context.new_page(), url=url)
    visit.page.on("console", visit.listen)
    visit.page.on("response", visit.record)
    visit.page.on("pageerror", lambda error: visit.complaints.append(f"{visit.page.url}: {error}"))
    yield visit
    context.close()


def sign_in(context: BrowserContext, url: str, user: User) -> None:
    """Add a session of this user to the browser."""
    client = Client()
    client.force_login(user)
    context.add_cookies([{"name": name, "value": cookie.value, "url": url} for name, cookie in client.cookies.items()])
