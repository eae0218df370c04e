"""The documentation site below /docs/guide/: pages, links, anchors, search, Markdown copies, headers."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx2
import pytest
from typing_extensions import override

from guide.build import build
from guide.sources import ROOT
from tests.browser.chromium import chromium
from tests.support.waiting import HANGS_AFTER, PATIENCE
from tests.support.web import WebProcess

SITE = "http://site/docs/guide/"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. MkDocs fails for a page outside the navigation, a broken link and an unknown anchor."""
    return build(tmp_path_factory.mktemp("guide"))


@pytest.fixture(scope="session")
def built_web(web: WebProcess) -> WebProcess:
    """The web process after its first request for the site, which waits until the site is built."""
    httpx2.get(f"{web.url}/docs/guide/", timeout=HANGS_AFTER).raise_for_status()
    return web


class Document(HTMLParser):
    """The ids, links and loaded resources of a page, and whether it contains inline scripts or styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.inline: list[str] = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag in {"img", "script", "link"}:
            self.loaded |= {given[name] for name in ("src", "href") if name in given}
        elif "href" in given:
            self.links.add(given["href"])
        if (tag == "script" and "src" not in given) or tag == "style" or "style" in given:
            self.inline.append(self.get_starttag_text() or tag)


@pytest.fixture(scope="session")
def documents(site: Path) -> dict[str, Document]:
    """All pages by their path in the site."""
    return {str(path.relative_to(site)): Document(path.read_text()) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_file_and_every_anchor_to_an_id(
    site: Path, documents: dict[str, Document]
) -> None:
    broken = []
    for page, document in documents.items():
        for link in document.links | document.loaded:
            url, anchor = urldefrag(urljoin(SITE + page, link))
            if not url.startswith(SITE):
                assert urlsplit(url).scheme in {"http", "https", "mailto"}, f"{page}: {link}"
                continue
            target = url.removeprefix(SITE) or "index.html"
            if not (site / target).is_file() or (anchor and anchor not in documents[target].ids):
                broken.append(f"{page}: {link}")
    assert broken == []


def test_pages_load_no_external_resources_and_contain_no_inline_code(documents: dict[str, Document]) -> None:
    elsewhere = {(page, url) for page, one in documents.items() for url in one.loaded if urlsplit(url).netloc}
    assert elsewhere == set()
    assert {page: one.inline for page, one in documents.items() if one.inline} == {}


def test_the_markdown_of_every_page_is_next_to_it_and_its_links_lead_to_files(
    site: Path, documents: dict[str, Document]
) -> None:
    pages = {page for page in documents if page != "404.html"}
    assert {str(path.relative_to(site).with_suffix(".html")) for path in site.rglob("*.md")} == pages
    for path in site.rglob("*.md"):
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\((?![a-z]+:|#|/)([^)#]+)", prose):
            assert (path.parent / link).is_file(), f"{path.relative_to(site)}: {link}"


def test_llms_txt_lists_every_page_with_a_summary(site: Path) -> None:
    lines = (site / "llms.txt").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("> ")
    entries = [re.fullmatch(r"- \[.+\]\(/docs/guide/(.+\.md)\): .+\.", line) for line in lines if line[:1] == "-"]
    assert {entry[1] for entry in entries if entry} == {str(path.relative_to(site)) for path in site.rglob("*.md")}
    assert None not in entries


@pytest.mark.slow
def test_an_unchanged_site_is_not_rebuilt_and_builds_are_reproducible(site: Path, tmp_path: Path) -> None:
    built = site.stat().st_mtime_ns
    assert build(site.parent) == site
    assert site.stat().st_mtime_ns == built
    command = [sys.executable, "-m", "guide.build", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "platform"}, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).name == site.name


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/docs/guide/", "text/html"),
        ("/docs/guide/howto/webhooks.html", "text/html"),
        ("/docs/guide/howto/webhooks.md", "text/markdown; charset=utf-8"),
        ("/docs/guide/llms.txt", "text/plain; charset=utf-8"),
        ("/llms.txt", "text/plain; charset=utf-8"),
        ("/docs/guide/js/guide.js", "text/javascript; charset=utf-8"),
        ("/docs/guide/css/guide.css", "text/css"),
        ("/docs/guide/search/search_index.json", "application/json"),
        ("/docs/guide/img/mark.svg", "image/svg+xml"),
    ],
)
def test_files_are_served_with_their_type_and_revalidated(built_web: WebProcess, path: str, kind: str) -> None:
    first = httpx2.get(built_web.url + path, timeout=PATIENCE)
    assert (first.status_code, first.headers["content-type"]) == (200, kind)
    assert first.headers["cache-control"] == "no-cache"
    assert "unsafe" not in first.headers["content-security-policy"]
    second = httpx2.get(built_web.url + path, headers={"If-None-Match": first.headers["etag"]}, timeout=PATIENCE)
    assert (second.status_code, second.content) == (304, b"")


def test_the_address_without_a_slash_redirects(built_web: WebProcess) -> None:
    answer = httpx2.get(f"{built_web.url}/docs/guide", timeout=PATIENCE)
    assert (answer.status_code, answer.headers["location"]) == (302, "/docs/guide/")


@pytest.mark.parametrize("path", ["missing.html", "../../manage.py", "..%2f..%2fmkdocs.yml", "concepts"])
def test_other_paths_get_the_404_page_of_the_site(built_web: WebProcess, path: str) -> None:
    answer = httpx2.get(f"{built_web.url}/docs/guide/{path}", timeout=PATIENCE)
    assert answer.status_code == 404
    if not path.startswith("../"):
        assert "There is no such page" in answer.text


def test_only_get_and_head_are_allowed(built_web: WebProcess) -> None:
    assert httpx2.post(f"{built_web.url}/docs/guide/", timeout=PATIENCE).status_code in {403, 405}
    assert httpx2.head(f"{built_web.url}/docs/guide/").status_code == 200


# Queries, each with a section or page that must be among its first three results.
SEARCHES = {
    "fencing token": "howto/operations.html#leases-and-the-sweeper",
    "create a response": "reference/api/responses.html#create-a-response",
    "cancel response": "reference/api/responses.html#cancel-a-response",
    "vector store search": "reference/api/vector-stores.html#search-a-vector-store",
    "response.output_text.delta": "reference/api/responses.html#create-a-response",
    "client.conversations.items.create": "reference/api/conversations.html#add-items-to-a-conversation",
    "/v1/responses/{response_id}/cancel": "reference/api/responses.html#cancel-a-response",
    "POST /v1/embeddings": "reference/api/embeddings.html#create-embeddings",
    "GET /v1/me": "reference/api/me.html",
    "max_output_tokens": "reference/api/responses.html#create-a-response",
    "Idempotency-Key": "howto/repeat-requests.html",
    "upstream_unreachable": "reference/errors.html",
    "rotate_keys": "reference/commands.html#rotate_keys",
    "rotate_ke": "reference/commands.html#rotate_keys",
    # Operators of the search engine are words like all others.
    "code:rate_limit_exceeded *": "reference/errors.html",
}


ASK = """query => new Promise(resolve => {
    const answered = event => {
        searchWorker.removeEventListener("message", answered);
        resolve(event.data.results.map(result => result.location));
    };
    searchWorker.addEventListener("message", answered);
    searchWorker.postMessage({query});
})"""
"""Asks the search of a page and returns the locations that it finds."""


@pytest.mark.slow
def test_the_search_finds_guides_and_the_api_reference_without_other_hosts(built_web: WebProcess) -> None:
    with chromium() as browser:
        page = browser.new_page(base_url=built_web.url)
        problems: list[str] = []
        requested: set[str] = set()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requested.add(urlsplit(request.url).netloc))
        page.goto("/docs/guide/howto/webhooks.html?q=fencing+token")
        results = page.locator("#mkdocs-search-results h3 a")
        results.first.wait_for()
        # Asked on one page, because each page builds the index again.
        found = {query: page.evaluate(ASK, query)[:3] for query in SEARCHES}
        assert {query: links for query, links in found.items() if SEARCHES[query] not in links} == {}
        results.first.click()
        page.wait_for_url("**/docs/guide/**")
        assert page.locator("h1").count() == 1
        assert problems == []
        assert requested == {urlsplit(built_web.url).netloc}
