"""Pages of the web as text: fetched through the guarded client, and read in a process with limits."""

import asyncio
import html
import re
from dataclasses import dataclass

from conversations.extraction import extract_text
from kernel.egress import Egress
from kernel.errors import ApiError

_SECONDS = 20.0
_MAX_BYTES = 5_000_000
_READABLE = ("text/*", "application/xhtml+xml", "application/xml", "application/json", "application/pdf")
_TITLE = re.compile(rb"<title[^>]*>(.{1,1000}?)</title>", re.IGNORECASE | re.DOTALL)
_AROUND = 300
_MOST_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page that was read."""

    url: str
    title: str
    text: str


class Unreadable(Exception):
    """The page cannot be had, or has no words; the message says why."""


class Reader:
    """Reads pages for one run, each of them once."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._read: dict[str, Page] = {}

    async def page(self, url: str) -> Page:
        """The page at a URL. Raises `Unreadable`."""
        if url not in self._read:
            self._read[url] = await self._fetch(url)
        return self._read[url]

    async def _fetch(self, url: str) -> Page:
        try:
            got = await self._egress.get(url, max_bytes=_MAX_BYTES, timeout=_SECONDS, accept=_READABLE)
            text = await asyncio.to_thread(extract_text, got.content, content_type=got.content_type)
        except ApiError as error:
            raise Unreadable(str(error)) from error
        return Page(url=got.url, title=_title(got.content) or got.url, text=text)


def _title(content: bytes) -> str:
    found = _TITLE.search(content[:100_000])
    return " ".join(html.unescape(found[1].decode(errors="replace")).split())[:300] if found else ""


def places(text: str, pattern: str) -> list[str]:
    """Where a page has the pattern, in upper or lower case, with some words around each place."""
    wanted, found, after = pattern.casefold(), [], 0
    folded = text.casefold() if len(text.casefold()) == len(text) else text.lower()
    while len(found) < _MOST_PLACES and (at := folded.find(wanted, after)) >= 0:
        after = at + len(wanted) + _AROUND
        found.append(text[max(0, at - _AROUND) : after].strip())
    return found
