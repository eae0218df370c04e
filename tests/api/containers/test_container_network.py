"""Network policies of containers: what programs can reach, what they cannot, and what the operator has to allow."""

from typing import Any

import orjson
import pytest

from containers.models import Container
from tenants import scope
from tests.api.tools.test_hosted_shell import ask, commands
from tests.support.api import Api, ok
from tests.support.file_server import FileServer
from tests.support.sandboxes import Sandbox, fault
from tests.support.upstream import Script

FETCH = """
import http.client, os, urllib.parse
def fetch(host, port):
    proxy = urllib.parse.urlsplit(os.environ['HTTPS_PROXY'])
    connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=20)
    connection.set_tunnel(host, port)
    try:
        connection.request('GET', '/words.txt')
        return connection.getresponse().read().decode()
    except OSError as error:
        return str(error)
"""


def policy(*domains: str) -> dict[str, Any]:
    return {"type": "allowlist", "allowed_domains": list(domains)}


def shell(policy: dict[str, Any]) -> dict[str, Any]:
    return {"type": "shell", "environment": {"type": "container_auto", "network_policy": policy}}


def run(api: Api, script: Script, code: str, tool: dict[str, Any]) -> str:
    """Return what a program prints in a container."""
    script.call(shell=commands(f"python3 - <<'END'\n{FETCH}\nprint({code})\nEND")).say("Done.")
    output = ask(api, script, tools=[tool])[1]["output"][0]
    return str(output["stdout"] + output["stderr"])


@pytest.fixture
def port(file_server: FileServer) -> int:
    """The port of a server on this machine with a file `words.txt`."""
    file_server.put("/words.txt", b"some words", "text/plain")
    return int(file_server.url.rpartition(":")[2])


@pytest.mark.slow
def test_an_allowed_domain_can_be_reached(reaching: Api, script: Script, sandbox: Sandbox, port: int) -> None:
    assert run(reaching, script, f"fetch('localhost', {port})", shell(policy("LOCALHOST"))) == "some words\n"
    description = script.bodies[0]["tools"][0]["function"]["description"]
    assert "Only these hosts can be reached, over https: localhost." in description


def test_python_uses_the_proxy_as_well(reaching: Api, script: Script, sandbox: Sandbox, port: int) -> None:
    container = {"type": "auto", "network_policy": policy("localhost")}
    script.call(code_interpreter=_code(f"{FETCH}\nfetch('localhost', {port})")).say("Done.")
    response = reaching.create(
        model=script.model,
        input="Work.",
        tools=[{"type": "code_interpreter", "container": container}],
        include=["code_interpreter_call.outputs"],
    )
    assert response["tools"][0]["container"]["network_policy"] == policy("localhost")
    assert "some words" in response["output"][0]["outputs"][0]["logs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("fetch('127.0.0.1', {port})", "403 Forbidden"),
        ("fetch('other.example', 443)", "403 Forbidden"),
        ("fetch('localhost.', {port})", "403 Forbidden"),
        ("fetch('[::1]', {port})", "405 Method Not Allowed"),
        ("fetch('example.invalid', 443)", "403 Forbidden"),
        ("fetch('localhost', 99999)", "403 Forbidden"),
        ("fetch('localhost', 1)", "502 Bad Gateway"),
        ("__import__('urllib.request').request.urlopen('http://localhost2.example/').read()", "405"),
        ("__import__('socket').create_connection(('127.0.0.1', {port}), 3)", "refused"),
        ("__import__('socket').create_connection(('1.1.1.1', 443), 3)", "unreachable"),
    ],
)
def test_other_domains_are_refused(
    reaching: Api, script: Script, sandbox: Sandbox, port: int, code: str, answer: str
) -> None:
    allowed = policy("localhost", "example.invalid")
    assert answer in run(reaching, script, code.format(port=port), shell(allowed))


@pytest.mark.slow
def test_a_named_container_keeps_its_policy(reaching: Api, script: Script, sandbox: Sandbox, port: int) -> None:
    created = ok(reaching.post("/containers", {"name": "work", "network_policy": policy("localhost")}))
    assert created["network_policy"] == policy("localhost")
    assert ok(reaching.get(f"/containers/{created['id']}"))["network_policy"] == policy("localhost")
    named = {"type": "shell", "environment": {"type": "container_reference", "container_id": created["id"]}}
    assert run(reaching, script, f"fetch('localhost', {port})", named) == "some words\n"


@pytest.mark.slow
def test_a_domain_that_the_operator_has_withdrawn_cannot_be_reached(
    reaching: Api, script: Script, sandbox: Sandbox, port: int
) -> None:
    created = ok(reaching.post("/containers", {"name": "work", "network_policy": policy("localhost")}))
    with scope.every_team():
        Container.objects.filter(pk=created["id"]).update(allowed_domains=["localhost", "127.0.0.1"])
    named = {"type": "shell", "environment": {"type": "container_reference", "container_id": created["id"]}}
    assert "403 Forbidden" in run(reaching, script, f"fetch('127.0.0.1', {port})", named)


def test_a_container_without_a_policy_has_no_proxy(reaching: Api, script: Script, sandbox: Sandbox, port: int) -> None:
    code = "'HTTPS_PROXY' in os.environ, __import__('socket').socket().connect_ex(('127.0.0.1', 3128))"
    assert run(reaching, script, code, shell({"type": "disabled"})) == "False 111\n"


@pytest.mark.slow
def test_tools_with_different_policies_use_different_containers(
    reaching: Api, script: Script, sandbox: Sandbox, port: int
) -> None:
    code = {"type": "code_interpreter", "container": {"type": "auto"}}
    script.call(shell=commands("echo 1"), code_interpreter=_code("import os; 'HTTPS_PROXY' in os.environ")).say("Done.")
    items = ask(reaching, script, tools=[shell(policy("localhost")), code])
    [ran] = [item for item in items if item["type"] == "code_interpreter_call"]
    [commanded] = [item for item in items if item["type"] == "shell_call"]
    assert ran["container_id"] != commanded["environment"]["container_id"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (policy("other.example"), "network_policy.allowed_domains[0]"),
        (policy("localhost", "https://localhost"), "network_policy.allowed_domains[1]"),
        (policy("localhost:443"), "network_policy.allowed_domains[0]"),
        (policy(), "network_policy.allowed_domains"),
        ({"type": "allowlist"}, "network_policy.allowed_domains"),
        ({"type": "open"}, "network_policy.type"),
        (
            {**policy("localhost"), "domain_secrets": [{"domain": "localhost", "name": "KEY", "value": "x"}]},
            "network_policy.domain_secrets",
        ),
    ],
)
def test_an_unusable_policy_is_refused_by_name(
    reaching: Api, script: Script, sandbox: Sandbox, given: dict[str, Any], param: str
) -> None:
    assert fault(reaching.post("/containers", {"name": "work", "network_policy": given}), 400)["param"] == param
    answer = reaching.post("/responses", {"model": script.model, "input": "Go.", "tools": [shell(given)]})
    assert fault(answer, 400)["param"] == f"tools[0].environment.{param}"


def test_a_policy_is_refused_unless_the_operator_allows_domains(api: Api, script: Script, sandbox: Sandbox) -> None:
    refused = fault(api.post("/containers", {"name": "work", "network_policy": policy("example.com")}), 400)
    assert (refused["param"], refused["code"]) == ("network_policy", "unsupported_parameter")


def _code(text: str) -> str:
    return orjson.dumps({"code": text}).decode()
