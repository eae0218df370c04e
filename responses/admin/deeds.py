"""Items that are no messages as a page shows them: calls, what came back of them, and settings.

`_FORMS` has a line for each type of item. A type without one is shown as the JSON that it is.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel.console import Shown, duration, pretty, shown, size
from responses.admin.parts import measured, source
from responses.models import ToolCall

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A text of an item under its heading; an empty heading shows none."""

    label: str
    body: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Something done: a call, an answer to one, or a setting.

    `kind` says which, `note` belongs to the title. `took` is empty while a call has not ended.
    """

    kind: str
    icon: str
    title: str
    pieces: Sequence[Piece]
    note: str = ""
    id: str = ""
    call_id: str = ""
    status: str = ""
    took: str = ""
    in_context: bool = True


def read_deed(body: Body, row: ToolCall | None, *, in_context: bool) -> Deed:
    """The item; `row` is the tool call that it makes or answers, where that is known."""
    form = _FORMS.get(body["type"])
    deed = form(body) if form else _setting(body["type"], Piece(label="", body=pretty(body)))
    deed = replace(deed, id=body["id"], call_id=_call_id(body), status=body.get("status") or "", in_context=in_context)
    if row is None:
        return deed
    return _named(deed, row) if deed.kind == "answer" else _ended(deed, row)


def _call_id(body: Body) -> str:
    if body["type"] == "local_shell_call_output":
        return str(body["id"])
    return body.get("call_id") or body.get("approval_request_id") or ""


def _named(deed: Deed, row: ToolCall) -> Deed:
    return replace(deed, title=row.name) if deed.title == "tool" else deed


def _ended(deed: Deed, row: ToolCall) -> Deed:
    """A call with what is known of its end."""
    spent = row.ended_at - row.started_at if row.ended_at is not None else None
    took = "" if spent is None else duration(max(0, round(spent.total_seconds() * 1000)))
    output = None if row.output is None else pretty(row.output)
    pieces = [*deed.pieces, *_piece("Output", output), *_text("Error", row.error)]
    return replace(deed, status=row.status, took=took, pieces=pieces)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _piece(label: str, body: Shown | None) -> list[Piece]:
    return [] if body is None else [Piece(label=label, body=body)]


def _text(label: str, text: str | None) -> list[Piece]:
    """A text as it is; nothing where there is none."""
    return _piece(label, shown(text) if text else None)


def _lines(label: str, lines: Iterable[str | None]) -> list[Piece]:
    return _text(label, "\n".join(line for line in lines if line))


def _json(label: str, value: Any) -> list[Piece]:
    return _piece(label, pretty(value) if value not in (None, {}, []) else None)


def _said(value: Any) -> Shown:
    """An output: a text that may be JSON, or parts."""
    return pretty(value if isinstance(value, str) else [_without_data(part) for part in value])


def _without_data(part: Body) -> Body:
    return part if part["type"] == "input_text" else {"type": part["type"], "source": source(part)}


def _tools(label: str, tools: Sequence[Body]) -> list[Piece]:
    return _lines(label, [_tool(tool) for tool in tools])


def _tool(tool: Body) -> str:
    """A tool on a line; of a namespace or a server, with the names of those in it."""
    name = tool.get("name") or tool.get("server_label") or tool["type"]
    inner = [entry["name"] for entry in tool.get("tools") or ()]
    if isinstance(tool.get("allowed_tools"), list):
        inner = tool["allowed_tools"]
    whole = f"{name} ({', '.join(inner)})" if inner else str(name)
    about = tool.get("description") or tool.get("server_description")
    return f"{whole}: {about}" if about else whole


def _checks(label: str, checks: Sequence[Body] | None) -> list[Piece]:
    return _lines(label, [check.get("message") or check.get("code") or check["id"] for check in checks or ()])


# -- what the forms have in common -------------------------------------------------------------------------------------


def _call(icon: str, title: str, *pieces: Piece, note: str = "") -> Deed:
    return Deed(kind="call", icon=icon, title=title, pieces=pieces, note=note)


def _answer(title: str, *pieces: Piece, icon: str = "output", note: str = "returned") -> Deed:
    return Deed(kind="answer", icon=icon, title=title, pieces=pieces, note=note)


def _setting(title: str, *pieces: Piece, icon: str = "tune", note: str = "") -> Deed:
    return Deed(kind="setting", icon=icon, title=title, pieces=pieces, note=note)


def _qualified(body: Body) -> str:
    return f"{body['namespace']}.{body['name']}" if body.get("namespace") else str(body["name"])


def _of_server(body: Body) -> str:
    return f"{body['server_label']}: {body['name']}"


# -- calls that clients run --------------------------------------------------------------------------------------------


def _function_call(body: Body) -> Deed:
    return _call("function", _qualified(body), *_piece("Arguments", pretty(body["arguments"])))


def _custom_call(body: Body) -> Deed:
    return _call("function", _qualified(body), *_piece("Input", shown(body["input"])))


def _tool_output(body: Body) -> Deed:
    title = _qualified(body) if body.get("name") else "tool"
    return _answer(title, *_piece("", _said(body["output"])))


def _computer_call(body: Body) -> Deed:
    actions = body.get("actions") or [body.get("action") or {}]
    checks = _checks("Safety checks", body.get("pending_safety_checks"))
    return _call("computer", "computer", *_lines("Actions", map(_action, actions)), *checks)


def _action(action: Body) -> str:
    """One action on a line: its type, and what goes with it."""
    rest = " ".join(f"{name}={_short(value)}" for name, value in action.items() if name != "type" and value is not None)
    return f"{action.get('type', '')} {rest}".strip()


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    if isinstance(value, dict):
        return "(" + ",".join(map(_short, value.values())) + ")"
    return str(value)


def _computer_output(body: Body) -> Deed:
    checks = _checks("Acknowledged safety checks", body.get("acknowledged_safety_checks"))
    return _answer("computer", *_text("Screenshot", source(body["output"])), *checks)


def _shell_call(body: Body) -> Deed:
    action = body["action"]
    limits = {name: action.get(name) for name in ("timeout_ms", "max_output_length") if action.get(name)}
    return _call("terminal", "shell", *_lines("Commands", action["commands"]), *_json("Limits", limits))


def _shell_output(body: Body) -> Deed:
    pieces = [piece for number, output in enumerate(body["output"], 1) for piece in _shell_result(number, output)]
    return _answer("shell", *pieces)


def _shell_result(number: int, output: Body) -> list[Piece]:
    outcome = output["outcome"]
    ended = f"exit {outcome['exit_code']}" if outcome["type"] == "exit" else "timed out"
    written = "\n".join(filter(None, (output["stdout"], output["stderr"])))
    return _text(f"Command {number}, {ended}", written or "(no output)")


def _local_shell_call(body: Body) -> Deed:
    action = body["action"]
    rest = {name: value for name, value in action.items() if name not in {"type", "command"} and value}
    return _call("terminal", "local shell", *_text("Command", shlex.join(action["command"])), *_json("Settings", rest))


def _local_shell_output(body: Body) -> Deed:
    return _answer("local shell", *_piece("", pretty(body["output"])))


def _patch_call(body: Body) -> Deed:
    operation = body["operation"]
    label = f"{operation['type'].replace('_', ' ').capitalize()} {operation['path']}"
    return _call("difference", "apply patch", *_text(label, operation.get("diff") or "(no contents)"))


def _patch_output(body: Body) -> Deed:
    return _answer("apply patch", *_text("", body.get("output") or "(no output)"))


# -- calls that the server runs ----------------------------------------------------------------------------------------


def _tool_search(body: Body) -> Deed:
    return _call("search", "tool search", *_json("Arguments", body["arguments"]), note=_executed(body))


def _tools_found(body: Body) -> Deed:
    found = _tools("Tools", body["tools"]) or _text("Tools", "(none)")
    return _answer("tool search", *found, note=f"returned, {_executed(body)}")


def _executed(body: Body) -> str:
    return "by the client" if body.get("execution") == "client" else "on the server"


def _mcp_list(body: Body) -> Deed:
    pieces = [*_tools("Tools", body["tools"]), *_text("Error", body.get("error"))]
    return _setting(body["server_label"], *pieces, icon="lan", note="listed its tools")


def _mcp_call(body: Body) -> Deed:
    output = None if body.get("output") is None else pretty(body["output"])
    pieces = [*_piece("Arguments", pretty(body["arguments"])), *_piece("Output", output)]
    return _call("lan", _of_server(body), *pieces, *_json("Error", body.get("error")))


def _approval_request(body: Body) -> Deed:
    return _call("front_hand", _of_server(body), *_piece("Arguments", pretty(body["arguments"])), note="needs approval")


def _approval(body: Body) -> Deed:
    icon, title = ("check", "Approved") if body["approve"] else ("block", "Denied")
    return _answer(title, *_text("Reason", body.get("reason")), icon=icon, note="")


def _file_search(body: Body) -> Deed:
    found = [piece for result in body.get("results") or () for piece in _passage(result)]
    return _call("search", "file search", *_lines("Queries", body["queries"]), *found)


def _passage(result: Body) -> list[Piece]:
    name = result.get("filename") or result.get("file_id") or "file"
    score = "" if result.get("score") is None else f", score {result['score']:.2f}"
    return _text(f"{name}{score}", result.get("text") or "(no text)")


def _web_search(body: Body) -> Deed:
    action = body["action"]
    queries = action.get("queries") or [action.get("query")]
    pieces = [*_lines("Queries", queries), *_text("Page", action.get("url")), *_text("Pattern", action.get("pattern"))]
    pages = _lines("Sources", [page.get("url") for page in action.get("sources") or ()])
    return _call("travel_explore", "web search", *pieces, *pages, note=action["type"].replace("_", " "))


def _code_interpreter(body: Body) -> Deed:
    outputs = [piece for output in body.get("outputs") or () for piece in _code_output(output)]
    return _call("code", "code interpreter", *_text("Code", body.get("code")), *outputs)


def _code_output(output: Body) -> list[Piece]:
    if output["type"] == "logs":
        return _text("Logs", output["logs"])
    return _text("Image", source({"type": "input_image", "image_url": output["url"]}))


def _image_generation(body: Body) -> Deed:
    names = ("action", "background", "output_format", "quality", "size")
    settings = {name: body[name] for name in names if body.get(name)}
    image = measured(body["result"], "image") if body.get("result") else None
    error = (body.get("error") or {}).get("message")
    pieces = [*_text("Prompt", body.get("revised_prompt")), *_text("Image", image), *_text("Error", error)]
    return _call("image", "image generation", *pieces, *_json("Settings", settings))


def _program(body: Body) -> Deed:
    return _call("code", "program", *_text("Code", body["code"]))


def _program_output(body: Body) -> Deed:
    return _answer("program", *_piece("", pretty(body["result"])))


# -- settings ----------------------------------------------------------------------------------------------------------


def _compaction(body: Body) -> Deed:
    sealed = f"Sealed, {size(len(body.get('encrypted_content') or ''))}; what is in it is not shown."
    return _setting("Earlier items, compacted", *_text("", sealed), icon="compress")


def _configuration(body: Body) -> Deed:
    changed = {name: body[name] for name in ("reasoning", "text") if body.get(name)}
    return _setting("Settings changed", *_json("From here on", changed))


def _additional_tools(body: Body) -> Deed:
    return _setting("Tools added", *_tools("Tools", body["tools"]), icon="build", note=f"by the {body['role']}")


_FORMS: dict[str, Callable[[Body], Deed]] = {
    "function_call": _function_call,
    "function_call_output": _tool_output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _tool_output,
    "computer_call": _computer_call,
    "computer_call_output": _computer_output,
    "shell_call": _shell_call,
    "shell_call_output": _shell_output,
    "local_shell_call": _local_shell_call,
    "local_shell_call_output": _local_shell_output,
    "apply_patch_call": _patch_call,
    "apply_patch_call_output": _patch_output,
    "tool_search_call": _tool_search,
    "tool_search_output": _tools_found,
    "mcp_list_tools": _mcp_list,
    "mcp_call": _mcp_call,
    "mcp_approval_request": _approval_request,
    "mcp_approval_response": _approval,
    "file_search_call": _file_search,
    "web_search_call": _web_search,
    "code_interpreter_call": _code_interpreter,
    "image_generation_call": _image_generation,
    "program": _program,
    "program_output": _program_output,
    "compaction": _compaction,
    "configuration_update": _configuration,
    "additional_tools": _additional_tools,
}
