"""Calls of tools that the client may run, with the actions of a computer, and their outputs."""

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator
from typing_extensions import override

from conversations.items.base import Caller, CallId, ItemBase, Status, WrittenFile
from conversations.items.parts import ImageUrl, InputContent, input_content
from core.http.validation import FileId
from core.http.wire import BY_TYPE, LongInteger, OpenWire, Wire


class Point(OpenWire):
    """A position on the screen, in pixels from the top left."""

    x: LongInteger
    y: LongInteger


class Click(Point):
    """Click a mouse button."""

    type: Literal["click"] = "click"
    button: Literal["left", "right", "wheel", "back", "forward"]
    keys: list[str] | None = None


class DoubleClick(Point):
    """Double-click the left mouse button."""

    type: Literal["double_click"] = "double_click"
    keys: list[str] | None = None


class Drag(OpenWire):
    """Drag along a path with the left mouse button."""

    type: Literal["drag"] = "drag"
    path: list[Point]
    keys: list[str] | None = None


class Keypress(OpenWire):
    """Press keys together."""

    type: Literal["keypress"] = "keypress"
    keys: list[str]


class Move(Point):
    """Move the mouse."""

    type: Literal["move"] = "move"
    keys: list[str] | None = None


class Screenshot(OpenWire):
    """Take a screenshot."""

    type: Literal["screenshot"] = "screenshot"


class Scroll(Point):
    """Scroll by a number of pixels."""

    type: Literal["scroll"] = "scroll"
    scroll_x: LongInteger
    scroll_y: LongInteger
    keys: list[str] | None = None


class TypeText(OpenWire):
    """Type text."""

    type: Literal["type"] = "type"
    text: str


class Wait(OpenWire):
    """Wait for a moment."""

    type: Literal["wait"] = "wait"


ComputerAction = Annotated[
    Click | DoubleClick | Drag | Keypress | Move | Screenshot | Scroll | TypeText | Wait, BY_TYPE
]


class _NamedCall(ItemBase):
    """A call of a tool that the request named."""

    # `async` is a keyword of Python, so the SDK may send it under its Python name, `async_`.
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


class FunctionCall(_NamedCall):
    """A call of a function that the client runs."""

    prefix = "fc"

    type: Literal["function_call"] = "function_call"
    status: Status | None = None
    call_id: CallId
    name: str
    arguments: str
    namespace: str | None = None
    async_: bool | None = Field(default=None, alias="async")
    caller: Caller | None = None
    created_by: str | None = None


class FunctionCallOutput(ItemBase):
    """The output of a function call, sent by the client."""

    prefix = "fco"
    from_clients = True

    type: Literal["function_call_output"] = "function_call_output"
    status: Status | None = None
    call_id: CallId
    output: InputContent
    name: str | None = None
    namespace: str | None = None
    caller: Caller | None = None
    created_by: str | None = None

    @override
    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "output": input_content(self.output)}


class CustomToolCall(_NamedCall):
    """A call of a client tool that takes free text."""

    prefix = "ctc"

    type: Literal["custom_tool_call"] = "custom_tool_call"
    status: Status | None = None
    call_id: CallId
    name: str
    input: str
    namespace: str | None = None
    async_: bool | None = Field(default=None, alias="async")
    caller: Caller | None = None
    created_by: str | None = None


class CustomToolCallOutput(ItemBase):
    """The output of a custom tool call, sent by the client."""

    prefix = "ctco"
    from_clients = True

    type: Literal["custom_tool_call_output"] = "custom_tool_call_output"
    status: Status | None = None
    call_id: CallId
    output: InputContent
    caller: Caller | None = None
    created_by: str | None = None

    @override
    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "output": input_content(self.output)}


# -- a computer --------------------------------------------------------------------------------------------------------


class SafetyCheck(OpenWire):
    """A safety concern about a computer call, which a person has to acknowledge."""

    id: str
    code: str | None = None
    message: str | None = None


