"""Pages to request, users, and measurement of each page."""

import http.client
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from benchmarks.console.population import RARE_ERROR, RARE_MODEL, RARE_TOOL, RARE_USER
from benchmarks.stack import statements

LIST = "/admin/responses/response/"
WARM = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Existing objects for URLs: an old response and related ids."""

    response: str
    other_response: str
    request: str
    conversation: str
    number: int
    big_team: str
    small_team: str
    busy_key: str
    idle_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Times of a page for a user: of the first request and of the later ones, with the number of queries."""

    page: str
    who: str
    first_ms: float
    warm_ms: Sequence[float]
    queries: int

    @property
    def typical(self) -> float:
        """Median of the warm requests."""
        return statistics.median(self.warm_ms)

    @property
    def fastest(self) -> float:
        """The fastest of the warm requests."""
        return min(self.warm_ms)

    @property
    def slowest(self) -> float:
        """The 95th percentile, which is the slowest of five."""
        return max(self.warm_ms)


def filters(known: Known) -> Mapping[str, Mapping[str, str]]:
    """Return each filter alone, with frequent, rare and non-existing values."""
    return {
        "no filter": {},
        "status failed": {"status__exact": "failed"},
        "status cancelled": {"status__exact": "cancelled"},
        "status completed": {"status__exact": "completed"},
        "status running (none)": {"status__exact": "in_progress"},
        "team, the largest": {"team__id__exact": known.big_team},
        "team, the smallest": {"team__id__exact": known.small_team},
        "key, busy": {"api_key__id__exact": known.busy_key},
        "key, idle": {"api_key__id__exact": known.idle_key},
        "model, frequent": {"model": "model-0"},
        "model, rare": {"model": RARE_MODEL},
        "model, unknown": {"model": "no-such-model"},
        "error, frequent": {"error_code": "server_error"},
        "error, rare": {"error_code": RARE_ERROR},
        "mode background": {"mode": "background"},
        "tool type mcp": {"tool_type": "mcp"},
        "tool type, rare": {"tool_type": "image_generation"},
        "tool, frequent": {"tool": "tool_1"},
        "tool, rare": {"tool": RARE_TOOL},
        "in a conversation": {"in_conversation": "yes"},
        "conversation id": {"conversation": known.conversation},
        "end user": {"end_user": RARE_USER},
        "metadata, frequent": {"metadata": "shop=s1"},
        "metadata, one": {"metadata": f"order={known.number}"},
        "metadata, unknown": {"metadata": "no=such"},
        "latency 10 s": {"least_ms": "10000"},
        "latency 30 min (none)": {"least_ms": "1800000"},
        "tokens in 10,000": {"least_input": "10000"},
        "tokens in 500,000 (none)": {"least_input": "500000"},
        "tokens out 1,000": {"least_output": "1000"},
        "cost 0.01": {"least_cost": "0.01"},
        "cost 10 (none)": {"least_cost": "10"},
        "request id": {"request": known.request},
    }


def pages(known: Known) -> dict[str, str]:
    """Return the paths of all pages to measure, by name."""
    narrowed = filters(known)
    return {
        **{
            f"list {period}, {name}": f"{LIST}?{urlencode({'period': period, **query})}"
            for period in ("24h", "30d")
            for name, query in narrowed.items()
        },
        **{f"histogram {period}": f"{LIST}histogram/?period={period}" for period in ("24h", "7d", "30d")},
        **{
            f"histogram 30d, {name}": f"{LIST}histogram/?{urlencode({'period': '30d', **narrowed[name]})}"
            for name in ("model, rare", "mode background", "metadata, one", "tool, frequent")
        },
        "page 100 of the list": f"{LIST}?period=30d&p=100",
        "search by id": f"{LIST}?q={known.response}",
        "search by request id": f"{LIST}?q={known.request}",
        "go to an id": f"/admin/go/{known.response}",
        "a row opened": f"{LIST}{known.response}/summary/",
        "a response": f"{LIST}{known.response}/change/",
        **{
            f"a response, {tab}": f"{LIST}{known.response}/change/?tab={tab}"
            for tab in ("timeline", "events", "request", "response", "usage", "attempts", "audit")
        },
        "compare": f"/admin/compare/?a={known.response}&b={known.other_response}",
        "compare with": f"/admin/compare/?a={known.response}",
        "first steps": "/admin/first-steps/",
        "approvals": "/admin/approvals/",
        "approvals decided": "/admin/approvals/?state=decided",
        "model routes": "/admin/routes/",
        "API keys": "/admin/tenants/apikey/",
        "models": "/admin/tenants/model/",
        "webhooks": "/admin/responses/webhookendpoint/",
        "webhook deliveries 30d": "/admin/responses/webhookdelivery/?period=30d",
        "tool calls 30d": "/admin/responses/toolcall/?period=30d",
        "conversations 30d": "/admin/conversations/conversation/?period=30d",
        "usage": "/admin/usage/",
        "budgets": "/admin/budgets/",
        "rejected requests": "/admin/rejections/",
        "home": "/admin/",
        "running jobs": "/admin/live/",
        "ledger 30d": "/admin/tenants/usagerecord/?period=30d",
        "audit log 30d": "/admin/tenants/auditevent/?period=30d",
    }


class Browser:
    """A signed-in user with one connection."""

    def __init__(self, *, port: int, cookie: str, who: str, admin: str) -> None:
        self.who = who
        self._admin = admin
        self._headers = {"Cookie": cookie}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, path: str) -> tuple[int, float]:
        """Return the status and the milliseconds to the last byte."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers=self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status, 1000 * (time.perf_counter() - began)

    def time(self, name: str, path: str) -> Timed | None:
        """Measure a page. Return None if the user cannot access it."""
        status, first = self.get(path)
        if status in {http.client.FORBIDDEN, http.client.NOT_FOUND}:
            return None
        if status not in {http.client.OK, http.client.FOUND}:
            raise RuntimeError(f"{name} was answered {status} to {self.who}")
        before, _ = statements(self._admin)
        warm = [self.get(path)[1] for _ in range(WARM)]
        queries = statements(self._admin)[0] - before
        return Timed(page=name, who=self.who, first_ms=first, warm_ms=warm, queries=round(queries / WARM))
