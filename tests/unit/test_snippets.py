"""A request as a shell command and a Python program: exact, with placeholders for keys."""

import inspect
import json
import subprocess
from typing import Any

import pytest
from openai.resources.responses import Responses

from responses.admin.response.documents import EXTRA, KEY, curl, python
from responses.schema import CreateResponse

BASE = "https://platform.example/v1"
BODY: dict[str, Any] = {
    "model": "m",
    "input": [{"role": "user", "content": 'It\'s "quoted", $HOME and `date`\n日本 \\ JSON\nJSON'}],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
    "temperature": 0.5,
    "seed": 7,
}


class _Client:
    """Replacement of the SDK's client that records its requests."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.asked: dict[str, Any] = {}
        self.responses, self.output_text = self, "said"

    def create(self, **asked: Any) -> Any:
        self.asked |= asked
        return [] if asked.get("stream") else self


def run(program: str) -> _Client:
    """Run the program with that client."""
    made: list[_Client] = []

    def client(**options: Any) -> _Client:
        made.append(_Client(**options))
        return made[-1]

    lines = [line for line in program.splitlines() if not line.startswith(("from openai", "import os"))]
    names = {"OpenAI": client, "os": type("os", (), {"environ": {KEY: "sk-x"}})}
    exec("\n".join(lines), names)
    return made[0]


def test_the_shell_command_sends_the_same_body() -> None:
    command = curl(BODY, base=BASE).replace(f"curl {BASE}/responses", "send", 1)
    script = 'send() { printf "%s\\n" "$2" >&2; cat; }\n' + command
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=True, env={KEY: "sk-x"})
    assert json.loads(done.stdout) == BODY
    assert done.stderr.decode().strip() == "Authorization: Bearer sk-x"


def test_the_python_program_sends_the_same_request() -> None:
    client = run(python(BODY, base=BASE))
    assert client.options == {"base_url": BASE, "api_key": "sk-x"}
    assert client.asked.pop("extra_body") == {"seed": 7}
    assert client.asked == {name: value for name, value in BODY.items() if name != "seed"}


def test_a_streaming_request_reads_a_stream() -> None:
    body = {**BODY, "stream": True}
    assert curl(body, base=BASE).startswith("curl -N ")
    assert run(python(body, base=BASE)).asked["stream"] is True


def test_omitted_credentials_of_servers_are_mentioned() -> None:
    body = {**BODY, "tools": [{"type": "mcp", "server_label": "box", "server_url": "https://box.example"}]}
    for text in (curl(body, base=BASE), python(body, base=BASE)):
        assert "# MCP servers (box): the path, headers and authorization are not stored" in text


@pytest.mark.parametrize("name", sorted(CreateResponse.model_fields))
def test_parameters_unknown_to_the_sdk_go_into_extra_body(name: str) -> None:
    known = inspect.signature(Responses.create).parameters
    assert (name in known) is not (name in EXTRA)
