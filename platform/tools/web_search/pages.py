"""Web pages as text: fetched through the guarded HTTP client, extracted in a process with resource limits."""

import asyncio
import codecs
import html
import re
from dataclasses import dataclass

from conversations.files.extraction import extract_text
from core.egress import Egress, Fetched
from core.errors import ApiError

_SECONDS = 20.0
_MAX_BYTES = 5_000_000
_READABLE = ("text/*", "application/xhtml+xml", "application/xml", "application/json", "application/pdf")
_TITLE = re.compile(rb"<title[^>]*>(.{1,1000}?)</title>", re.IGNORECASE | re.DOTALL)
_CHARSET = re.compile(rb"<(?:meta|\?xml)[^>]{0,500}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
# Encodings that web pages use. Some of Python's other codecs are very slow, or no text encodings at all.
_TEXT_ENCODINGS = re.compile(
    r"utf-(8|16)|cp(125\d|866|874|932|949|950)|iso8859|koi8|mac-|gb|big5|euc_|iso2022|shift_jis"
)
# Characters of context on each side of a match.
_CONTEXT_CHARACTERS = 300
_MAX_MATCHES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page that was read."""

    url: str
    title: str
    text: str


class UnreadablePage(Exception):
    """The page cannot be loaded or has no text. The message gives the reason."""


class PageReader:
    """Reads pages for one run and keeps them, so that each page is fetched once."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._read: dict[str, WebPage] = {}

    async def page(self, url: str) -> WebPage:
        """Return the page at a URL. Raises UnreadablePage."""
        if url not in self._read:
            try:
                fetched = await self._egress.get(url, max_bytes=_MAX_BYTES, timeout=_SECONDS, accept=_READABLE)
                self._read[url] = await _page(fetched)
            except ApiError as error:
                raise UnreadablePage(str(error)) from error
        return self._read[url]


async def _page(fetched: Fetched) -> WebPage:
    content = await asyncio.to_thread(to_utf8, fetched.content, charset=fetched.charset)
    text = await extract_text(content, content_type=fetched.content_type, waits=True)
    found = _TITLE.search(content[:100_000])
    title = " ".join(html.unescape(found[1].decode(errors="replace")).split())[:300] if found else ""
    return WebPage(url=fetched.url, title=title or fetched.url, text=text)


def to_utf8(content: bytes, *, charset: str) -> bytes:
    """Convert a page to UTF-8, from the encoding that its server or the page itself declares.

    As in browsers, the precedence is: byte order mark, HTTP header, declaration in the page. Content without a known
    encoding is returned unchanged.
    """
    if b"%PDF-" in content[:1024]:
        return content
    marked = next((name for bom, name in _MARKS if content.startswith(bom)), "")
    declared = _CHARSET.search(content[:2048])
    named = marked or charset or (declared[1].decode("ascii") if declared else "")
    # Browsers treat Latin-1 as Windows-1252, its superset, and pages rely on that.
    name = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252"}.get(named.lower(), named.lower())
    try:
        known = _TEXT_ENCODINGS.match(codecs.lookup(name).name) if name else None
        return content.decode(name, errors="replace").encode() if known else content
    except (LookupError, UnicodeError):
        return content


_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def find_matches(text: str, pattern: str) -> list[str]:
    """Return the passages of a page that contain the pattern, ignoring case, each with some context."""
    # A regular expression, not `str.lower`: lower-casing may change the length, and then positions no longer match.
    expression = re.compile(r"\s+".join(map(re.escape, pattern.split())), re.IGNORECASE)
    found, position = list[str](), 0
    while len(found) < _MAX_MATCHES and (match := expression.search(text, position)):
        position = match.end() + _CONTEXT_CHARACTERS
        found.append(text[max(0, match.start() - _CONTEXT_CHARACTERS) : position].strip())
    return found
