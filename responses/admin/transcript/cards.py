"""Cards for items other than messages and reasoning: calls, their outputs, and settings.

`_READERS` maps item types to functions. A type that is not listed is shown as JSON.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse

from console.widgets import badge, duration, size
from responses.admin.transcript.parts import ItemPart, json_part, media_part, read_part, text_part
from responses.models import Approval, ApprovalState, ToolCall

Body = dict[str, Any]

OPEN_MAX_BYTES = 2000
"""A card of at most this many bytes is open initially."""
# Labels of parts that a tool produced. Items of hosted tools contain input and output together.
_OUTPUT_LABELS = {"Output", "Error", "Logs", "Image", "Passage", "Sources"}
_TONES = {"completed": "success", "approved": "success", "failed": "danger", "denied": "danger", "refused": "danger"}
_APPROVAL_LABELS = {
    ApprovalState.ASKED.value: "Waiting for approval",
    ApprovalState.GRANTED.value: "Approved",
    ApprovalState.DENIED.value: "Denied",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalResult:
    """State of an approval request. `response_id` is the response that answered it, `key` the name of its API key."""

    outcome: str
    at: Any = None
    response_id: str = ""
    key: str = ""

    @classmethod
    def of(cls, row: Approval, key: str) -> "ApprovalResult":
        """Build the result from a row."""
        return cls(outcome=_APPROVAL_LABELS[row.state], at=row.answered_at, response_id=row.answered_in or "", key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard:
    """A tool call, the output of one, or a setting, shown as a card.

    `kind` is call, answer or setting. `note` follows the title. `took` is empty while a call is running. Where a call
    and its output are both shown, the output is the `answer` of the call. `approval` is set for calls that needed one.
    """

    kind: str
    icon: str
    title: str
    parts: Sequence[ItemPart]
    type: str = ""
    server: str = ""
    note: str = ""
    id: str = ""
    key: str = ""
    call_id: str = ""
    status: str = ""
    took: str = ""
    attempt: int = 1
    in_context: bool = True
    answer: "ToolCard | None" = None
    approval: ApprovalResult | None = None

    @property
    def weight(self) -> int:
        """Size of all parts in bytes, including those of the answer."""
        return sum(part.weight for part in self.parts) + (self.answer.weight if self.answer else 0)

    @property
    def sizes(self) -> str:
        """Sizes of input and output, for example `2.0 KB → 310 B`."""
        input_size = sum(part.weight for part in self.parts if part.label not in _OUTPUT_LABELS)
        output_size = self.weight - input_size
        if self.kind != "call" or not output_size:
            return size(self.weight) if self.weight else ""
        return f"{size(input_size)} → {size(output_size)}"

    @property
    def is_open(self) -> bool:
        """True if the card is open initially."""
        return self.weight <= OPEN_MAX_BYTES

    @property
    def badge(self) -> str:
        """Status badge."""
        return badge(self.status.replace("_", " "), _TONES.get(self.status, "")) if self.status else ""

    def without_content(self) -> "ToolCard":
        """Return the card for viewers who may not read content."""
        parts = [part.without_content() for part in self.parts]
        return replace(self, parts=parts, answer=self.answer.without_content() if self.answer else None)


def read_card(body: Body, *, in_context: bool) -> ToolCard:
    """Return the card of an item, from the body of the item only."""
    reader = _READERS.get(body["type"])
    card = reader(body) if reader else _setting(body["type"], json_part("", body))
    return replace(
        card,
        id=body["id"],
        type=body["type"].replace("_", " "),
        call_id=_call_id(body),
        status=body.get("status") or "",
        in_context=in_context,
    )


def with_row(card: ToolCard, row: ToolCall) -> ToolCard:
    """Add status, duration and output of the tool call that the item makes or answers."""
    return _with_name(card, row) if card.kind == "answer" else _with_result(card, row)


def _call_id(body: Body) -> str:
    # Two types have no `call_id`: the API uses their own ids to pair calls and outputs.
    if body["type"] == "local_shell_call_output":
        return str(body["id"])
    if body["type"] == "mcp_approval_request":
        return str(body["id"])
    return body.get("call_id") or body.get("approval_request_id") or ""


def _with_name(card: ToolCard, row: ToolCall) -> ToolCard:
    return replace(card, title=row.name) if card.title == "tool" else card


def _with_result(card: ToolCard, row: ToolCall) -> ToolCard:
    spent = row.ended_at - row.started_at if row.ended_at is not None else None
    took = "" if spent is None else duration(max(0, round(spent.total_seconds() * 1000)))
    return replace(
        card, status=row.status, took=took, attempt=row.attempt, parts=[*card.parts, *_extra_parts(card, row)]
    )


def _extra_parts(card: ToolCard, row: ToolCall) -> list[ItemPart]:
    # Items of server tools lack the output that the model received and the error of the call: both are in the row only.
    # What the item shows already, raw or indented, is not repeated.
    known = {part.text for part in card.parts} | {part.raw for part in card.parts}
    found = [] if row.output is None else [replace(json_part("Output", row.output), url=_row_url(row, "output"))]
    if row.error:
        found.append(replace(text_part("Error", row.error), url=_row_url(row, "error")))
    return [part for part in found if part.text not in known and (part.raw or part.text) not in known]


def _row_url(row: ToolCall, field: str) -> str:
    return reverse("console:call_text", args=[row.pk, field]) if row.pk else ""


# -- parts -------------------------------------------------------------------------------------------------------------


def _text(label: str, text: str | None, detail: str = "") -> list[ItemPart]:
    return [text_part(label, text, detail)] if text else []


def _lines(label: str, lines: Iterable[str | None]) -> list[ItemPart]:
    return _text(label, "\n".join(line for line in lines if line))


def _json(label: str, value: Any) -> list[ItemPart]:
    return [json_part(label, value)] if value not in (None, {}, []) else []


def _content_parts(value: Any) -> list[ItemPart]:
    """Return the parts of an output, which is text (possibly JSON) or a list of content parts."""
    if isinstance(value, str):
        return [json_part("Output", value)]
    parts = [read_part(part) for part in value]
    # Output of a tool is not Markdown, even if it looks like it.
    return [replace(part, kind="text") if part.kind == "markdown" else part for part in parts]


def _tools(label: str, tools: Sequence[Body]) -> list[ItemPart]:
    return _lines(label, [_tool(tool) for tool in tools])


def _tool(tool: Body) -> str:
    """Describe a tool in one line. A namespace or an MCP server includes the names of its tools."""
    name = tool.get("name") or tool.get("server_label") or tool["type"]
    # `allowed_tools` of an MCP server is a list of names or a filter object; only a list can be shown.
    inner = [entry["name"] for entry in tool.get("tools") or ()]
    if isinstance(tool.get("allowed_tools"), list):
        inner = tool["allowed_tools"]
    whole = f"{name} ({', '.join(inner)})" if inner else str(name)
    about = tool.get("description") or tool.get("server_description")
    return f"{whole}: {about}" if about else whole


def _checks(label: str, checks: Sequence[Body] | None) -> list[ItemPart]:
    return _lines(label, [check.get("message") or check.get("code") or check["id"] for check in checks or ()])


# -- constructors of cards ---------------------------------------------------------------------------------------------


def _call(icon: str, title: str, *parts: ItemPart, note: str = "") -> ToolCard:
    return ToolCard(kind="call", icon=icon, title=title, parts=parts, note=note)


def _answer(title: str, *parts: ItemPart, icon: str = "output", note: str = "returned") -> ToolCard:
    return ToolCard(kind="answer", icon=icon, title=title, parts=parts, note=note)


def _setting(title: str, *parts: ItemPart, icon: str = "tune", note: str = "") -> ToolCard:
    return ToolCard(kind="setting", icon=icon, title=title, parts=parts, note=note)


def _qualified(body: Body) -> str:
    return f"{body['namespace']}.{body['name']}" if body.get("namespace") else str(body["name"])


# -- client tools ------------------------------------------------------------------------------------------------------


def _function_call(body: Body) -> ToolCard:
    return _call("function", _qualified(body), json_part("Arguments", body["arguments"]))


def _custom_call(body: Body) -> ToolCard:
    return _call("function", _qualified(body), *_text("Input", body["input"]))


def _tool_output(body: Body) -> ToolCard:
    # Outputs usually have no name: `_with_name` adds it from the row of the call.
    title = _qualified(body) if body.get("name") else "tool"
    return _answer(title, *_content_parts(body["output"]))


def _computer_call(body: Body) -> ToolCard:
    # Newer models send several actions in one call, older ones a single one.
    actions = body.get("actions") or [body.get("action") or {}]
    checks = _checks("Safety checks", body.get("pending_safety_checks"))
    return _call("computer", "computer", *_lines("Actions", map(_action, actions)), *checks)


def _action(action: Body) -> str:
    """Describe a computer action in one line: its type and arguments."""
    rest = " ".join(f"{name}={_short(value)}" for name, value in action.items() if name != "type" and value is not None)
    return f"{action.get('type', '')} {rest}".strip()


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, value))
    if isinstance(value, dict):
        return "(" + ",".join(map(_short, value.values())) + ")"
    return str(value)


def _computer_output(body: Body) -> ToolCard:
    checks = _checks("Acknowledged safety checks", body.get("acknowledged_safety_checks"))
    return _answer("computer", media_part(body["output"], "Screenshot"), *checks)


def _shell_call(body: Body) -> ToolCard:
    action = body["action"]
    limits = {name: action.get(name) for name in ("timeout_ms", "max_output_length") if action.get(name)}
    return _call("terminal", "shell", *_lines("Commands", action["commands"]), *_json("Limits", limits))


def _shell_output(body: Body) -> ToolCard:
    parts = [part for number, output in enumerate(body["output"], 1) for part in _shell_result(number, output)]
    return _answer("shell", *parts)


def _shell_result(number: int, output: Body) -> list[ItemPart]:
    outcome = output["outcome"]
    ended = f"exit {outcome['exit_code']}" if outcome["type"] == "exit" else "timed out"
    payload = "\n".join(filter(None, (output["stdout"], output["stderr"])))
    return _text(f"Command {number}, {ended}", payload or "(no output)")


def _local_shell_call(body: Body) -> ToolCard:
    action = body["action"]
    rest = {name: value for name, value in action.items() if name not in {"type", "command"} and value}
    return _call("terminal", "local shell", *_text("Command", shlex.join(action["command"])), *_json("Settings", rest))


def _local_shell_output(body: Body) -> ToolCard:
    return _answer("local shell", json_part("Output", body["output"]))


def _patch_call(body: Body) -> ToolCard:
    operation = body["operation"]
    label = operation["type"].replace("_", " ").capitalize()
    change = _text(label, operation.get("diff") or "(no contents)", operation["path"])
    return _call("difference", "apply patch", *change)


def _patch_output(body: Body) -> ToolCard:
    return _answer("apply patch", *_text("Output", body.get("output") or "(no output)"))


# -- hosted tools ------------------------------------------------------------------------------------------------------


def _tool_search(body: Body) -> ToolCard:
    return _call("search", "tool search", *_json("Arguments", body["arguments"]), note=_executed(body))


def _tools_found(body: Body) -> ToolCard:
    found = _tools("Tools", body["tools"]) or _text("Tools", "(none)")
    return _answer("tool search", *found, note=f"returned, {_executed(body)}")


def _executed(body: Body) -> str:
    return "by the client" if body.get("execution") == "client" else "on the server"


def _mcp_list(body: Body) -> ToolCard:
    parts = [*_tools("Tools", body["tools"]), *_text("Error", body.get("error"))]
    return _setting(body["server_label"], *parts, icon="lan", note="tool list")


def _mcp_call(body: Body) -> ToolCard:
    parts = [json_part("Arguments", body["arguments"]), *_json("Output", body.get("output"))]
    card = _call("lan", body["name"], *parts, *_json("Error", body.get("error")))
    return replace(card, server=body["server_label"])


def _approval_request(body: Body) -> ToolCard:
    card = _call("front_hand", body["name"], json_part("Arguments", body["arguments"]), note="needs approval")
    return replace(card, server=body["server_label"])


def _approval(body: Body) -> ToolCard:
    icon, title = ("check", "Approved") if body["approve"] else ("block", "Denied")
    return _answer(title, *_text("Reason", body.get("reason")), icon=icon, note="")


def _file_search(body: Body) -> ToolCard:
    found = [part for result in body.get("results") or () for part in _passage(result)]
    return _call("search", "file search", *_lines("Queries", body["queries"]), *found)


def _passage(result: Body) -> list[ItemPart]:
    name = result.get("filename") or result.get("file_id") or "file"
    score = "" if result.get("score") is None else f", score {result['score']:.2f}"
    return _text("Passage", result.get("text") or "(no text)", f"{name}{score}")


def _web_search(body: Body) -> ToolCard:
    action = body["action"]
    # `query` is the older form of `queries`.
    queries = action.get("queries") or [action.get("query")]
    parts = [*_lines("Queries", queries), *_text("Page", action.get("url")), *_text("Pattern", action.get("pattern"))]
    pages = _lines("Sources", [page.get("url") for page in action.get("sources") or ()])
    return _call("travel_explore", "web search", *parts, *pages, note=action["type"].replace("_", " "))


def _code_interpreter(body: Body) -> ToolCard:
    outputs = [part for output in body.get("outputs") or () for part in _code_output(output)]
    return _call("code", "code interpreter", *_text("Code", body.get("code")), *outputs)


def _code_output(output: Body) -> list[ItemPart]:
    if output["type"] == "logs":
        return _text("Logs", output["logs"])
    return [media_part({"type": "input_image", "image_url": output["url"]}, "Image")]


def _image_generation(body: Body) -> ToolCard:
    names = ("action", "background", "output_format", "quality", "size")
    settings = {name: body[name] for name in names if body.get(name)}
    image_url = f"data:{_image_type(body)};base64,{body['result']}" if body.get("result") else ""
    image = [media_part({"type": "input_image", "image_url": image_url}, "Image")] if image_url else []
    error = (body.get("error") or {}).get("message")
    parts = [*_text("Prompt", body.get("revised_prompt")), *image, *_text("Error", error)]
    return _call("image", "image generation", *parts, *_json("Settings", settings))


def _image_type(body: Body) -> str:
    form = body.get("output_format") or ""
    return "image/svg+xml" if form == "svg" else f"image/{form}" if form else ""


def _program(body: Body) -> ToolCard:
    return _call("code", "program", *_text("Code", body["code"]))


def _program_output(body: Body) -> ToolCard:
    return _answer("program", json_part("Output", body["result"]))


# -- settings ----------------------------------------------------------------------------------------------------------


def _compaction(body: Body) -> ToolCard:
    summary = f"Encrypted, {size(len(body.get('encrypted_content') or ''))}. The content is not shown."
    return _setting("Compacted earlier items", *_text("", summary), icon="compress")


def _configuration(body: Body) -> ToolCard:
    changed = {name: body[name] for name in ("reasoning", "text") if body.get(name)}
    return _setting("Settings changed", *_json("New settings", changed))


def _additional_tools(body: Body) -> ToolCard:
    return _setting("Tools added", *_tools("Tools", body["tools"]), icon="build", note=f"by the {body['role']}")


_READERS: dict[str, Callable[[Body], ToolCard]] = {
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