class ComputerCall(ItemBase):
    """A computer use call: one `action`, or a sequence of `actions`."""

    prefix = "cu"

    type: Literal["computer_call"] = "computer_call"
    status: Status | None = None
    call_id: CallId
    action: ComputerAction | None = None
    actions: list[ComputerAction] | None = None
    pending_safety_checks: list[SafetyCheck]


class ComputerScreenshot(OpenWire):
    """A screenshot, by URL, data URL or file. Data URLs are shown only on request (`include`)."""

    type: Literal["computer_screenshot"] = "computer_screenshot"
    image_url: ImageUrl | None = None
    file_id: FileId | None = None


class ComputerCallOutput(ItemBase):
    """The screenshot taken after a computer call."""

    prefix = "cuo"
    from_clients = True

    type: Literal["computer_call_output"] = "computer_call_output"
    status: Literal["in_progress", "completed", "incomplete", "failed"] | None = None
    call_id: CallId
    output: ComputerScreenshot
    acknowledged_safety_checks: list[SafetyCheck] | None = None
    created_by: str | None = None


# -- shells ------------------------------------------------------------------------------------------------------------


class LocalSkill(Wire):
    """A skill: instructions in a folder on the client's machine."""

    name: str
    description: str
    path: str


class LocalEnvironment(OpenWire):
    """The client's own machine."""

    type: Literal["local"] = "local"
    # Clients repeat the environment of their tool. The items of OpenAI's API do not show the skills.
    skills: Annotated[list[LocalSkill] | None, Field(max_length=200, exclude=True)] = None


class ContainerReference(OpenWire):
    """A container of the server."""

    type: Literal["container_reference"] = "container_reference"
    container_id: str


class ShellAction(OpenWire):
    """Shell commands to run in order, and their limits."""

    commands: list[str]
    timeout_ms: LongInteger | None = None
    max_output_length: LongInteger | None = None


class ShellCall(ItemBase):
    """A call that runs shell commands, on the client or in a container."""

    prefix = "sh"
    nulls = frozenset({"environment"})

    type: Literal["shell_call"] = "shell_call"
    status: Status | None = None
    call_id: CallId
    action: ShellAction
    environment: Annotated[LocalEnvironment | ContainerReference, BY_TYPE] | None = None
    caller: Caller | None = None
    created_by: str | None = None

    @override
    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "action": self.action.model_dump()}


class TimedOut(OpenWire):
    """The command exceeded its time limit."""

    type: Literal["timeout"] = "timeout"


class Exited(OpenWire):
    """The command exited."""

    type: Literal["exit"] = "exit"
    exit_code: LongInteger


class ShellOutput(OpenWire):
    """Output and outcome of one command."""

    stdout: str
    stderr: str
    outcome: Annotated[TimedOut | Exited, BY_TYPE]
    created_by: str | None = None


class ShellCallOutput(ItemBase):
    """The outputs of a shell call's commands.

    `files` is an addition of the platform, used for citations. It is stored, but never shown.
    """

    prefix = "sho"
    from_clients = True
    nulls = frozenset({"max_output_length"})

    type: Literal["shell_call_output"] = "shell_call_output"
    status: Status | None = None
    call_id: CallId
    output: list[ShellOutput]
    max_output_length: LongInteger | None = None
    caller: Caller | None = None
    created_by: str | None = None
    files: list[WrittenFile] | None = None


class LocalShellAction(OpenWire):
    """One command as a list of arguments, with its environment."""

    type: Literal["exec"] = "exec"
    command: list[str]
    env: dict[str, str]
    timeout_ms: LongInteger | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(ItemBase):
    """A call that runs one command on the client."""

    prefix = "lsh"

    type: Literal["local_shell_call"] = "local_shell_call"
    status: Status | None = None
    call_id: CallId
    action: LocalShellAction


