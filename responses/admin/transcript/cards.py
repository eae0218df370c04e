"""Cards for items other than messages and reasoning: calls, their outputs, and settings.

`_READERS` maps types of items to functions. The plug-ins of hosted tools define the cards of their own item types. Any
other type is shown as JSON.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.urls import reverse

from console.widgets import badge, duration, size, state_words
from responses.admin.transcript.parts import ItemPart, json_part, media_part, read_part
from responses.models import ToolCall
from responses.tools.card import Body, Card, Part, answer_card, call_card, json, lines, setting_card, text, tools
from responses.tools.registry import card_of

OPEN_MAX_BYTES = 2000
"""A card of at most this many bytes is open initially."""
# Labels of parts that a tool produced. Items of hosted tools contain input and output together.
_OUTPUT_LABELS = {"Output", "Error", "Logs", "Image", "Passage", "Sources"}
_TONES = {"completed": "success", "approved": "success", "failed": "danger", "denied": "danger", "refused": "danger"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalResult:
    """State of an approval request. `response_id` is the response that answered it, `key` the name of its API key.

    If a response has waited for the decision, `by` is the user or API key that has made it.
    """

    outcome: str
    at: datetime | None
    response_id: str
    key: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard:
    """A tool call, the output of a tool call, or a setting, shown as a card.

    `kind` is call, answer or setting. `note` follows the title. `took` is empty while a call is running. If a call and
    its output are both shown, the output is the `answer` of the call. `approval` is set for calls that needed approval.
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
        """Size of all parts in bytes, including the parts of the answer."""
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
        return badge(self.status, _TONES.get(self.status, "")) if self.status else ""

    def without_content(self) -> "ToolCard":
        """Return the card for viewers who may not read content."""
        parts = [part.without_content() for part in self.parts]
        return replace(self, parts=parts, answer=self.answer.without_content() if self.answer else None)


def read_card(body: Body, *, in_context: bool) -> ToolCard:
    """Return the card of an item, made from the body of the item alone."""
    reader = _READERS.get(body["type"])
    card = reader(body) if reader else card_of(body) or setting_card(body["type"], Part("json", "", body))
    # Two types have no `call_id`: the API uses their own ids to pair calls and outputs.
    is_own_id = body["type"] in {"local_shell_call_output", "mcp_approval_request"}
    # Lists of tools have no status in the API, only an error.
    has_failed = body["type"] == "mcp_list_tools" and body.get("error")
    return ToolCard(
        kind=card.kind,
        icon=card.icon,
        title=card.title,
        parts=[_display_part(part) if isinstance(part, Part) else part for part in card.parts],
        note=card.note,
        server=card.server,
        id=body["id"],
        type=state_words(body["type"]),
        call_id=str(body["id"]) if is_own_id else body.get("call_id") or body.get("approval_request_id") or "",
        status=body.get("status") or ("failed" if has_failed else ""),
        in_context=in_context,
    )


def _display_part(part: Part) -> ItemPart:
    if part.kind == "image":
        return media_part({"type": "input_image", "image_url": part.value}, part.label)
    if part.kind == "json":
        return json_part(part.label, part.value)
    return ItemPart(label=part.label, text=part.value, detail=part.detail)


def with_row(card: ToolCard, row: ToolCall) -> ToolCard:
    """Add data of the item's tool call: status, duration and output to a call, the name of the tool to an output."""
    if card.kind == "answer":
        return replace(card, title=row.name) if card.title == "tool" else card
    # Items of server tools lack the output that the model received and the error of the call, which are only in the
    # row. They are left out if the item already shows the same text, raw or indented.
    known = {part.text for part in card.parts} | {part.raw for part in card.parts}
    found = [] if row.output is None else [("output", json_part("Output", row.output))]
    if row.error:
        found.append(("error", ItemPart(label="Error", text=row.error)))
    extra = [
        replace(part, url=reverse("console:call_text", args=[row.pk, field]) if row.pk else "")
        for field, part in found
        if part.text not in known and (part.raw or part.text) not in known
    ]
    took = "" if row.duration_ms is None else duration(row.duration_ms)
    return replace(card, status=row.status, took=took, attempt=row.attempt, parts=[*card.parts, *extra])


