"""The code interpreter: programs run in a real sandbox, and their items and events."""

from typing import Any

import pytest
from openai import OpenAI

from conversations.models import Item
from tenants import scope
from tests.support.api import Api, MakeApi, ok
from tests.support.background import ended
from tests.support.sandboxes import CODE_INTERPRETER as TOOL
from tests.support.sandboxes import Sandbox, asked, code, fault, names
from tests.support.streams import types
from tests.support.upstream import Script
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

OUTPUTS = ["code_interpreter_call.outputs"]


def ask(api: Api, script: Script, **body: Any) -> dict[str, Any]:
    return api.create(model=script.model, input="Work.", **{"tools": [TOOL], **body})


def logs(item: dict[str, Any]) -> str:
    return str(item["outputs"][0]["logs"])


def test_code_of_the_model_is_executed(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("print('hello')\n6 * 7")).say("It is 42.")
    response = ask(api, script, include=OUTPUTS)
    call, message = response["output"]
    assert (call["type"], call["status"], call["code"]) == (
        "code_interpreter_call",
        "completed",
        "print('hello')\n6 * 7",
    )
    assert call["outputs"] == [{"type": "logs", "logs": "hello\n42"}]
    assert ok(api.get(f"/containers/{call['container_id']}"))["status"] == "running"
    assert message["content"][0]["text"] == "It is 42."
    assert script.messages[1][-1]["content"] == "hello\n42"
    assert response["tools"][0]["container"]["memory_limit"] == "1g"
    assert response["usage"]["output_tokens_details"]["tool_output_tokens"] == 2


def test_outputs_are_included_on_request(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("1")).say("One.")
    response = ask(api, script)
    assert response["output"][0]["outputs"] is None
    shown = ok(api.get(f"/responses/{response['id']}?include[]={OUTPUTS[0]}"))
    assert logs(shown["output"][0]) == "1"


def test_the_stream_contains_the_events_of_a_call(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("1 + 1")).say("Two.")
    events = api.events(model=script.model, input="1+1?", tools=[TOOL], include=OUTPUTS)
    assert [kind.removeprefix("response.") for kind in types(events)][2:9] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    assert (events[2]["item"]["code"], events[4]["delta"], events[5]["code"]) == ("", "1 + 1", "1 + 1")
    assert logs(events[8]["item"]) == "2"


def test_variables_persist_between_calls_and_responses(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("x = 20")).call(code_interpreter=code("x += 1")).say("Done.")
    first = ask(api, script)
    script.call(code_interpreter=code("x * 2")).say("It is 42.")
    second = ask(api, script, previous_response_id=first["id"], include=OUTPUTS)
    assert logs(second["output"][0]) == "42"
    assert {item["container_id"] for item in (*first["output"][:2], second["output"][0])} == {
        second["output"][0]["container_id"]
    }


def test_errors_of_programs_are_returned_to_the_model(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("1 / 0")).call(code_interpreter='{"program":1}').say("It cannot be done.")
    first, second, _ = ask(api, script, include=OUTPUTS)["output"]
    assert (first["status"], second["status"]) == ("completed", "failed")
    assert "ZeroDivisionError" in logs(first)
    assert script.messages[2][-1]["content"] == "error: 'code' must be a string"


def test_input_files_are_available_and_created_files_are_cited(
    api: Api, client: OpenAI, script: Script, sandbox: Sandbox
) -> None:
    file = client.files.create(file=("numbers.txt", b"1 2 3"), purpose="user_data")
    program = "n = sum(map(int, open('numbers.txt').read().split()))\nopen('sum.txt', 'w').write(str(n))\nn"
    script.call(code_interpreter=code(program))
    script.say("See [sum.txt](sandbox:/mnt/data/sum.txt), ", "not other.txt.")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [file.id]}}
    call, message = ask(api, script, tools=[tool])["output"]
    [part] = message["content"]
    [citation] = part["annotations"]
    assert part["text"][citation["start_index"] : citation["end_index"]] == "sandbox:/mnt/data/sum.txt"
    assert (citation["type"], citation["filename"]) == ("container_file_citation", "sum.txt")
    content = client.containers.files.content.retrieve(citation["file_id"], container_id=call["container_id"])
    assert content.read() == b"6"


