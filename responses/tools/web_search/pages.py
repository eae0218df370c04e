"""Pages of the web as text: fetched through the guarded client, and read in a process with limits."""

import asyncio
import codecs
import html
import re
from dataclasses import dataclass

from conversations.files.extraction import extract_text
from kernel.egress import Egress, Fetched
from kernel.errors import ApiError

_SECONDS = 20.0
_MAX_BYTES = 5_000_000
_READABLE = ("text/*", "application/xhtml+xml", "application/xml", "application/json", "application/pdf")
_TITLE = re.compile(rb"<title[^>]*>(.{1,1000}?)</title>", re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,500}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
# What pages are written in; some other codecs take very long, or do something else.
_WRITTEN = re.compile(r"utf-(8|16)|cp(125\d|866|874|932|949|950)|iso8859|koi8|mac-|gb|big5|euc_|iso2022|shift_jis")
_AROUND = 300
_MOST_PLACES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page that was read."""

    url: str
    title: str
    text: str


class UnreadablePage(Exception):
    """The page cannot be had, or has no words; the message says why."""


class PageReader:
    """Reads pages for one run, each of them once."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._read: dict[str, WebPage] = {}

    async def page(self, url: str) -> WebPage:
        """The page at a URL. Raises `UnreadablePage`."""
        if url not in self._read:
            self._read[url] = await self._fetch(url)
        return self._read[url]

    async def _fetch(self, url: str) -> WebPage:
        try:
            got = await self._egress.get(url, max_bytes=_MAX_BYTES, timeout=_SECONDS, accept=_READABLE)
            return await asyncio.to_thread(_page, got)
        except ApiError as error:
            raise UnreadablePage(str(error)) from error


def _page(got: Fetched) -> WebPage:
    content = to_utf8(got.content, charset=got.charset)
    text = extract_text(content, content_type=got.content_type)
    return WebPage(url=got.url, title=_title(content) or got.url, text=text)


def to_utf8(content: bytes, *, charset: str) -> bytes:
    """A page in UTF-8, if its server or the page itself says what it is in, as browsers take it; else as it came."""
    if b"%PDF-" in content[:1024]:
        return content
    marked = next((name for bom, name in _MARKS if content.startswith(bom)), "")
    said = _CHARSET.search(content[:2048])
    named = marked or charset or (said[1].decode("ascii") if said else "")
    # Pages that say Latin-1 are in the larger set of Windows.
    name = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252"}.get(named.lower(), named.lower())
    try:
        known = _WRITTEN.match(codecs.lookup(name).name) if name else None
        return content.decode(name, errors="replace").encode() if known else content
    except (LookupError, UnicodeError):
        return content


_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def _title(content: bytes) -> str:
    found = _TITLE.search(content[:100_000])
    return " ".join(html.unescape(found[1].decode(errors="replace")).split())[:300] if found else ""


def places(text: str, pattern: str) -> list[str]:
    """Where a page has the pattern, in upper or lower case, with some words around each place."""
    # An expression finds the place in the text as it is: whoever folds it first may get another length.
    wanted = re.compile(r"\s+".join(map(re.escape, pattern.split())), re.IGNORECASE)
    found, after = list[str](), 0
    while len(found) < _MOST_PLACES and (place := wanted.search(text, after)):
        after = place.end() + _AROUND
        found.append(text[max(0, place.start() - _AROUND) : after].strip())
    return found
