"""Warm-up: the first requests of a process import nothing, and the process is not ready before."""

import re

import httpx2
import pytest

from tests.support.api import Api, Caller
from tests.support.background import ended
from tests.support.mcp_requests import tool
from tests.support.mcp_servers import McpServer
from tests.support.upstream import Script, ScriptedUpstream
from tests.support.web import running_web
from tests.support.workers import MakeWorker

pytestmark = pytest.mark.slow
WARM = {"WARM_UP": "1", "PYTHONPROFILEIMPORTTIME": "1", "EGRESS_ALLOW": "127.0.0.1"}


def imported(output: str) -> list[str]:
    """Return the modules that a process has imported, from its output."""
    return re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", output, re.MULTILINE)


@pytest.mark.parametrize("server", ["daphne", "uvicorn"])
def test_the_first_requests_of_a_web_process_import_nothing(
    server: str, upstream: ScriptedUpstream, script: Script, served: McpServer, caller: Caller, http: httpx2.Client
) -> None:
    with running_web(server=server, **WARM) as process:
        api, ready_at = Api(http, url=process.url, caller=caller), process.written
        assert "mcp.client.client" in imported(process.output())
        script.say("Hello").say("Hello")
        with api.stream(model=script.model, input="Hi") as live:
            live.rest()
        with api.stream(model=script.model, input="Hi", tools=[tool(served)]) as live:
            live.rest()
        assert imported(process.output(since=ready_at)) == []


@pytest.mark.nightly
def test_the_first_run_of_a_worker_imports_no_client(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    process = make_worker(**WARM)
    ready_at = process.written
    script.say("Hello")
    made = reaching.create(model=script.model, input="Hi", background=True, tools=[tool(served)])
    assert ended(reaching, made["id"])["status"] == "completed"
    assert [name for name in imported(process.output(since=ready_at)) if name.split(".")[0] in {"mcp", "openai"}] == []
    assert "mcp.client.client" in imported(process.output())