def test_citations_are_streamed_as_events(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("open('a.txt', 'w').close()")).say("It is in a.txt.")
    events = api.events(model=script.model, input="Go.", tools=[TOOL])
    [added] = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    assert (added["annotation"]["start_index"], added["annotation"]["end_index"]) == (9, 14)


def test_a_removed_file_is_not_cited(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("open('a.txt', 'w').close()"))
    script.call(code_interpreter=code("import os; os.remove('a.txt')")).say("There is no a.txt.")
    assert ask(api, script)["output"][-1]["content"][0]["annotations"] == []


def test_images_are_outputs_with_a_url(api: Api, script: Script, sandbox: Sandbox) -> None:
    plots = (
        "import sys, types\nmodule = types.ModuleType('matplotlib.pyplot')\n"
        "class Figure:\n    def savefig(self, path, format): open(path, 'wb').write(b'PNG')\n"
        "module.get_fignums = lambda: [1]\nmodule.figure = lambda number: Figure()\nmodule.close = lambda which: None\n"
        "sys.modules['matplotlib.pyplot'] = module"
    )
    script.call(code_interpreter=code(plots)).say("There.")
    [image] = ask(api, script, include=OUTPUTS)["output"][0]["outputs"]
    assert image["type"] == "image"
    assert api.get(image["url"].removeprefix("/v1")).content == b"PNG"


def test_code_runs_in_background_responses(api: Api, script: Script, sandbox: Sandbox, worker: WorkerProcess) -> None:
    script.call(code_interpreter=code("6 * 7")).say("It is 42.")
    queued = ask(api, script, background=True)
    done = ended(api, queued["id"])
    assert [item["type"] for item in done["output"]] == ["code_interpreter_call", "message"]
    shown = ok(api.get(f"/responses/{done['id']}?include[]={OUTPUTS[0]}"))
    assert logs(shown["output"][0]) == "42"


def test_a_program_is_stopped_when_its_response_ends(
    api: Api, script: Script, sandbox: Sandbox, worker: WorkerProcess
) -> None:
    container = ok(api.post("/containers", {"name": "work"}))["id"]
    script.call(code_interpreter=code("import subprocess\nsubprocess.run(['sleep', '50'])"))
    queued = ask(api, script, tools=[{"type": "code_interpreter", "container": container}], background=True)
    eventually(lambda: "sleep" in names(sandbox))
    ok(api.post(f"/responses/{queued['id']}/cancel", {}))
    eventually(lambda: "sleep" not in names(sandbox))
    assert asked(sandbox.client.run(container, "6 * 7", seconds=60)).value == "42"


def test_a_container_can_be_selected_by_id(api: Api, script: Script, sandbox: Sandbox) -> None:
    container = ok(api.post("/containers", {"name": "work"}))["id"]
    asked(sandbox.client.run(container, "x = 42", seconds=60))
    script.call(code_interpreter=code("x")).say("It is 42.")
    call = ask(api, script, tools=[{"type": "code_interpreter", "container": container}], include=OUTPUTS)["output"][0]
    assert (call["container_id"], logs(call)) == (container, "42")


def test_a_dead_container_is_replaced(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("1")).say("One.")
    before = ask(api, script)
    asked(sandbox.client.delete(before["output"][0]["container_id"]))
    script.call(code_interpreter=code("1")).call(code_interpreter=code("1 + 1")).say("It works again.")
    first, second, _ = ask(api, script, include=OUTPUTS, previous_response_id=before["id"])["output"]
    assert (first["status"], second["status"], logs(second)) == ("failed", "completed", "2")
    assert "its contents are lost" in logs(first)
    assert first["container_id"] != second["container_id"]


def test_tool_choice_can_force_it(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("1")).say("One.")
    ask(api, script, tool_choice={"type": "code_interpreter"})
    assert script.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "code_interpreter"}}
    assert script.bodies[1]["tool_choice"] == "auto"


