"""A web server with a few files."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override


@dataclass
class FileServer:
    """The server. `files` has content and media type by path; `asked` are the requested paths."""

    url: str = ""
    files: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put(self, path: str, content: bytes, media_type: str) -> str:
        """Add a file and return its URL."""
        self.files[path] = (content, media_type)
        return self.url + path


@contextmanager
def running_file_server() -> Iterator[FileServer]:
    """Run the server on a free port."""
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
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    file_server.url = f"http://127.0.0.1:{server.server_port}"
    # `shutdown` waits for the end of a poll.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield file_server
    finally:
        server.shutdown()
        server.server_close()
