"""A search engine with the API of SearXNG and the pages that it finds, over a real socket."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from typing_extensions import override

from tenants import scope
from tenants.models import SearchEngine, Team

_LONGEST_WAIT = 30
PAGE = """<!doctype html><html><head><title>All about &amp; around cats</title><style>p {}</style></head>
<body><h1>Cats</h1><p>Cats purr at 25 hertz.</p><script>evil()</script><p>Nobody knows why.</p></body></html>"""


@dataclass
class SearchServer:
    """A search engine that records its requests.

    `queries` and `pages` are the recorded searches and fetched pages; `results` replaces the results. `more` has
    further pages by path with their types, `redirects` redirects by path. Searches wait until `opened` is set; with
    `slow_query`, only searches for it wait.
    """

    url: str = ""
    queries: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    posted: list[Any] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    results: list[dict[str, Any]] | None = None
    status: int = 200
    more: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    slow_query: str = ""
    opened: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.opened.set()

    @property
    def page(self) -> str:
        """URL of its page about cats."""
        return f"{self.url}/cats"

    def found(self) -> list[dict[str, Any]]:
        """Return the results of a search."""
        if self.results is not None:
            return self.results
        snippet = "They purr."
        return [
            {"url": self.page, "title": "All about cats", "content": snippet, "description": snippet},
            {"url": f"{self.url}/dogs", "title": "Dogs", "content": "They bark.", "description": "They bark."},
            {"title": "no address"},
        ]


class _Handler(BaseHTTPRequestHandler):
    served: SearchServer

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path in {"/search", "/res/v1/web/search"}:
            self._answer_search({name: values[0] for name, values in parse_qs(address.query).items()})
            return
        self.served.pages.append(self.path)
        if address.path == "/cats":
            self._answer(200, PAGE.encode(), "text/html; charset=utf-8")
        elif address.path == "/away":
            self._redirect("http://169.254.169.254/latest/meta-data")
        elif address.path in self.served.redirects:
            self._redirect(self.served.redirects[address.path])
        elif address.path in self.served.more:
            self._answer(200, *self.served.more[address.path])
        else:
            self._answer(404, b"nothing here", "text/plain")

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("location", location)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        self.served.posted.append(body)
        self._answer_search({"q": body["query"]})

    def _answer_search(self, asked: dict[str, str]) -> None:
        self.served.queries.append(asked)
        self.served.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.served.slow_query in {"", asked["q"]}:
            self.served.opened.wait(_LONGEST_WAIT)
        found = self.served.found()
        body = {"results": found, "web": {"results": found}}
        self._answer(self.served.status, orjson.dumps(body), "application/json")

    def _answer(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def search_server() -> Iterator[SearchServer]:
    """Run a search engine on a free port."""
    served = SearchServer()
    handler = type("Handler", (_Handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def engine(team: Team, served: SearchServer, **fields: Any) -> SearchEngine:
    """Configure a search engine for a team."""
    with scope.every_team():
        made = SearchEngine.objects.create(name=uuid.uuid4().hex, **{"base_url": served.url, **fields})
        made.teams.add(team)
    return made
