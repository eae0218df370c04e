"""Discovery of the model servers that run on this machine, on their usual ports and by their answers.

Uses the standard library only.
"""

import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from itertools import chain, count
from threading import Thread
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit

from launcher.address import LOCAL_HOSTS, LOOPBACK
from launcher.errors import RefusedStart

PORTS_VARIABLE = "MODEL_SERVER_PORTS"
USUAL_PORTS = {"ollama": 11434, "lm-studio": 1234, "vllm": 8000, "llama-cpp": 8080, "sglang": 30000}
TITLES = {"ollama": "Ollama", "lm-studio": "LM Studio", "vllm": "vLLM", "llama-cpp": "llama.cpp", "sglang": "SGLang"}
# Kinds of servers by the field `owned_by` in their list of models.
OWNERS = {
    "library": "ollama",
    "organization_owner": "lm-studio",
    "vllm": "vllm",
    "llamacpp": "llama-cpp",
    "sglang": "sglang",
}
OTHER = "local"
# Capabilities as the guide recommends them for models of these servers.
CAPABILITIES: dict[str, dict[str, Any]] = {
    "ollama": {"forced_tool_choice": False, "logprobs": False},
    "llama-cpp": {"forced_tool_choice": False},
    "vllm": {"structured_output": "native", "extra_sampling": True, "token_counting": "tokenize"},
}
# A server on this machine answers at once, even while it loads a model. The second limit is for all servers together.
ANSWER_SECONDS, ALL_SECONDS = 1.0, 3.0
MAX_ANSWER_BYTES = 1024 * 1024
MAX_MODELS, MAX_NAME, SHOWN_MODELS = 200, 200, 3


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    """A model server on the loopback interface. ``kind`` is a key of TITLES, or OTHER.

    ``context_window`` applies to all its models; it is None if it is unknown or if the models differ.
    """

    kind: str
    port: int
    models: tuple[str, ...]
    context_window: int | None = None

    @property
    def base_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/v1"

    @property
    def title(self) -> str:
        return TITLES.get(self.kind, "A model server")

    @property
    def capabilities(self) -> dict[str, Any]:
        known = CAPABILITIES.get(self.kind, {})
        return {"context_window": self.context_window, **known} if self.context_window else known


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A discovered model server. ``routed`` contains the models of it that the platform already serves.

    ``upstream`` is the name of the upstream that has its address, or the name that a new one would get.
    """

    title: str
    upstream: str
    base_url: str
    models: tuple[str, ...]
    is_connected: bool
    routed: tuple[str, ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, made: Mapping[str, Any]) -> Self:
        """Parse an offer from a JSON object. Raises KeyError or TypeError if it is invalid."""
        return cls(**{**made, "models": tuple(made["models"]), "routed": tuple(made["routed"])})

    @property
    def can_connect(self) -> bool:
        return bool(self.models) and not self.is_connected

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of `manage.py` that connect the server."""
        names = ",".join(self.models)
        required = ("add_upstream", "--name", self.upstream, "--base-url", self.base_url, "--models", names)
        return (*required, "--capabilities", json.dumps(self.capabilities)) if self.capabilities else required

    @property
    def command(self) -> str:
        return shlex.join(["python3", "manage.py", *self.arguments])

    def describe(self) -> str:
        """Return a sentence about the server and how to connect it."""
        place = f"{self.title} at {self.base_url}"
        if not self.models:
            return f"{place} has no models yet"
        if self.is_connected:
            return f"{place} is the upstream {self.upstream}: {listed(self.routed or self.models)}"
        return f"{place} serves {listed(self.models)}; `up --connect` connects it, and so does: {self.command}"


def listed(models: Collection[str]) -> str:
    """Return the names of the first models, and the number of the remaining ones, as text."""
    shown = ", ".join(list(models)[:SHOWN_MODELS])
    return f"{shown} and {len(models) - SHOWN_MODELS} more" if len(models) > SHOWN_MODELS else shown


def chat_model(models: Iterable[str]) -> str | None:
    """Return the first model that is probably not for embeddings only."""
    return next((name for name in models if "embed" not in name.lower()), None)


def ports(environment: Mapping[str, str]) -> list[int]:
    """Return the ports to probe: MODEL_SERVER_PORTS, or else the usual ones; no ports if the variable is `none`.

    Raises RefusedStart if a port is invalid.
    """
    text = environment.get(PORTS_VARIABLE, "").strip()
    if not text:
        return list(USUAL_PORTS.values())
    if text == "none":
        return []
    chosen = []
    for entry in text.split(","):
        # A name helps readers only: servers are recognized by their answers.
        port = entry.rpartition("=")[2].strip()
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise RefusedStart(f"{PORTS_VARIABLE} must look like ollama=11434,vllm=8000, or be none; not {text!r}.")
        chosen.append(int(port))
    return chosen


