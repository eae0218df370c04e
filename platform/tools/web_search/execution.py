"""The `web_search` tool: the model searches, opens pages and finds text in them.

The item of each action holds its results with the text of the pages; clients see the text with `include`. The model
cites with markers (see `engine.citation_markers`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from core.errors import ApiError
from core.ids import new_id
from engine.calls.outcomes import ToolResult, parse_object
from engine.calls.toolbox import HostedTool, hosted_function
from engine.citation_markers import HOW_TO_CITE
from engine.events.types import Body
from engine.turn import Call, FunctionTool
from tools.web_search.engines import Engine, EngineResult, Query
from tools.web_search.pages import PageReader, UnreadablePage, WebPage, find_matches
from tools.web_search.schema import WEB_SEARCH_FUNCTIONS

_SEARCH, _OPEN, _FIND = WEB_SEARCH_FUNCTIONS
_MAX_QUERIES = 4
_MAX_QUERY_LENGTH = 400
_TEXT = {"type": "string"}


@dataclass(frozen=True, slots=True)
class _ContextSize:
    """Amount of content for a value of `search_context_size`.

    `results` is the number of search results, `characters` the length of each of them and `page` the length of a page.
    """

    results: int
    characters: int
    page: int


_CONTEXT_SIZES = {
    "low": _ContextSize(5, 300, 8_000),
    "medium": _ContextSize(8, 600, 20_000),
    "high": _ContextSize(12, 1_500, 50_000),
}


class _InvalidStep(Exception):
    """The call cannot be made as requested. The message is for the model."""


class WebSearchTool(HostedTool):
    """Web search of one run. `shown` is the tool as the response shows it, `found` the URLs of earlier results."""

    names = WEB_SEARCH_FUNCTIONS

    def __init__(
        self, shown: Mapping[str, Any], *, engine: Engine, reader: PageReader, found: Iterable[str] = ()
    ) -> None:
        self.kind = shown["type"]
        self._size = _CONTEXT_SIZES[shown["search_context_size"]]
        self._location: Mapping[str, Any] = shown["user_location"] or {}
        filters = shown.get("filters") or {}
        self._domains = _domains(filters.get("allowed_domains"))
        self._blocked = _domains(filters.get("blocked_domains"))
        # None: every page may be opened.
        self._found = set(found) if shown.get("indexed_web_access") else None
        self._engine = engine
        self._reader = reader

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        only = f" Only pages of these domains are available: {', '.join(self._domains)}." if self._domains else ""
        queries = {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": _MAX_QUERIES}
        names = ("city", "region", "country", "timezone")
        place = ", ".join(self._location[name] for name in names if self._location.get(name))
        where = f" The user's approximate location: {place}." if place else ""
        return (
            hosted_function(_SEARCH, f"Searches the web.{where}{only} {HOW_TO_CITE}", queries=queries),
            hosted_function(_OPEN, f"Opens a web page and returns its text.{only}", url=_TEXT),
            hosted_function(
                _FIND,
                "Finds a pattern in a web page and returns the text around each match.",
                url=_TEXT,
                pattern=_TEXT,
            ),
        )

    @override
    def may_repeat(self, name: str) -> bool:
        return True

    @override
    def price_key(self, name: str) -> str | None:
        # Only searches cost money. Opening a page and searching in it do not use the search engine.
        return "web_search" if name == _SEARCH else None

    @override
    def open_item(self, call: Call) -> Body:
        return {"id": new_id("ws"), "type": "web_search_call", "status": "in_progress", "action": _action(call)}

    @override
    async def call(self, call: Call) -> ToolResult:
        arguments = parse_object(call.arguments) or {}
        steps = {_SEARCH: self._search, _OPEN: self._open, _FIND: self._find}
        try:
            results = await steps[call.name](arguments, call.effect_id)
        except (_InvalidStep, UnreadablePage) as error:
            return ToolResult(
                output=f"error: {error}", error="failed", fields={"results": [_result("", "", str(error))]}
            )
        output = "\n".join(page["url"] for page in results)
        return ToolResult(output=output, fields={"results": results}, cost=self.price_key(call.name))

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        results = result.fields.get("results", [_result("", "", result.output)])
        item = {**body, "status": "failed" if result.error else "completed", "results": results}
        if call.name == _SEARCH and not result.error:
            item["action"] = {**body["action"], "sources": [{"type": "url", "url": page["url"]} for page in results]}
        return [item]

    # -- actions -------------------------------------------------------------------------------------------------------

    async def _search(self, arguments: Mapping[str, Any], effect_id: str) -> list[Body]:
        queries = _queries(arguments)
        if not queries:
            raise _InvalidStep("'queries' must be an array of strings")
        country, most = self._location.get("country"), self._size.results
        # Different requests need different keys.
        keys = [f"{effect_id}-{number}" for number in range(1, len(queries) + 1)] if effect_id else [""] * len(queries)
        searches = [
            self._engine.search(
                Query(
                    words=words,
                    most=most,
                    country=country,
                    domains=self._domains,
                    blocked=self._blocked,
                    idempotency_key=key,
                )
            )
            for words, key in zip(queries, keys, strict=True)
        ]
        answers = await asyncio.gather(*searches, return_exceptions=True)
        for wrong in answers:
            if isinstance(wrong, BaseException) and not isinstance(wrong, ApiError):
                raise wrong
        # One failed query does not fail the call as long as another one has results.
        lists = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not lists:
            raise _InvalidStep(f"the search failed: {answers[0]}")
        return [_result(result.url, result.title, result.text[: self._size.characters]) for result in self._best(lists)]

    def _best(self, lists: Sequence[Sequence[EngineResult]]) -> list[EngineResult]:
        # Interleaved by rank, so that every query contributes its best results. Each page appears once.
        best: dict[str, EngineResult] = {}
        for rank in range(max(map(len, lists), default=0)):
            for result in (results[rank] for results in lists if rank < len(results)):
                if self._is_allowed(result.url):
                    best.setdefault(result.url, result)
        kept = list(best.values())[: self._size.results]
        if self._found is not None:
            self._found.update(result.url for result in kept)
        return kept

    async def _open(self, arguments: Mapping[str, Any], _: str) -> list[Body]:
        page = await self._page(arguments)
        return [_result(page.url, page.title, page.text[: self._size.page])]

    async def _find(self, arguments: Mapping[str, Any], _: str) -> list[Body]:
        pattern = arguments.get("pattern")
        if not isinstance(pattern, str) or not pattern.strip():
            raise _InvalidStep("'pattern' must be a string")
        page = await self._page(arguments)
        return [_result(page.url, page.title, match) for match in find_matches(page.text, pattern.strip())]

    async def _page(self, arguments: Mapping[str, Any]) -> WebPage:
        url = arguments.get("url")
        if not isinstance(url, str) or not url:
            raise _InvalidStep("'url' must be a string")
        if not self._is_allowed(url):
            raise _InvalidStep("the domain of this page is not allowed")
        if self._found is not None and url not in self._found:
            raise _InvalidStep("only pages that a search has found can be opened")
        page = await self._reader.page(url)
        # Checked again after the request: a redirect may lead to another domain.
        if not self._is_allowed(page.url):
            raise _InvalidStep("this page redirects to a domain that is not allowed")
        return page

    def _is_allowed(self, url: str) -> bool:
        if not self._domains and not self._blocked:
            return True
        try:
            host = (urlsplit(url).hostname or "").rstrip(".")
        except ValueError:
            return False
        return not _is_in(host, self._blocked) and (not self._domains or _is_in(host, self._domains))


def _domains(names: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(name.lower().rstrip(".") for name in names or ())


def _is_in(host: str, domains: Iterable[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _action(call: Call) -> Body:
    arguments = parse_object(call.arguments) or {}
    url, pattern = (value if isinstance(value := arguments.get(n), str) else "" for n in ("url", "pattern"))
    if call.name == _OPEN:
        return {"type": "open_page", "url": url}
    if call.name == _FIND:
        return {"type": "find_in_page", "url": url, "pattern": pattern}
    queries = _queries(arguments)
    return {"type": "search", "query": queries[0] if queries else "", "queries": queries}


def _queries(arguments: Mapping[str, Any]) -> list[str]:
    given = arguments.get("queries", arguments.get("query"))
    many = given if isinstance(given, list) else [given]
    return [words.strip()[:_MAX_QUERY_LENGTH] for words in many if isinstance(words, str) and words.strip()][
        :_MAX_QUERIES
    ]


def _result(url: str, title: str, text: str) -> Body:
    return {"url": url, "title": title or None, "text": text}