# -- client tools and settings -----------------------------------------------------------------------------------------


def _checks(label: str, checks: Sequence[Body] | None) -> list[Part]:
    return lines(label, [check.get("message") or check.get("code") or check["id"] for check in checks or ()])


def _qualified(body: Body) -> str:
    return f"{body['namespace']}.{body['name']}" if body.get("namespace") else str(body["name"])


def _tool_output(body: Body) -> Card:
    # Outputs usually have no name: `with_row` adds it from the row of the call.
    title = _qualified(body) if body.get("name") else "tool"
    if isinstance(body["output"], str):
        return answer_card(title, Part("json", "Output", body["output"]))
    # The output of a tool is not Markdown, even if it looks like Markdown.
    return answer_card(title, *(read_part(part).as_plain_text() for part in body["output"]))


def _computer_call(body: Body) -> Card:
    # Newer models send several actions in one call, older ones a single one.
    actions = body.get("actions") or [body.get("action") or {}]
    checks = _checks("Safety checks", body.get("pending_safety_checks"))
    return call_card("computer", "computer", *lines("Actions", map(_action, actions)), *checks)


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


def _shell_call(body: Body) -> Card:
    action = body["action"]
    limits = {name: action.get(name) for name in ("timeout_ms", "max_output_length") if action.get(name)}
    return call_card("terminal", "shell", *lines("Commands", action["commands"]), *json("Limits", limits))


def _shell_output(body: Body) -> Card:
    parts = []
    for number, output in enumerate(body["output"], 1):
        outcome = output["outcome"]
        ended = f"exit {outcome['exit_code']}" if outcome["type"] == "exit" else "timed out"
        payload = "\n".join(filter(None, (output["stdout"], output["stderr"])))
        parts += text(f"Command {number}, {ended}", payload or "(no output)")
    return answer_card("shell", *parts)


def _local_shell_call(body: Body) -> Card:
    action = body["action"]
    rest = {name: value for name, value in action.items() if name not in {"type", "command"} and value}
    return call_card(
        "terminal", "local shell", *text("Command", shlex.join(action["command"])), *json("Settings", rest)
    )


def _patch_call(body: Body) -> Card:
    operation = body["operation"]
    label = operation["type"].replace("_", " ").capitalize()
    change = text(label, operation.get("diff") or "(no contents)", operation["path"])
    return call_card("difference", "apply patch", *change)


def _compaction(body: Body) -> Card:
    summary = f"Encrypted, {size(len(body.get('encrypted_content') or ''))}. The content is not shown."
    return setting_card("Compacted earlier items", *text("", summary), icon="compress")


def _configuration(body: Body) -> Card:
    changed = {name: body[name] for name in ("reasoning", "text") if body.get(name)}
    return setting_card("Settings changed", *json("New settings", changed))


_READERS: dict[str, Callable[[Body], Card]] = {
    "function_call": lambda body: call_card("function", _qualified(body), Part("json", "Arguments", body["arguments"])),
    "function_call_output": _tool_output,
    "custom_tool_call": lambda body: call_card("function", _qualified(body), *text("Input", body["input"])),
    "custom_tool_call_output": _tool_output,
    "computer_call": _computer_call,
    "computer_call_output": lambda body: answer_card(
        "computer",
        media_part(body["output"], "Screenshot"),
        *_checks("Acknowledged safety checks", body.get("acknowledged_safety_checks")),
    ),
    "shell_call": _shell_call,
    "shell_call_output": _shell_output,
    "local_shell_call": _local_shell_call,
    "local_shell_call_output": lambda body: answer_card("local shell", Part("json", "Output", body["output"])),
    "apply_patch_call": _patch_call,
    "apply_patch_call_output": lambda body: answer_card(
        "apply patch", *text("Output", body.get("output") or "(no output)")
    ),
    "program": lambda body: call_card("code", "program", *text("Code", body["code"])),
    "program_output": lambda body: answer_card("program", Part("json", "Output", body["result"])),
    "compaction": _compaction,
    "configuration_update": _configuration,
    "additional_tools": lambda body: setting_card(
        "Tools added", *tools(body["tools"]), icon="build", note=f"by the {body['role']}"
    ),
}