class Search:
    """Probe of all ports at the same time, in threads, while the caller continues."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._found: dict[int, ModelServer] = {}
        self._ports = list(dict.fromkeys(ports))
        self._deadline = monotonic() + ALL_SECONDS
        # An answer that never ends must not keep the process alive.
        self._threads = [Thread(target=self._ask, args=(port,), daemon=True) for port in self._ports]
        for thread in self._threads:
            thread.start()

    def _ask(self, port: int) -> None:
        if server := recognize(port):
            self._found[port] = server

    def result(self) -> list[ModelServer]:
        """Return the servers that have answered in time, in the order of the ports."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline - monotonic()))
        found = dict(self._found)
        return [found[port] for port in self._ports if port in found]


def recognize(port: int) -> ModelServer | None:
    """Return the model server on a port of the loopback interface, or None if no model server answers there."""
    listing = _get(port, "/v1/models")
    if listing is None or listing.get("object") != "list":
        return None
    # Ollama without models returns null here.
    entries = listing.get("data") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    models = tuple(name for entry in entries if _is_usable(name := entry.get("id")))[:MAX_MODELS]
    kinds = [OWNERS[owner] for entry in entries if isinstance(owner := entry.get("owned_by"), str) and owner in OWNERS]
    window = _context_window(entries)
    if kinds and kinds[0] != "ollama":
        return ModelServer(kind=kinds[0], port=port, models=models, context_window=window)
    # In Ollama, models of a user are owned by that user.
    version = _get(port, "/api/version")
    if version is not None and isinstance(version.get("version"), str):
        return ModelServer(kind="ollama", port=port, models=models)
    return ModelServer(kind=OTHER, port=port, models=models, context_window=window) if models else None


def _context_window(entries: Collection[Mapping[str, Any]]) -> int | None:
    # vLLM and SGLang use `max_model_len`, llama.cpp uses `n_ctx`.
    metas = [meta if isinstance(meta := entry.get("meta"), dict) else {} for entry in entries]
    windows = [entry.get("max_model_len") or meta.get("n_ctx") for entry, meta in zip(entries, metas, strict=True)]
    first = windows[0] if windows else None
    is_one = isinstance(first, int) and first > 0 and all(window == first for window in windows)
    return first if is_one else None


def _is_usable(name: object) -> bool:
    # The name is shown in a terminal, and is part of a list that is separated by commas.
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME
        and name.isprintable()
        and name == name.strip()
        and "," not in name
        and name != "*"
    )


def _get(port: int, path: str) -> dict[str, Any] | None:
    """Return the JSON object at a path, or None."""
    try:
        with closing(HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS)) as connection:
            connection.request("GET", path, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                return None
            parsed = json.loads(answer.read(MAX_ANSWER_BYTES))
    # The parser raises RecursionError for a deeply nested document.
    except (OSError, HTTPException, ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


@dataclass(frozen=True, kw_only=True)
class KnownUpstream:
    """An upstream in the database, and the models that are routed to it."""

    name: str
    base_url: str
    models: tuple[str, ...]


def offers(servers: Iterable[ModelServer], *, known: Collection[KnownUpstream]) -> list[Offer]:
    """Return an offer for each discovered server, compared with the existing upstreams."""
    made = []
    for server in servers:
        existing = [upstream for upstream in known if _place(upstream.base_url) == _place(server.base_url)]
        routed = {model for upstream in existing for model in upstream.models}
        made.append(
            Offer(
                title=server.title,
                upstream=existing[0].name
                if existing
                else _free_name(server, taken={upstream.name for upstream in known}),
                base_url=server.base_url,
                models=server.models,
                capabilities=server.capabilities,
                is_connected=bool(existing),
                routed=tuple(model for model in server.models if model in routed or "*" in routed),
            )
        )
    return made


def _free_name(server: ModelServer, *, taken: Collection[str]) -> str:
    # An upstream of the same name with another address belongs to an operator, and must not be changed.
    name = f"{OTHER}-{server.port}" if server.kind == OTHER else server.kind
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(free for free in names if free not in taken)


def _place(url: str) -> tuple[str | None, int | None, str]:
    parts = urlsplit(url)
    host = LOOPBACK if parts.hostname in {*LOCAL_HOSTS, "::1"} else parts.hostname
    try:
        port = parts.port
    except ValueError:
        port = None
    return host, port, parts.path.rstrip("/")