class LocalShellCallOutput(ItemBase):
    """The output of a local shell call. Its `id` is the call id of that call."""

    prefix = "lsho"

    type: Literal["local_shell_call_output"] = "local_shell_call_output"
    # Required here, unlike other ids: it is the only link to the call.
    id: CallId
    status: Status | None = None
    output: str


# -- patches -----------------------------------------------------------------------------------------------------------


class CreateFile(OpenWire):
    """Creation of a file, as a diff against an empty one."""

    type: Literal["create_file"] = "create_file"
    path: str
    diff: str


class UpdateFile(OpenWire):
    """Change of a file."""

    type: Literal["update_file"] = "update_file"
    path: str
    diff: str


class DeleteFile(OpenWire):
    """Deletion of a file."""

    type: Literal["delete_file"] = "delete_file"
    path: str


class ApplyPatchCall(ItemBase):
    """A call that creates, changes or deletes a file on the client."""

    prefix = "apc"

    type: Literal["apply_patch_call"] = "apply_patch_call"
    status: Literal["in_progress", "completed"] | None = None
    call_id: CallId
    operation: Annotated[CreateFile | UpdateFile | DeleteFile, BY_TYPE]
    caller: Caller | None = None
    created_by: str | None = None


class ApplyPatchCallOutput(ItemBase):
    """The outcome of an apply patch call."""

    prefix = "apco"
    from_clients = True

    type: Literal["apply_patch_call_output"] = "apply_patch_call_output"
    status: Literal["completed", "failed"]
    call_id: CallId
    output: str | None = None
    caller: Caller | None = None
    created_by: str | None = None


# -- tools -------------------------------------------------------------------------------------------------------------


class ToolSearchCall(ItemBase):
    """A search for deferred tools, run by the client or the server.

    `query` is an addition of the platform: the words that the model searched for. It is stored, but never shown.
    """

    prefix = "tsc"
    nulls = frozenset({"call_id", "arguments"})

    type: Literal["tool_search_call"] = "tool_search_call"
    status: Status | None = None
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    arguments: Any
    created_by: str | None = None
    query: str | None = None

    @override
    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "execution": self.execution or "server"}


class ToolSearchOutput(ItemBase):
    """The tools that a search found. The model can call them in all later turns."""

    prefix = "tso"
    from_clients = True
    nulls = frozenset({"call_id"})

    type: Literal["tool_search_output"] = "tool_search_output"
    status: Status | None = None
    call_id: CallId | None = None
    execution: Literal["server", "client"] | None = None
    tools: list[dict[str, Any]]
    created_by: str | None = None

    # Removed during validation, so that secrets cannot reach the database in any other way.
    @field_validator("tools")
    @classmethod
    def _remove_secrets(cls, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_without_secrets(tool) if tool.get("type") == "mcp" else tool for tool in tools]

    @override
    def wire(self) -> dict[str, Any]:
        return {**super().wire(), "execution": self.execution or "server"}


def _without_secrets(server: dict[str, Any]) -> dict[str, Any]:
    # Items are stored and shown to other clients of the team. Secrets belong only into the `tools` of a request.
    kept = {name: value for name, value in server.items() if name not in {"headers", "authorization"}}
    if isinstance(url := kept.get("server_url"), str):
        kept["server_url"] = origin(url)
    return kept


def origin(url: str) -> str:
    """Return scheme and host of a URL. User name, path and query are left out, as each of them may contain a secret."""
    try:
        parts = urlsplit(url)
    # An invalid URL may contain a secret anywhere.
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


CLIENT_CALLS = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "shell_call",
        "local_shell_call",
        "apply_patch_call",
        "tool_search_call",
    }
)
"""Types of calls that clients run. Some calls of shells and tool searches are run by the server."""


def is_client_call(body: dict[str, Any]) -> bool:
    """Return True if a stored item is a call that the client has to answer with an output."""
    match body:
        case {"type": "tool_search_call"}:
            return body.get("execution") == "client"
        case {"type": "shell_call", "environment": {"type": kind}}:
            return bool(kind == "local")
    return body["type"] in CLIENT_CALLS
