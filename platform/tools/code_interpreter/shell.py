"""The hosted shell. A call becomes a `shell_call` item and a `shell_call_output` item."""

from dataclasses import replace
from typing import Any

from typing_extensions import override

from core.errors import ApiError
from core.ids import new_id
from engine.calls.client_tools import hidden_function
from engine.calls.outcomes import ToolLimits, ToolResult, parse_object
from engine.calls.toolbox import HostedTool
from engine.events.types import Body
from engine.state import RunContext, RunState
from engine.turn import Call, CallForm, FunctionTool
from sandbox.client import OperationFailed, SandboxUnavailable
from tools.code_interpreter.run_container import RunContainer, error_text, file_references

NAME = "shell"
_MAX_COMMANDS = 20
_MAX_OUTPUT = 60_000
# Exit code of a process that was killed (128 + SIGKILL), as shells report it.
_KILLED = 137
_DESCRIPTION = (
    "The commands run in a container. {network} The user's files are in /mnt/data. To give the "
    "user a file, write it there and link to it in your answer as [file name](sandbox:/mnt/data/file-name)."
)


class HostedShell(HostedTool):
    """Hosted shell of one run.

    A command may have changed anything, so a call is never repeated. The container stays when the run is over, because
    a later response may continue in it.
    """

    kind = NAME
    names = (NAME,)
    concurrency = 1

    def __init__(self, container: RunContainer) -> None:
        self._container = container

    @override
    async def start(self, context: RunContext, state: RunState) -> None:
        await self._container.reuse_recent([*context.items, *state.context_items()])

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        # The same function as for the client's shell: the model needs no second definition.
        about = _DESCRIPTION.format(network=self._container.network)
        description = "\n".join(filter(None, [about, self._container.skill_instructions]))
        shell = hidden_function(CallForm.SHELL, description=description)
        return (replace(shell, form=CallForm.HOSTED),)

    @override
    def limits(self) -> ToolLimits:
        # The sandbox limits each command. 45 more seconds leave room for creating the container.
        return ToolLimits(seconds=_MAX_COMMANDS * self._container.seconds + 45, characters=4 * _MAX_OUTPUT)

    @override
    def open_item(self, call: Call) -> Body:
        given = parse_object(call.arguments) or {}
        limits = {name: _number(given.get(name)) for name in ("timeout_ms", "max_output_length")}
        return {
            "id": new_id("sh"),
            "type": "shell_call",
            "status": "in_progress",
            "call_id": call.call_id,
            "action": {"commands": _commands(call) or [], **limits},
            "environment": {"type": "container_reference", "container_id": self._container.container_id},
        }

    @override
    async def call(self, call: Call) -> ToolResult:
        commands, asked = _commands(call), parse_object(call.arguments) or {}
        if commands is None:
            return ToolResult(output="error: 'commands' must be an array of strings", error="invalid_arguments")
        timeout = _number(asked.get("timeout_ms"))
        most = min(_number(asked.get("max_output_length")) or _MAX_OUTPUT, _MAX_OUTPUT)
        outputs: list[Body] = []
        files: list[Body] = []
        try:
            for command in commands:
                execution = await self._container.shell(
                    command, seconds=timeout / 1000 if timeout else None, effect_id=call.effect_id
                )
                result = execution.result
                outcome: Body = {"type": "exit", "exit_code": _KILLED if result.exit_code is None else result.exit_code}
                if result.stopped is not None and "longer than" in result.stopped:
                    outcome = {"type": "timeout"}
                stderr = f"{result.stderr}\n{result.stopped}".strip() if result.stopped else result.stderr
                outputs.append({"stdout": result.stdout[:most], "stderr": stderr[:most], "outcome": outcome})
                files += file_references(execution)
        except (ApiError, SandboxUnavailable, OperationFailed) as error:
            outputs.append(_failed(error_text(error)))
        fields = {"outputs": outputs, "files": files}
        return ToolResult(output="\n".join(entry["stdout"] + entry["stderr"] for entry in outputs), fields=fields)

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        output = {
            "id": new_id("sho"),
            "type": "shell_call_output",
            "status": "completed",
            "call_id": call.call_id,
            "output": result.fields.get("outputs") or [_without_streams(result)],
            "max_output_length": body["action"]["max_output_length"],
            "files": result.fields.get("files") or [],
        }
        return [{**body, "status": "completed"}, output]


def _commands(call: Call) -> list[str] | None:
    found = (parse_object(call.arguments) or {}).get("commands")
    if not isinstance(found, list) or not found or not all(isinstance(command, str) for command in found):
        return None
    return found[:_MAX_COMMANDS]


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _without_streams(result: ToolResult) -> Body:
    """Return the output of commands that failed, or whose output a person has given."""
    if result.error is None:
        return {"stdout": result.output, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    return _failed(result.output)


def _failed(why: str) -> Body:
    return {"stdout": "", "stderr": why, "outcome": {"type": "exit", "exit_code": 1}}
