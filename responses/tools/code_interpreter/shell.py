"""Toolbox of the hosted shell. A call becomes a `shell_call` item and a `shell_call_output` item."""

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
_MAX_COMMANDS = 20
_MAX_OUTPUT = 60_000
# Exit code of a process that was killed (128 + SIGKILL), as shells report it.
_KILLED = 137
_DESCRIPTION = (
    "The commands run in a container without network access. The user's files are in /mnt/data. To give the "
    "user a file, write it there and link to it in your answer as [file name](sandbox:/mnt/data/file-name)."
)


class HostedShell:
    """Hosted shell of one run."""

    concurrency = 1

    def __init__(self, container: RunContainer) -> None:
        self._container = container

    async def prepare(self, context: RunContext, state: RunState) -> AsyncGenerator[Emitted | ToolsPrepared, None]:
        await self._container.reuse_recent([*context.items, *state.context_items()])
        nothing: tuple[ToolsPrepared, ...] = ()
        for step in nothing:
            yield step

    def functions(self) -> tuple[FunctionTool, ...]:
        # The same function as for the client's shell: the model needs no second definition.
        shell = hidden_function(CallForm.SHELL, description=_DESCRIPTION)
        form = CallForm.HOSTED
        return (FunctionTool(name=NAME, description=shell.description, parameters=shell.parameters, form=form),)

    def kind(self, name: str) -> str | None:
        return NAME if name == NAME else None

    def may_repeat(self, name: str) -> bool:
        # A command may have changed anything, so a call is never repeated.
        return False

    def limits(self, name: str) -> ToolLimits:
        # The sandbox limits each command. 45 more seconds leave room for creating the container.
        return ToolLimits(seconds=_MAX_COMMANDS * self._container.seconds + 45, characters=4 * _MAX_OUTPUT)

    def decide(self, call: Call) -> CallDecision:
        return Execute()

    def open_item(self, call: Call) -> Body:
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
        # All commands are known by now, so their events can be sent without deltas.
        action = {**body["action"], "commands": _commands(call) or []}
        return before_result({**body, "action": action}, output_index=output_index)

    async def call(self, call: Call) -> ToolResult:
        commands, asked = _commands(call), parse_object(call.arguments) or {}
        if commands is None:
            return ToolResult(output="error: 'commands' must be an array of strings", error="invalid_arguments")
        timeout, most = _number(asked.get("timeout_ms")), _number(asked.get("max_output_length"))
        outputs, files = [], []
        try:
            for command in commands:
                execution = await self._container.shell(command, seconds=timeout / 1000 if timeout else None)
                outputs.append(_output(execution.result, most=min(most or _MAX_OUTPUT, _MAX_OUTPUT)))
                files += file_references(execution)
        except (ApiError, SandboxUnavailable, OperationFailed) as error:
            outputs.append(_failed(error_text(error)))
        fields = {"outputs": outputs, "files": files}
        return ToolResult(output="\n".join(one["stdout"] + one["stderr"] for one in outputs), fields=fields)

    def close_item(self, body: Body, call: Call, result: ToolResult, output_index: int) -> ClosedItem:
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
        """Do nothing: the container stays, because a later response may continue in it."""


def _commands(call: Call) -> list[str] | None:
    found = (parse_object(call.arguments) or {}).get("commands")
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        return None
    return found[:_MAX_COMMANDS]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _output(result: ExecutionResult, *, most: int) -> Body:
    outcome: Body = {"type": "exit", "exit_code": _KILLED if result.exit_code is None else result.exit_code}
    if result.stopped is not None and "longer than" in result.stopped:
        outcome = {"type": "timeout"}
    stderr = f"{result.stderr}\n{result.stopped}".strip() if result.stopped else result.stderr
    return {"stdout": result.stdout[:most], "stderr": stderr[:most], "outcome": outcome}


def _failed(why: str) -> Body:
    return {"stdout": "", "stderr": why, "outcome": {"type": "exit", "exit_code": 1}}
