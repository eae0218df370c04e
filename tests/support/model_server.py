"""A scripted model server on this machine: Ollama's API, and the lists of models of other servers."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

ANSWER = "Hello from the scripted model."


@dataclass(kw_only=True)
class ModelServer:
    """The server. ``pages`` are the JSON documents of its paths; `paths` records the requests.

    The document of a POST request about a model has the path and the model's name as its key, separated by a space.
    Requests without a model are refused by `endpoints`, and unknown to other paths.
    """

    port: int
    pages: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    endpoints: Sequence[str] = ("/v1/chat/completions",)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def models(*names: str, owner: str) -> dict[str, Any]:
    """Return a list of models as servers give it."""
    data = [{"id": name, "object": "model", "created": 1_760_000_000, "owned_by": owner} for name in names]
    # Ollama without models says null.
    return {"object": "list", "data": data or None}


def ollama(*names: str, owner: str = "library") -> dict[str, Any]:
    """Return the pages of Ollama with these models."""
    return {"/api/version": {"version": "0.13.1"}, "/v1/models": models(*names, owner=owner)}


@contextmanager
def model_server(pages: dict[str, Any], *, port: int = 0, key: str = "") -> Iterator[ModelServer]:
    """Run a server with these pages, which answers every chat completion with the same sentence.

    With a ``key``, it refuses chat completions without it.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.paths.append(self.path)
            page = state.pages.get(self.path)
            self._send(200 if page is not None else 404, page if page is not None else {"error": "not found"})

        def do_POST(self) -> None:
            state.paths.append(self.path)
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "model" not in asked:
                is_known = self.path in state.endpoints
                self._send(400 if is_known else 404, {"error": {"message": "you must provide a model parameter"}})
                return
            page = state.pages.get(f"{self.path} {asked['model']}")
            if page is not None:
                self._send(200, page)
                return
            known = [each["id"] for each in state.pages["/v1/models"]["data"] or ()]
            if key and self.headers["Authorization"] != f"Bearer {key}":
                self._send(401, {"error": {"message": "Invalid API Key", "type": "authentication_error"}})
            elif self.path != "/v1/chat/completions" or asked["model"] not in known:
                self._send(404, {"error": {"message": f"model {asked.get('model')} not found", "type": "not_found"}})
            elif asked.get("stream"):
                self._stream([{"role": "assistant", "content": ANSWER}], model=asked["model"])
            else:
                message = {"role": "assistant", "content": ANSWER}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self._send(200, self._completion(asked["model"], "chat.completion", choice))

        def _completion(self, model: str, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
            usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
            envelope: dict[str, Any] = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": model}
            return {**envelope, "choices": [choice], "usage": usage}

        def _stream(self, deltas: Sequence[dict[str, Any]], *, model: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
            choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
            for choice in choices:
                chunk = self._completion(model, "chat.completion.chunk", choice)
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def _send(self, status: int, page: Any) -> None:
            body = page if isinstance(page, bytes) else json.dumps(page).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        state = ModelServer(port=server.server_address[1], pages=pages)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
