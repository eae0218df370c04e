"""Model servers on this machine are found and recognized by their answers."""

import json
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from launcher.address import any_free_port
from launcher.errors import RefusedStart
from launcher.local_models import model_servers
from launcher.local_models.model_servers import ALL_SECONDS, KnownUpstream, ModelServer, Search
from tests.support.machine_clock import machine_time
from tests.support.model_server import model_server, models, ollama


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def found(servers: ExitStack, pages: dict[str, Any]) -> ModelServer | None:
    return model_servers.recognize(servers.enter_context(model_server(pages)).port)


@pytest.mark.parametrize(
    ("pages", "kind", "title"),
    [
        (ollama("qwen3:8b"), "ollama", "Ollama"),
        (ollama("ada/tuned", owner="ada"), "ollama", "Ollama"),
        ({"/v1/models": models("qwen3", owner="organization_owner")}, "lm-studio", "LM Studio"),
        ({"/v1/models": models("Qwen/Qwen3-8B", owner="vllm")}, "vllm", "vLLM"),
        ({"/v1/models": models("qwen3.gguf", owner="llamacpp")}, "llama-cpp", "llama.cpp"),
        ({"/v1/models": models("Qwen/Qwen3-8B", owner="sglang")}, "sglang", "SGLang"),
        ({"/v1/models": models("qwen3", owner="me")}, "local", "A model server"),
    ],
    ids=["ollama", "ollama-own-model", "lm-studio", "vllm", "llama.cpp", "sglang", "unknown"],
)
def test_a_server_is_recognised_by_its_answers(
    servers: ExitStack, pages: dict[str, Any], kind: str, title: str
) -> None:
    server = found(servers, pages)
    assert server is not None
    names = tuple(model["id"] for model in pages["/v1/models"]["data"])
    assert (server.kind, server.title, server.models) == (kind, title, names)


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/v1/models": b"<html>not found</html>"},
        {"/v1/models": []},
        {"/v1/models": {"data": [{"id": "qwen3"}]}},
        {"/v1/models": {"object": "list", "data": ["qwen3"]}},
        {"/v1/models": {"object": "list", "data": {"id": "qwen3"}}},
        {"/v1/models": {"object": "list", "data": []}},
        {"/v1/models": b"[" * 200_000},
        {"/api/version": {"version": "1.0"}},
    ],
    ids=["nothing", "html", "list", "no-object", "no-objects", "no-list", "empty", "nested", "version-only"],
)
def test_other_servers_are_ignored(servers: ExitStack, pages: dict[str, Any]) -> None:
    assert found(servers, pages) is None


@pytest.mark.parametrize(
    ("entries", "window"),
    [
        ([{"max_model_len": 40960}], 40960),
        ([{"meta": {"n_ctx": 8192}}], 8192),
        ([{"max_model_len": 4096}, {"max_model_len": 4096}], 4096),
        ([{"max_model_len": 4096}, {"max_model_len": 8192}], None),
        ([{"max_model_len": "long"}], None),
        ([{"max_model_len": [1]}, {"meta": "none"}], None),
    ],
)
def test_the_context_window_is_taken_from_the_server(
    servers: ExitStack, entries: list[dict[str, Any]], window: int | None
) -> None:
    data = [{"id": f"model-{number}", "owned_by": "llamacpp", **entry} for number, entry in enumerate(entries)]
    server = found(servers, {"/v1/models": {"object": "list", "data": data}})
    assert server is not None
    (offer,) = model_servers.offers([server], known=[])
    assert (offer.capabilities["forced_tool_choice"], offer.capabilities.get("context_window")) == (False, window)


def test_ollama_is_found_without_models(servers: ExitStack) -> None:
    server = found(servers, ollama())
    assert server is not None
    (offer,) = model_servers.offers([server], known=[])
    assert (offer.can_connect, offer.describe()) == (False, f"Ollama at {server.base_url} has no models yet")


def test_unprintable_model_names_are_left_out(servers: ExitStack) -> None:
    server = found(servers, ollama("qwen3", "a,b", "\x1b[31mred", " space", "*", "", "x" * 201))
    assert server is not None
    assert server.models == ("qwen3",)


def test_all_ports_are_asked_at_the_same_time(servers: ExitStack) -> None:
    # They accept connections and never answer.
    silent = [servers.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
    answering = servers.enter_context(model_server(ollama("qwen3")))
    started = machine_time()
    ports = [*(listener.getsockname()[1] for listener in silent), any_free_port(), answering.port]
    assert [server.port for server in Search(ports).result()] == [answering.port]
    assert machine_time() - started < ALL_SECONDS + 1


def test_the_offered_command_is_one_line_for_the_shell() -> None:
    server = ModelServer(kind="vllm", port=8000, models=("Qwen/Qwen3-8B", "my model"))
    (offer,) = model_servers.offers([server], known=[])
    words = ["python3", "manage.py", "add_upstream", "--name", "vllm", "--base-url", "http://127.0.0.1:8000/v1"]
    words += ["--models", "Qwen/Qwen3-8B,my model", "--capabilities"]
    shown = shlex.split(offer.command)
    assert shown[:-1] == words
    assert json.loads(shown[-1])["structured_output"] == "native"
    assert offer.command in offer.describe()


@pytest.mark.parametrize("url", ["http://127.0.0.1:11434/v1", "http://localhost:11434/v1/", "http://[::1]:11434/v1"])
def test_a_server_that_is_an_upstream_already_is_not_offered(url: str) -> None:
    server = ModelServer(kind="ollama", port=11434, models=("qwen3", "llama3"))
    known = [KnownUpstream(name="mine", base_url=url, models=("qwen3",))]
    (offer,) = model_servers.offers([server], known=known)
    assert (offer.upstream, offer.is_connected, offer.can_connect, offer.routed) == ("mine", True, False, ("qwen3",))


def test_an_upstream_with_the_same_name_and_another_address_is_not_replaced() -> None:
    server = ModelServer(kind="ollama", port=11434, models=("qwen3",))
    known = [
        KnownUpstream(name=name, base_url=f"http://{name}.example/v1", models=("*",)) for name in ("ollama", "ollama-2")
    ]
    (offer,) = model_servers.offers([server], known=known)
    assert (offer.upstream, offer.can_connect) == ("ollama-3", True)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", [11434, 1234, 8000, 8080, 30000]),
        ("none", []),
        ("ollama=1,vllm=2", [1, 2]),
        ("3, mine=4", [3, 4]),
    ],
)
def test_the_ports_can_be_set(text: str, ports: list[int]) -> None:
    assert model_servers.ports({"MODEL_SERVER_PORTS": text}) == ports


@pytest.mark.parametrize("text", ["ollama", "ollama=", "0", "70000", "ollama=-1", "1,,2"])
def test_a_wrong_port_is_refused(text: str) -> None:
    with pytest.raises(RefusedStart, match=r"^MODEL_SERVER_PORTS must look like"):
        model_servers.ports({"MODEL_SERVER_PORTS": text})


@pytest.mark.parametrize(
    ("names", "chosen"), [(("nomic-embed-text", "qwen3"), "qwen3"), (("text-embedding-3",), None), ((), None)]
)
def test_embedding_models_are_not_offered_for_chat(names: tuple[str, ...], chosen: str | None) -> None:
    assert model_servers.chat_model(names) == chosen
