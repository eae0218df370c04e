"""Web pages as the `web_search` tool reads them: encodings, size limits and redirects."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from core.egress import Egress
from core.egress_policy import AllowList
from engine.calls.outcomes import ToolResult
from engine.turn import Call
from tests.support import documents
from tests.support.search_engine import SearchServer, search_server
from tools.web_search.engines import SearXNG
from tools.web_search.execution import WebSearchTool
from tools.web_search.pages import PageReader, UnreadablePage, find_matches


@pytest.fixture(scope="module")
def served() -> Iterator[SearchServer]:
    """A server with the pages of these tests."""
    with search_server() as running:
        yield running


async def resolve_to_localhost(_: str) -> Sequence[str]:
    """Resolve every host name to this machine."""
    return ["127.0.0.1"]


def egress() -> Egress:
    return Egress(allow=AllowList.parse(["127.0.0.0/8"]), resolve=resolve_to_localhost)


def html(words: str, head: str = "") -> str:
    return f"<!doctype html><html><head>{head}<title>{words}</title></head><body><p>{words}</p></body></html>"


@pytest.mark.parametrize(
    ("path", "encoding", "kind", "head"),
    [
        ("/header", "iso-8859-1", "text/html; charset=ISO-8859-1", ""),
        ("/windows", "cp1252", "text/html; charset=iso-8859-1", ""),
        ("/meta", "shift_jis", "text/html", "<meta charset='Shift_JIS'>"),
        ("/equiv", "koi8-r", "text/html", '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">'),
        ("/utf-16", "utf-16", "text/html", ""),
        ("/mark", "utf-8-sig", "text/html; charset=iso-8859-1", ""),
        ("/nothing", "utf-8", "text/html; charset=no-such-thing", ""),
        ("/slow", "utf-8", "text/html; charset=punycode", ""),
        ("/plain", "gb18030", "text/plain; charset=gb18030", ""),
    ],
)
async def test_pages_are_decoded_with_their_encoding(
    served: SearchServer, path: str, encoding: str, kind: str, head: str
) -> None:
    words = {"/header": "Größe", "/windows": "“Größe” €", "/meta": "日本語", "/equiv": "Привет"}.get(path, "Größe 日本")
    served.more[path] = (html(words, head).encode(encoding), kind)
    page = await PageReader(egress()).page(f"{served.url}{path}")
    assert words in page.text
    if path != "/plain":
        assert page.title == words


async def test_a_pdf_is_not_decoded(served: SearchServer) -> None:
    served.more["/document"] = (documents.pdf("Herons nest in old oaks."), "application/pdf; charset=utf-8")
    assert "Herons nest" in (await PageReader(egress()).page(f"{served.url}/document")).text


@pytest.mark.slow
async def test_pages_are_limited_to_five_megabytes(served: SearchServer) -> None:
    served.more["/large"] = (f"<html><body>{'words ' * 800_000}</body></html>".encode(), "text/html")
    served.more["/larger"] = (b"x" * 5_000_001, "text/plain")
    assert len((await PageReader(egress()).page(f"{served.url}/large")).text) > 4_700_000
    with pytest.raises(UnreadablePage, match="larger than 5000000 bytes"):
        await PageReader(egress()).page(f"{served.url}/larger")


async def test_a_redirect_loop_is_reported(served: SearchServer) -> None:
    served.redirects["/loop"] = "/loop"
    with pytest.raises(UnreadablePage, match="too many redirects"):
        await PageReader(egress()).page(f"{served.url}/loop")


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("Die Straße ist lang. ΑΘΗΝΑ.", "straße", ["Die Straße ist lang. ΑΘΗΝΑ."]),
        ("ISTANBUL İstanbul", "istanbul", ["ISTANBUL İstanbul"]),
        ("one\n  two", "one two", ["one\n  two"]),
        ("a.b acb", "a.b", ["a.b acb"]),
        ("İ" * 400 + "needle", "NEEDLE", ["İ" * 300 + "needle"]),
    ],
)
def test_matches_are_found_with_their_context(text: str, pattern: str, found: list[str]) -> None:
    assert find_matches(text, pattern) == found


async def open_page(served: SearchServer, url: str) -> ToolResult:
    """Open a page with `cats.example` as the only allowed domain, and return the result."""
    shown: dict[str, Any] = {
        "type": "web_search",
        "search_context_size": "low",
        "user_location": None,
        "filters": {"allowed_domains": ["cats.example"]},
    }
    engine = SearXNG(base_url=served.url, egress=egress())
    box = WebSearchTool(shown, engine=engine, reader=PageReader(egress()))
    return await box.call(
        Call(item_id="fc_1", call_id="call_1", name="open_page", arguments=orjson.dumps({"url": url}).decode())
    )


async def test_a_redirect_cannot_leave_the_allowed_domains(served: SearchServer) -> None:
    port = urlsplit(served.url).port
    served.redirects |= {"/out": f"http://dogs.example:{port}/cats", "/in": f"http://www.cats.example:{port}/cats"}
    out = await open_page(served, f"http://cats.example:{port}/out")
    assert (out.error, out.output) == ("failed", "error: this page redirects to a domain that is not allowed")
    inside = await open_page(served, f"http://cats.example:{port}/in")
    assert "Cats purr" in inside.fields["results"][0]["text"]


@pytest.mark.parametrize(
    "url",
    [
        "http://dogs.example:{}/cats",
        "http://cats.example@dogs.example:{}/cats",
        "http://dogs.example:{}\\@cats.example/cats",
        "http://dogs.example:{}/#.cats.example",
        "http://notcats.example:{}/cats",
    ],
)
async def test_no_spelling_of_a_url_bypasses_the_allowed_domains(served: SearchServer, url: str) -> None:
    before = len(served.pages)
    refused = await open_page(served, url.format(urlsplit(served.url).port))
    assert (refused.error, len(served.pages)) == ("failed", before)
