"""The toolbox of the hosted shell: a call is an item with its commands, and behind it one with what they wrote."""

from collections.abc import AsyncGenerator
from typing import Any

from kernel.errors import ApiError
from kernel.ids import new_id
from responses.engine.calls.client_tools import hidden_function
from responses.engine.calls.item_events import before_result
from responses.engine.calls.outcomes import CallDecision, ClosedItem, Execute, ToolLimits, ToolResult, parse_object
from responses.engine.events.types import Body, Event
from responses.engine.state import RunContext, RunState
from responses.engine.steps import Emitted, ToolsPrepared
from responses.engine.turn import Call, CallForm, FunctionTool
from responses.tools.code_interpreter.run_container import RunContainer, error_text, file_references
from sandbox.client import ExecutionResult, OperationFailed, SandboxUnavailable

NAME = "shell"
_MOST_COMMANDS = 20
_MAX_OUTPUT = 60_000
_KILLED = 137
_ABOUT = (
    "The commands run on a machine of their own, without a network; the user's files are in /mnt/data. To give the "
    "user a file, write it there, and link to it in your answer as [its name](sandbox:/mnt/data/its-name)."
)


class HostedShell:
    """Commands for one run."""

    concurrency = 1

    def __init__(self, container: RunContainer) -> None:
        self._container = container

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        """Nothing comes first; a run goes on in the container that was used last."""
        await self._container.reuse_recent([*context.items, *state.context_items()])
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        """The function that stands for the client's shell, too."""
        shell = hidden_function(CallForm.SHELL, description=_ABOUT)
        form = CallForm.HOSTED
        return (FunctionTool(name=NAME, description=shell.description, parameters=shell.parameters, form=form),)

    def kind(self, name: str) -> str | None:
        """There is one."""
        return NAME if name == NAME else None

    def may_repeat(self, name: str) -> bool:
        """A command may have changed anything."""
        return False

    def limits(self, name: str) -> ToolLimits:
        """The container keeps to the time of each command; making it takes some more."""
        return ToolLimits(seconds=_MOST_COMMANDS * self._container.seconds + 45, characters=4 * _MAX_OUTPUT)

    def decide(self, call: Call) -> CallDecision:
        """Anybody may."""
        return Execute()

    def open_item(self, call: Call) -> Body:
        """The item, before its commands are told."""
        return self._item(call, status="in_progress", commands=[])

    def _item(self, call: Call, *, status: str, commands: list[str]) -> Body:
        asked = parse_object(call.arguments) or {}
        limits = {name: _number(asked.get(name)) for name in ("timeout_ms", "max_output_length")}
        return {
            "id": new_id("sh"),
            "type": "shell_call",
            "status": status,
            "call_id": call.call_id,
            "action": {"commands": commands, **limits},
            "environment": {"type": "container_reference", "container_id": self._container.container_id},
        }

    def opening_events(self, body: Body, call: Call, output_index: int) -> list[Event]:
        """The commands are known as a whole by now."""
        action = {**body["action"], "commands": _commands(call) or []}
        return before_result({**body, "action": action}, output_index=output_index)

    async def call(self, call: Call) -> ToolResult:
        """Run the commands, one after the other; whatever goes wrong is a result."""
        commands, asked = _commands(call), parse_object(call.arguments) or {}
        if commands is None:
            return ToolResult(output="error: 'commands' has to be a list of texts", error="invalid_arguments")
        timeout, most = _number(asked.get("timeout_ms")), _number(asked.get("max_output_length"))
        outputs, files = [], []
        try:
            for command in commands:
                execution = await self._container.shell(command, seconds=timeout / 1000 if timeout else None)
                outputs.append(_output(execution.ran, most=min(most or _MAX_OUTPUT, _MAX_OUTPUT)))
                files += file_references(execution)
        except (ApiError, SandboxUnavailable, OperationFailed) as error:
            outputs.append(_failed(error_text(error)))
        fields = {"outputs": outputs, "files": files}
        return ToolResult(output="\n".join(one["stdout"] + one["stderr"] for one in outputs), fields=fields)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
        """The call, and behind it its output."""
        asked = _commands(call) or []
        item = {**body, "status": "completed", "action": {**body["action"], "commands": asked}}
        output = {
            "id": new_id("sho"),
            "type": "shell_call_output",
            "status": "completed",
            "call_id": call.call_id,
            "output": result.fields.get("outputs") or [_failed(result.output)],
            "max_output_length": body["action"]["max_output_length"],
            "files": result.fields.get("files") or [],
        }
        return ClosedItem(item=item, more=(output,))

    async def close(self) -> None:
        """The container stays: a later response may go on in it."""


def _commands(call: Call) -> list[str] | None:
    found = (parse_object(call.arguments) or {}).get("commands")
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        return None
    return found[:_MOST_COMMANDS]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _output(ran: ExecutionResult, *, most: int) -> Body:
    outcome: Body = {"type": "exit", "exit_code": _KILLED if ran.exit_code is None else ran.exit_code}
    if ran.stopped is not None and "longer than" in ran.stopped:
        outcome = {"type": "timeout"}
    stderr = f"{ran.stderr}\n{ran.stopped}".strip() if ran.stopped else ran.stderr
    return {"stdout": ran.stdout[:most], "stderr": stderr[:most], "outcome": outcome}


def _failed(why: str) -> Body:
    return {"stdout": "", "stderr": why, "outcome": {"type": "exit", "exit_code": 1}}
