"""Effect ids: stored before a call is sent to its tool, sent along, and the same when the call is repeated."""

import signal
from typing import Any

import orjson
import pytest

from engine.calls.effects import effect_id
from responses.models import ToolCall
from sandbox.inside.agent import EFFECT_ID
from tenants import scope
from tenants.models import Connector
from tests.support.api import Api, Caller
from tests.support.background import ended
from tests.support.chunks import text
from tests.support.hosted_calls import images, web
from tests.support.mcp_requests import calling, of, tool
from tests.support.mcp_servers import McpServer
from tests.support.sandboxes import CODE_INTERPRETER
from tests.support.upstream import Script, stream
from tests.support.waiting import eventually
from tests.support.workers import MakeWorker

Json = dict[str, Any]


def rows(caller: Caller) -> list[ToolCall]:
    """Return the team's tool calls, oldest first."""
    with scope.team(caller.team.pk):
        return list(ToolCall.objects.order_by("id"))


def ids_of(caller: Caller) -> list[str]:
    """Return the effect ids of the team's tool calls, which the rows determine."""
    return [effect_id(row.response_id, row.turn, row.call_id) for row in rows(caller)]


def test_each_call_is_sent_with_an_effect_id_of_its_own(reaching: Api, script: Script, served: McpServer) -> None:
    script.then(calling(("box__add", '{"a":1}'), ("box__add", '{"a":1}')))
    # The same call id in two turns.
    script.then(calling(("box__add", '{"a":1}'))).say("Done.")
    reaching.create(model=script.model, input="Go.", tools=[tool(served)])
    assert sorted(served.effect_ids) == sorted(ids_of(reaching.caller))
    assert len({*served.effect_ids}) == 3


def test_an_image_is_requested_with_its_effect_id(api: Api, script: Script) -> None:
    with images(api) as kind:
        script.call(**kind.call).say("Done.")
        api.create(model=script.model, input="Draw.", tools=[kind.tool])
        (asked,) = kind.server.asked
    assert [asked.headers["idempotency-key"]] == ids_of(api.caller)


def test_each_search_is_requested_with_the_effect_id_of_its_call(reaching: Api, script: Script) -> None:
    with web(reaching) as kind:
        script.call(web_search='{"queries":["cats","dogs"]}').say("Done.")
        reaching.create(model=script.model, input="Search.", tools=[kind.tool])
        sent = [headers["idempotency-key"] for headers in kind.server.headers]
    (effect,) = ids_of(reaching.caller)
    assert sorted(sent) == [f"{effect}-1", f"{effect}-2"]


def logs(response: Json, kind: str) -> list[str]:
    """Return the output of the programs of a response."""
    if kind == "shell":
        return [entry["stdout"].strip() for item in of(response, "shell_call_output") for entry in item["output"]]
    return [output["logs"] for item in of(response, "code_interpreter_call") for output in item["outputs"]]


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("kind", ["code", "shell"])
def test_a_program_finds_the_effect_id_of_its_call_in_its_environment(api: Api, script: Script, kind: str) -> None:
    program = f"printenv {EFFECT_ID}"
    code = f"import os, subprocess; print(os.environ['{EFFECT_ID}'], subprocess.getoutput('{program}'))"
    call = {"shell": {"commands": [f"echo ${EFFECT_ID} $({program})"]}, "code_interpreter": {"code": code}}
    name = "shell" if kind == "shell" else "code_interpreter"
    arguments = orjson.dumps(call[name]).decode()
    # The second call runs in the same container.
    script.call(**{name: arguments}).call(**{name: arguments}).say("Done.")
    tool = {"type": "shell", "environment": {"type": "container_auto"}} if kind == "shell" else CODE_INTERPRETER
    include = [] if kind == "shell" else ["code_interpreter_call.outputs"]
    response = api.create(model=script.model, input="Work.", tools=[tool], include=include)
    ids = ids_of(api.caller)
    assert len({*ids}) == 2
    assert logs(response, kind) == [f"{effect} {effect}" for effect in ids]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "unstored"])
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])
def test_a_call_is_stored_before_it_is_sent(
    reaching: Api, script: Script, served: McpServer, *, stored: bool, streamed: bool
) -> None:
    script.call(box__wait="{}").say("Done.")
    body = {"model": script.model, "input": "Go.", "tools": [tool(served)], "store": stored, "stream": streamed}
    with reaching.open("/responses", body):
        served.wait_for_calls(1)
        assert [row.status for row in rows(reaching.caller)] == ["in_progress"]
        assert served.effect_ids == ids_of(reaching.caller)
        served.opened.set()
        eventually(lambda: [row.status for row in rows(reaching.caller)] == ["completed"])
        # The client stays until the next turn: a run without its client ends after the call.
        script.wait_for_call(1)


def after_a_kill(
    api: Api,
    script: Script,
    served: McpServer,
    make_worker: MakeWorker,
    *,
    repeatable: bool = False,
    is_old: bool = False,
    **changed: Any,
) -> Json:
    """Kill a worker during a call of `wait`, and return the response as another worker has ended it.

    With `is_old`, the row of the call has only what the release before effect ids stored.
    """
    if not repeatable:
        served.make_unrepeatable("wait")
    first = make_worker(LEASE_SECONDS="3")
    script.call(box__wait="{}").always(stream(*text("Done.")))
    tools = [{**tool(served), **changed}]
    response_id = api.create(model=script.model, input="Go.", tools=tools, background=True)["id"]
    served.wait_for_calls(1)
    first.stop(signal.SIGKILL)
    if is_old:
        with scope.team(api.caller.team.pk):
            ToolCall.objects.update(if_ended=None)
    served.opened.set()
    make_worker(LEASE_SECONDS="3")
    return ended(api, response_id)


@pytest.mark.slow
def test_a_call_of_a_tool_that_honours_effect_ids_is_repeated_with_the_same_id(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    served.honour_effect_ids("wait")
    response = after_a_kill(reaching, script, served, make_worker)
    assert response["status"] == "completed"
    assert served.effect_ids == ids_of(reaching.caller) * 2


@pytest.mark.slow
def test_a_connector_declares_that_its_tools_honour_effect_ids(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    name = "connector_sharepoint"
    connector = Connector.objects.create(name=name, title="Notes", url=served.url, honours_effect_ids=True)
    try:
        response = after_a_kill(reaching, script, served, make_worker, server_url=None, connector_id=name)
    finally:
        connector.delete()
    assert response["status"] == "completed"
    assert served.effect_ids == ids_of(reaching.caller) * 2


@pytest.mark.slow
def test_a_repeatable_call_that_the_former_release_made_is_repeated(
    reaching: Api, script: Script, served: McpServer, make_worker: MakeWorker
) -> None:
    response = after_a_kill(reaching, script, served, make_worker, repeatable=True, is_old=True)
    assert (response["status"], of(response, "mcp_call")[-1]["status"]) == ("completed", "completed")
    assert served.names() == ["wait", "wait"]
