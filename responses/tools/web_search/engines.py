"""The search engines: what each is asked, and what its answer says. All of them speak REST and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson

from kernel.egress import Egress, Fetched
from kernel.errors import EgressFailed

_SECONDS = 15.0
_MAX_BYTES = 2_000_000
_JSON = ("application/json", "text/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to look for. `most` results; `country` in two letters; `domains`: nowhere else, where there are any."""

    words: str
    most: int
    country: str | None = None
    domains: tuple[str, ...] = ()

    @property
    def text_with_sites(self) -> str:
        """The words, for engines that know domains only as words."""
        sites = " OR ".join(f"site:{domain}" for domain in self.domains[:10])
        return f"{self.words} ({sites})" if sites else self.words


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """A page that an engine names."""

    url: str
    title: str
    text: str


class Engine(Protocol):
    """A search engine."""

    async def search(self, query: Query) -> list[EngineResult]:
        """The pages, the best first. Raises `EgressFailed` when the engine cannot say."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """An engine at an address that an operator has chosen."""

    base_url: str
    key: str = field(default="", repr=False)
    egress: Egress

    async def _get(self, path: str, parameters: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        url = f"{self.base_url.rstrip('/')}{path}?{urlencode(parameters)}"
        way = self.egress.trusting(self.base_url)
        return _read(await way.get(url, max_bytes=_MAX_BYTES, timeout=_SECONDS, accept=_JSON, headers=headers))

    async def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        way = self.egress.trusting(self.base_url)
        sent = {"content-type": "application/json", **headers}
        url = f"{self.base_url.rstrip('/')}{path}"
        answer = await way.post(url, content=orjson.dumps(body), max_bytes=_MAX_BYTES, timeout=_SECONDS, headers=sent)
        if answer.status >= 300:
            raise EgressFailed(f"The search engine answered with {answer.status}.")
        return _read(answer)


class SearXNG(_Rest):
    """A SearXNG of the operator's own, whose settings allow the format `json`."""

    async def search(self, query: Query) -> list[EngineResult]:
        """Ask `/search`."""
        answer = await self._get("/search", {"q": query.text_with_sites, "format": "json", "safesearch": 1}, {})
        return _results(answer, ("results",), text="content", most=query.most)


class Tavily(_Rest):
    """Tavily's API."""

    async def search(self, query: Query) -> list[EngineResult]:
        """Ask `/search`."""
        body = {"query": query.words, "max_results": query.most, "include_domains": [*query.domains]}
        answer = await self._post("/search", body, {"authorization": f"Bearer {self.key}"})
        return _results(answer, ("results",), text="content", most=query.most)


class Brave(_Rest):
    """Brave's API."""

    async def search(self, query: Query) -> list[EngineResult]:
        """Ask `/res/v1/web/search`."""
        parameters = {"q": query.text_with_sites[:400], "count": min(query.most, 20), "text_decorations": "false"}
        if query.country:
            parameters["country"] = query.country.upper()
        headers = {"x-subscription-token": self.key}
        answer = await self._get("/res/v1/web/search", parameters, headers)
        return _results(answer, ("web", "results"), text="description", most=query.most)


ENGINES: Mapping[str, tuple[type[SearXNG] | type[Tavily] | type[Brave], str]] = {
    "searxng": (SearXNG, ""),
    "tavily": (Tavily, "https://api.tavily.com"),
    "brave": (Brave, "https://api.search.brave.com"),
}
"""By kind: the engine, and where it is unless an operator says otherwise."""


def _read(answer: Fetched) -> Any:
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise EgressFailed("The search engine sent something that is no JSON.") from error


def _results(answer: Any, path: Sequence[str], *, text: str, most: int) -> list[EngineResult]:
    """The results in an engine's answer; what is no result is left out."""
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    pages = [page for page in answer or () if isinstance(page, dict)] if isinstance(answer, list) else []
    return [
        EngineResult(url=page["url"], title=_stripped(page.get("title")), text=_stripped(page.get(text)))
        for page in pages
        if isinstance(page.get("url"), str) and page["url"].startswith(("http://", "https://"))
    ][:most]


def _stripped(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
