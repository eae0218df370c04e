"""Clients of the supported search engines. All of them have REST APIs with JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson

from core.egress import Egress, Fetched
from core.errors import EgressFailed

_SECONDS = 15.0
_MAX_BYTES = 2_000_000
_JSON = ("application/json", "text/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A search query.

    `most` is the maximum number of results, `country` a two-letter code. `domains` limits the search to these domains;
    empty means no limit. Results of `blocked` domains are not wanted. `idempotency_key` is sent along, if there is one.
    """

    words: str
    most: int
    country: str | None = None
    domains: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    idempotency_key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that all engines get."""
        return {"idempotency-key": self.idempotency_key} if self.idempotency_key else {}

    @property
    def text_with_sites(self) -> str:
        """Return the query with `site:` operators, for engines that have no domain parameter."""
        # At most ten domains, because engines limit the length of a query.
        sites = " OR ".join(f"site:{domain}" for domain in self.domains[:10])
        excluded = "".join(f" -site:{domain}" for domain in self.blocked[:10])
        return (f"{self.words} ({sites})" if sites else self.words) + excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """A page in the results of a search engine."""

    url: str
    title: str
    text: str


class Engine(Protocol):
    """A search engine."""

    async def search(self, query: Query) -> list[EngineResult]:
        """Return the results, best first. Raises EgressFailed if the engine fails."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    base_url: str
    key: str = field(default="", repr=False)
    egress: Egress

    async def _get(self, path: str, parameters: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        url = f"{self.base_url.rstrip('/')}{path}?{urlencode(parameters)}"
        # The operator chose this address, so it may be a private one.
        client = self.egress.trusting(self.base_url)
        return _read(await client.get(url, max_bytes=_MAX_BYTES, timeout=_SECONDS, accept=_JSON, headers=headers))

    async def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        client = self.egress.trusting(self.base_url)
        sent = {"content-type": "application/json", **headers}
        url = f"{self.base_url.rstrip('/')}{path}"
        answer = await client.post(
            url, content=orjson.dumps(body), max_bytes=_MAX_BYTES, timeout=_SECONDS, headers=sent
        )
        if answer.status >= 300:
            raise EgressFailed(f"The search engine returned status {answer.status}.")
        return _read(answer)


class SearXNG(_Rest):
    """SearXNG, hosted by the operator. Its settings must enable the `json` format."""

    async def search(self, query: Query) -> list[EngineResult]:
        answer = await self._get(
            "/search", {"q": query.text_with_sites, "format": "json", "safesearch": 1}, query.headers
        )
        return _results(answer, ("results",), text="content", most=query.most)


class Tavily(_Rest):
    """The Tavily API."""

    async def search(self, query: Query) -> list[EngineResult]:
        body: dict[str, Any] = {
            "query": query.words,
            "max_results": query.most,
            "include_domains": [*query.domains],
        }
        if query.blocked:
            body["exclude_domains"] = [*query.blocked]
        answer = await self._post("/search", body, {"authorization": f"Bearer {self.key}", **query.headers})
        return _results(answer, ("results",), text="content", most=query.most)


class Brave(_Rest):
    """The Brave Search API."""

    async def search(self, query: Query) -> list[EngineResult]:
        # Brave rejects queries of more than 400 characters and more than 20 results.
        parameters = {"q": query.text_with_sites[:400], "count": min(query.most, 20), "text_decorations": "false"}
        if query.country:
            parameters["country"] = query.country.upper()
        headers = {"x-subscription-token": self.key, **query.headers}
        answer = await self._get("/res/v1/web/search", parameters, headers)
        return _results(answer, ("web", "results"), text="description", most=query.most)


ENGINES: Mapping[str, tuple[type[SearXNG] | type[Tavily] | type[Brave], str]] = {
    "searxng": (SearXNG, ""),
    "tavily": (Tavily, "https://api.tavily.com"),
    "brave": (Brave, "https://api.search.brave.com"),
}
"""Engines by kind, each with its public base URL. SearXNG has none: the operator hosts it."""


def _read(answer: Fetched) -> Any:
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise EgressFailed("The search engine returned invalid JSON.") from error


def _results(answer: Any, path: Sequence[str], *, text: str, most: int) -> list[EngineResult]:
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    # Entries that are not results, such as answers or videos, are skipped.
    pages = [page for page in answer or () if isinstance(page, dict)] if isinstance(answer, list) else []
    return [
        EngineResult(url=page["url"], title=_stripped(page.get("title")), text=_stripped(page.get(text)))
        for page in pages
        if isinstance(page.get("url"), str) and page["url"].startswith(("http://", "https://"))
    ][:most]


def _stripped(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