@pytest.mark.parametrize(
    ("container", "status", "param"),
    [
        ("cntr_nothing", 404, "tools[0].container"),
        ({"type": "auto", "memory_limit": "64g"}, 400, "tools[0].container.memory_limit"),
        ({"type": "auto", "memory_limit": "2g"}, 400, "tools[0].container.memory_limit"),
        ({"type": "auto", "file_ids": ["file-nothing"]}, 404, "tools[0].container.file_ids[0]"),
        (
            {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.example"]}},
            400,
            "tools[0].container.network_policy",
        ),
        ({"type": "manual"}, 400, "tools[0].container.type"),
        (None, 400, "tools[0].container"),
    ],
)
def test_unsupported_options_are_rejected(
    container: Any, status: int, param: str, api: Api, script: Script, sandbox: Sandbox
) -> None:
    tools = [{"type": "code_interpreter", "container": container}]
    answer = api.post("/responses", {"model": script.model, "input": "Go.", "tools": tools})
    assert fault(answer, status)["param"] == param


def test_another_teams_container_is_not_found(api: Api, outsider: Api, script: Script, sandbox: Sandbox) -> None:
    container = ok(outsider.post("/containers", {"name": "work"}))["id"]
    tools = [{"type": "code_interpreter", "container": container}]
    answer = api.post("/responses", {"model": script.model, "input": "Go.", "tools": tools})
    assert fault(answer, 404)["message"] == f"Container with id '{container}' not found."


def test_vllm_clients_can_request_it_as_an_mcp_server_without_url(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter__python=code("6 * 7")).say("It is 42.")
    tools = [{"type": "mcp", "server_label": "code_interpreter", "server_description": "Runs Python."}]
    response = ask(api, script, tools=tools, enable_response_messages=True)
    call, _ = response["output"]
    assert (call["type"], call["server_label"], call["name"]) == ("mcp_call", "code_interpreter", "python")
    assert (call["output"], call["error"], call["status"]) == ("42", None, "completed")
    asked_for, answered = response["output_messages"][:2]
    assert asked_for["recipient"].startswith("python")
    assert answered["author"]["role"] == "tool"
    assert answered["author"]["name"].startswith("python")


def test_response_messages_show_code_as_sent_to_python(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("6 * 7")).say("It is 42.")
    sent, answered, _ = ask(api, script, enable_response_messages=True)["output_messages"]
    assert (sent["recipient"], sent["content"][0]["text"]) == ("python", "6 * 7")
    assert (answered["author"], answered["content"][0]["text"]) == ({"role": "tool", "name": "python"}, "42")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"require_approval": "always"}, "require_approval"), ({"headers": {"x-a": "b"}}, "headers")],
)
def test_other_mcp_servers_without_url_are_rejected(
    fields: dict[str, Any], param: str, api: Api, script: Script, sandbox: Sandbox
) -> None:
    tools = [{"type": "mcp", "server_label": "code_interpreter", **fields}]
    answer = api.post("/responses", {"model": script.model, "input": "Go.", "tools": tools})
    assert fault(answer, 400)["param"] == f"tools[0].{param}"


def test_a_team_without_permission_gets_403(make_api: MakeApi, script: Script, sandbox: Sandbox) -> None:
    api = make_api(tools=["web_search"])
    answer = api.post("/responses", {"model": script.model, "input": "Go.", "tools": [TOOL]})
    assert fault(answer, 403)["code"] == "tool_not_allowed"


def test_internal_citation_data_is_not_returned(api: Api, script: Script, sandbox: Sandbox) -> None:
    script.call(code_interpreter=code("open('a.txt', 'w').close()")).say("Done.")
    response = ask(api, script)
    assert "files" not in response["output"][0]
    with scope.every_team():
        [stored] = Item.objects.filter(id=response["output"][0]["id"])
    assert [file["path"] for file in stored.body["files"]] == ["/mnt/data/a.txt"]
