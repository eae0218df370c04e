"""People who decide about calls with an unknown outcome: on the page of the console, or through the API."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import orjson

from benchmarks.books.driver import Deployment

_NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
_USER, _PASSWORD = "decider", "a-long-password-of-a-person"
_CSRF = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
_PAUSE_SECONDS = 2.0
OUTCOMES = ("done", "not_done", "repeat")


def receipt(response_id: str) -> str:
    """Return the result that a person gives for a call that was done."""
    return f"receipt of {response_id}"


@dataclass(kw_only=True)
class People:
    """Lists what waits with `manage.py approvals --json`, and settles it with choices that the seed determines.

    `settled` are the decisions that were accepted, by the way in which they were made.
    """

    deployment: Deployment
    http: aiohttp.ClientSession
    chance: Random
    settled: dict[str, list[str]] = field(default_factory=lambda: {"page": [], "api": []})
    faults: list[str] = field(default_factory=list)
    _console: aiohttp.ClientSession | None = None

    async def settle_for_ever(self) -> None:
        """Settle what waits until the task is cancelled, while processes are killed."""
        while True:
            await self.settle()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def settle(self) -> None:
        """Settle everything that waits now."""
        listed = await asyncio.to_thread(self.deployment.servers.manage, "approvals", "--json")
        for decision in orjson.loads(listed):
            if decision["kind"] != "unknown_outcome":
                self.faults.append(f"{decision['id']} is listed as {decision['kind']}")
            # The process that gets the decision may be killed: then it is listed again.
            with suppress(*_NETWORK_ERRORS):
                await self._settle(decision, self.chance.choice(OUTCOMES))

    async def _settle(self, decision: dict[str, Any], outcome: str) -> None:
        answer = {"outcome": outcome, "reason": "Checked."}
        if outcome == "done":
            answer["result"] = receipt(decision["response"])
        on_page = self.chance.random() < 0.5
        decide = self._on_page if on_page else self._through_api
        if await decide(decision, answer):
            self.settled["page" if on_page else "api"].append(decision["id"])

    async def _through_api(self, decision: dict[str, Any], answer: dict[str, str]) -> bool:
        path = f"/v1/responses/{decision['response']}/approvals/{decision['id']}"
        async with self.http.post(f"{self.deployment.urls[0]}{path}", json=answer) as got:
            if got.status == 400 and (await got.json())["error"]["code"] == "approval_already_decided":
                # A killed process had stored the decision before it could answer.
                return False
            got.raise_for_status()
            return True

    async def _on_page(self, decision: dict[str, Any], answer: dict[str, str]) -> bool:
        console = await self._signed_in()
        url = f"{self.deployment.urls[0]}/admin/approvals/{decision['id']}/"
        async with console.get(url) as page:
            page.raise_for_status()
            found = _CSRF.search(await page.text())
        if found is None:
            # It was decided in the meantime, so the page has no form.
            return False
        data = {**answer, "csrfmiddlewaretoken": found[1]}
        async with console.post(url, data=data, headers={"Referer": url}, allow_redirects=False) as got:
            if got.status != 302:
                self.faults.append(f"the page of {decision['id']} answers {got.status}")
            return got.status == 302

    async def _signed_in(self) -> aiohttp.ClientSession:
        if self._console is None:
            # Cookies of addresses without a name are only kept if this is asked for.
            console = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=self.http.timeout)
            try:
                await self._sign_in(console)
            except BaseException:
                await console.close()
                raise
            self._console = console
        return self._console

    async def _sign_in(self, console: aiohttp.ClientSession) -> None:
        url = f"{self.deployment.urls[0]}/admin/login/"
        async with console.get(url) as page:
            page.raise_for_status()
            found = _CSRF.search(await page.text())
        data = {"username": _USER, "password": _PASSWORD, "csrfmiddlewaretoken": found[1] if found else ""}
        async with console.post(url, data=data, headers={"Referer": url}, allow_redirects=False) as got:
            if got.status != 302:
                raise RuntimeError(f"Signing in answers {got.status}.")

    async def close(self) -> None:
        """Close the session of the browser."""
        if self._console is not None:
            await self._console.close()


def create_person(deployment: Deployment) -> None:
    """Create the user who decides in the console."""
    servers = deployment.servers
    environment = {"DJANGO_SUPERUSER_PASSWORD": _PASSWORD}
    servers.manage_with(environment, "createsuperuser", "--noinput", "--username", _USER, "--email", "d@example.com")


def outcomes_of(rows: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the outcomes that people chose for each response, the oldest first."""
    found: dict[str, list[str]] = {}
    for response_id, outcome in rows:
        found.setdefault(response_id, []).append(outcome)
    return found
