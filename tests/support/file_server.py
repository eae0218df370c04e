"""A web server with a few files on it, and a web process of ours that may fetch them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override


@dataclass
class FileServer:
    """What lies under which path, as content and media type; `asked` are the paths that were fetched."""

    url: str = ""
    files: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put(self, path: str, content: bytes, media_type: str) -> str:
        """Put a file there; returns its URL."""
        self.files[path] = (content, media_type)
        return self.url + path


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    """The server, on a port of its own."""
    file_server = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file_server.asked.append(self.path)
            found = file_server.files.get(self.path)
            self.send_response(200 if found else 404)
            content, media_type = found or (b"", "text/plain")
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    file_server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield file_server
    server.shutdown()
    server.server_close()
