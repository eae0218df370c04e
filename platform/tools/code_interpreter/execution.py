"""The code interpreter. The item of a call holds the program's output; clients see it with `include`."""

from pathlib import PurePosixPath

from typing_extensions import override

from core.errors import ApiError
from core.ids import new_id
from engine.calls.client_tools import upstream_name
from engine.calls.outcomes import ToolLimits, ToolResult, parse_object
from engine.calls.toolbox import HostedTool, hosted_function
from engine.events.types import Body
from engine.state import RunContext, RunState
from engine.turn import Call, FunctionTool
from sandbox.client import OperationFailed, SandboxUnavailable
from tools.code_interpreter.run_container import CODE_INTERPRETER, RunContainer, error_text, file_references

PYTHON = "python"
_MAX_LOGS = 60_000
_TRUNCATED = "\n[Output truncated: it is too long.]"
_DESCRIPTION = (
    "Runs Python in a container. Variables persist between calls, as in a notebook. The value of the last expression "
    "is shown. {network} A call may take up to {seconds} seconds. {modules}The user's files are in "
    "/mnt/data; matplotlib figures are saved there automatically. To give the user a file, write it there and "
    "link to it in your answer as [file name](sandbox:/mnt/data/file-name)."
)


class CodeInterpreter(HostedTool):
    """Code interpreter of one run.

    With `kind` "mcp" the client has requested it as an MCP server and gets `mcp_call` items. Code may have changed
    files or variables, so a call is never repeated. The container stays when the run is over, because a later response
    may continue in it.
    """

    concurrency = 1

    def __init__(self, container: RunContainer, *, kind: str) -> None:
        self._container = container
        self.kind = kind
        self.names = (upstream_name(CODE_INTERPRETER, PYTHON) if kind == "mcp" else CODE_INTERPRETER,)

    @override
    async def start(self, context: RunContext, state: RunState) -> None:
        await self._container.reuse_recent([*context.items, *state.context_items()])

    @override
    def functions(self) -> tuple[FunctionTool, ...]:
        info = self._container.sandbox_info
        known = info.modules.strip("[]").replace("'", "") if info else ""
        modules = (
            f"Available modules: the standard library, {known}. " if known else "Only the standard library exists. "
        )
        network = self._container.network
        description = _DESCRIPTION.format(seconds=self._container.seconds, modules=modules, network=network)
        description = "\n".join(filter(None, [description, self._container.skill_instructions]))
        code = {"type": "string", "description": "The Python code to run."}
        return (hosted_function(self.names[0], description, code=code),)

    @override
    def limits(self) -> ToolLimits:
        # The sandbox enforces the time limit itself. 45 more seconds leave room for creating the container.
        return ToolLimits(seconds=self._container.seconds + 45, characters=2 * _MAX_LOGS)

    @override
    def open_item(self, call: Call) -> Body:
        if self.kind == "mcp":
            return {**super().open_item(call), "server_label": CODE_INTERPRETER, "name": PYTHON}
        return {
            "id": new_id("ci"),
            "type": "code_interpreter_call",
            "status": "in_progress",
            "code": _code(call) or "",
            "container_id": self._container.container_id,
            "outputs": None,
        }

    @override
    async def call(self, call: Call) -> ToolResult:
        code = _code(call)
        if code is None:
            return ToolResult(output="error: 'code' must be a string", error="invalid_arguments")
        try:
            execution = await self._container.run(code, effect_id=call.effect_id)
        except (ApiError, SandboxUnavailable, OperationFailed) as error:
            return ToolResult(output=error_text(error), error="failed")
        result, files = execution.result, execution.files
        stopped = f"The program was stopped: {result.stopped}. Its variables are lost." if result.stopped else ""
        written = (result.stdout, result.stderr, result.value or "", result.error or "", stopped)
        logs = "\n".join(part.rstrip("\n") for part in written if part)
        if len(logs) > _MAX_LOGS:
            logs = logs[:_MAX_LOGS] + _TRUNCATED
        images = [file for file in files if PurePosixPath(file.path).name in result.images]
        fields = {
            "logs": logs,
            "container_id": execution.container_id,
            # Paths of the API: reading the content takes an API key.
            "images": [f"/v1/containers/{file.container_id}/files/{file.pk}/content" for file in images],
            "files": file_references(execution),
        }
        listed = f"Files written: {', '.join(file.path for file in files)}" if files else ""
        output = "\n".join(part for part in (logs, listed) if part) or "(no output)"
        return ToolResult(output=output, fields=fields)

    @override
    def close_items(self, body: Body, call: Call, result: ToolResult) -> list[Body]:
        if self.kind == "mcp":
            return super().close_items(body, call, result)
        if result.error:
            return [{**body, "status": "failed", "outputs": [{"type": "logs", "logs": result.output}]}]
        fields = result.fields
        if not fields:
            # A person has given the output of an interrupted program.
            return [{**body, "status": "completed", "outputs": [{"type": "logs", "logs": result.output}]}]
        logs = [{"type": "logs", "logs": fields["logs"]}] if fields["logs"] else []
        images = [{"type": "image", "url": url} for url in fields["images"]]
        outputs = {"container_id": fields["container_id"], "outputs": [*logs, *images], "files": fields["files"]}
        return [{**body, "status": "completed", **outputs}]


def _code(call: Call) -> str | None:
    code = (parse_object(call.arguments) or {}).get("code")
    return code if isinstance(code, str) else None
