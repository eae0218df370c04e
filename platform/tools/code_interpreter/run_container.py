"""Containers that the tools of a run work in: named by the request, or created with the first call."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from containers import access, selectors, services
from containers.models import Container, container_id
from containers.services import ContainerExecution, ContainerSpec
from conversations.items import CodeInterpreterCall, ShellCall, StoredItem
from core.clock import now
from core.db.db_threads import in_db_thread
from core.errors import ApiError, ContainerExpired
from sandbox.client import ExecutionResult, SandboxClient, SandboxInfo, SandboxUnavailable
from skills.schema import instructions
from skills.services import MountableSkill, find_mountable
from tenants import scope
from tenants.principal import Principal

Shown = Mapping[str, Any]
CODE_INTERPRETER = "code_interpreter"
_CONTAINER_NAME = "Created for a response"
_MAX_FILES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """Container that one tool of a request asks for.

    `kind` is the type of the tool and `param` the parameter to report in errors. `container_id` is the container named
    by the request; None means an automatic container.
    """

    kind: str
    container_id: str | None
    param: str
    memory: str = "1g"
    file_ids: Sequence[str] = ()
    skills: Sequence[Shown] = field(default=(), repr=False)
    domains: tuple[str, ...] = ()


def container_requests(tools: Sequence[Shown]) -> list[ContainerRequest]:
    """Return the tools that work in containers, given the tools as the response shows them."""
    found = []
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "code_interpreter", "container": str() as named}:
                found.append(
                    ContainerRequest(kind=CODE_INTERPRETER, container_id=named, param=f"tools[{index}].container")
                )
            case {"type": "code_interpreter", "container": dict() as auto}:
                found.append(_auto(CODE_INTERPRETER, auto, f"tools[{index}].container"))
            case {"type": "shell", "environment": {"type": "container_reference", "container_id": named}}:
                found.append(
                    ContainerRequest(kind="shell", container_id=named, param=f"tools[{index}].environment.container_id")
                )
            case {"type": "shell", "environment": {"type": "container_auto"} as auto}:
                found.append(_auto("shell", auto, f"tools[{index}].environment"))
            # Clients of vLLM ask for the built-in code interpreter as an MCP server with this label.
            case {"type": "mcp", "server_label": "code_interpreter"} as mcp if not _names_a_server(mcp):
                found.append(ContainerRequest(kind="mcp", container_id=None, param=f"tools[{index}].server_label"))
    return found


def _names_a_server(mcp: Shown) -> bool:
    return bool(mcp.get("server_url") or mcp.get("connector_id"))


def _auto(kind: str, auto: Shown, param: str) -> ContainerRequest:
    return ContainerRequest(
        kind=kind,
        container_id=None,
        param=param,
        memory=auto["memory_limit"],
        file_ids=auto["file_ids"],
        skills=auto.get("skills", ()),
        domains=tuple(auto["network_policy"].get("allowed_domains", ())),
    )


async def check_containers(tools: Sequence[Shown], *, principal: Principal) -> None:
    """Raise the API error of a request whose containers or files cannot be used.

    The request is rejected if no sandbox service is available, or if a container or file is unknown.
    """
    for request in container_requests(tools):
        await services.check_sandbox(request.memory, param=request.param, memory_param=f"{request.param}.memory_limit")
        await in_db_thread(partial(_check_request, request, principal))
        await _find_skills(request, principal.team_id, waits=False)


def _check_request(request: ContainerRequest, principal: Principal) -> None:
    if request.container_id is not None:
        with scope.team(principal.team_id):
            access.get_running_container(principal=principal, container_id=request.container_id, param=request.param)
    services.find_files(team_id=principal.team_id, file_ids=request.file_ids, param=f"{request.param}.file_ids")


async def _find_skills(request: ContainerRequest, team_id: str, *, waits: bool) -> list[MountableSkill]:
    return await find_mountable(team_id=team_id, skills=request.skills, param=f"{request.param}.skills", waits=waits)


class RunContainer:
    """Container of one run, shared by one or several tools.

    The id is fixed before the container exists, because the item of the first call already shows it.
    """

    def __init__(self, request: ContainerRequest, *, team_id: str, key_id: str | None) -> None:
        self._request = request
        self._team_id = team_id
        self._key_id = key_id
        self._lock = asyncio.Lock()
        self._container: Container | None = None
        self._reuse_decided = False
        self.container_id = request.container_id or container_id()
        self.sandbox_info: SandboxInfo | None = None
        self._skills: Sequence[Mapping[str, str]] = ()
        self._domains: Sequence[str] = request.domains

    @property
    def network(self) -> str:
        """Sentence that tells the model which hosts it can reach."""
        if not self._domains:
            return "There is no network access."
        return f"Only these hosts can be reached, over https: {', '.join(self._domains)}."

    @property
    def skill_instructions(self) -> str:
        """Text that tells the model which skills the container has; empty if there are none."""
        return instructions(self._skills)

    async def reuse_recent(self, items: Iterable[StoredItem]) -> None:
        """Choose the most recent usable container of these items; without one, a new container is created later."""
        if self._reuse_decided:
            return
        self._reuse_decided = True
        try:
            self.sandbox_info = await services.service().info()
        except SandboxUnavailable:
            return  # The first call reports the error to the model.
        await self._read_properties()
        used = [found for item in items if (found := _container_id_of(item)) is not None]
        if self._request.container_id is None and used:
            last = await in_db_thread(lambda: self._most_recent(used))
            self.container_id = last or self.container_id

    async def _read_properties(self) -> None:
        if self._request.container_id is None:
            # A skill that was deleted since the request was accepted is reported by the first call.
            with suppress(ApiError):
                self._skills = [skill.shown() for skill in await _find_skills(self._request, self._team_id, waits=True)]
            return

        def find() -> Container | None:
            with scope.team(self._team_id):
                return selectors.find_container(team_id=self._team_id, container_id=self.container_id)

        row = await in_db_thread(find)
        if row is not None:
            self._skills, self._domains = row.skills, row.allowed_domains

    def _most_recent(self, used: Sequence[str]) -> str | None:
        with scope.team(self._team_id):
            for name in dict.fromkeys(reversed(used)):
                found = selectors.find_container(team_id=self._team_id, container_id=name)
                is_alike = found and (found.memory_limit, tuple(found.allowed_domains)) == (
                    self._request.memory,
                    self._request.domains,
                )
                if found and is_alike and found.runs_at(now()):
                    return found.pk
        return None

    async def run(self, code: str, *, effect_id: str) -> ContainerExecution:
        """Execute Python code. Raises ApiError or SandboxUnavailable."""
        return await self._execute(
            lambda client, name: client.run(name, code, seconds=self.seconds, effect_id=effect_id)
        )

    async def shell(self, command: str, *, seconds: float | None, effect_id: str) -> ContainerExecution:
        """Execute a shell command; `seconds` is the client's time limit. Raises ApiError or SandboxUnavailable."""
        most = self.seconds if seconds is None else min(seconds, self.seconds)
        return await self._execute(lambda client, name: client.shell(name, command, seconds=most, effect_id=effect_id))

    @property
    def seconds(self) -> int:
        """Time limit of one call in seconds."""
        return self.sandbox_info.seconds if self.sandbox_info else 60

    async def _execute(
        self, operation: Callable[[SandboxClient, str], Awaitable[ExecutionResult]]
    ) -> ContainerExecution:
        # One call at a time: tools that share the container must not create it twice.
        async with self._lock:
            container = self._container = self._container or await self._find_or_create()
            try:
                return await services.execute(container, lambda client: operation(client, container.pk))
            except ContainerExpired:
                # The next call gets a new container, unless the request names one.
                self._container = None
                if self._request.container_id is None:
                    self.container_id = container_id()
                raise

    async def _find_or_create(self) -> Container:
        def look() -> tuple[Container | None, list[Any]]:
            with scope.team(self._team_id):
                row = selectors.find_container(team_id=self._team_id, container_id=self.container_id)
            ids = self._request.file_ids
            return row, services.find_files(team_id=self._team_id, file_ids=ids, param="file_ids")

        row, files = await in_db_thread(look)
        skills = await _find_skills(self._request, self._team_id, waits=True)
        if row is None:
            if self._request.container_id is not None:
                raise selectors.unknown_container(self.container_id)
            spec = ContainerSpec(
                name=_CONTAINER_NAME,
                memory=self._request.memory,
                files=files,
                skills=skills,
                domains=self._request.domains,
            )
            return await services.create_container(
                team_id=self._team_id, key_id=self._key_id, spec=spec, name=self.container_id
            )
        if not row.runs_at(now()):
            raise ContainerExpired
        await services.mount_skills(container=row, skills=skills)
        for file in files:
            await services.put_file(container=row, file=file)
        return row


def run_containers(
    tools: Sequence[Shown], *, team_id: str, key_id: str | None
) -> list[tuple[ContainerRequest, RunContainer]]:
    """Return the container of each tool. Tools that do not name a container share one if their network policy agrees.

    The shared container gets the largest memory limit, and the files and skills of all its tools.
    """
    found = container_requests(tools)
    # Shared, so that the shell sees the files of the code interpreter.
    shared: dict[tuple[str, ...], RunContainer] = {}
    for domains in {request.domains for request in found if request.container_id is None}:
        alike = [request for request in found if request.container_id is None and request.domains == domains]
        wanted = replace(
            alike[0],
            memory=max((request.memory for request in alike), key=lambda size: int(size.removesuffix("g"))),
            file_ids=[*dict.fromkeys(file_id for request in alike for file_id in request.file_ids)],
            skills=[skill for request in alike for skill in request.skills],
        )
        shared[domains] = RunContainer(wanted, team_id=team_id, key_id=key_id)
    return [
        (
            request,
            shared[request.domains]
            if request.container_id is None
            else RunContainer(request, team_id=team_id, key_id=key_id),
        )
        for request in found
    ]


def _container_id_of(item: StoredItem) -> str | None:
    match item:
        case CodeInterpreterCall():
            return item.container_id
        case ShellCall() if item.environment is not None and item.environment.type == "container_reference":
            return item.environment.container_id
    return None


def error_text(error: Exception) -> str:
    """Return the message that the model reads about a call that could not be made."""
    if isinstance(error, ContainerExpired):
        return "error: the container has expired and its contents are lost"
    return f"error: {error.message if isinstance(error, ApiError) else error}"


def file_references(execution: ContainerExecution) -> list[dict[str, Any]]:
    """Return the created, changed and removed files for the item of a call, at most 200."""
    # Removed files are listed too, so that their earlier versions are no longer cited.
    found = [(file, False) for file in execution.files] + [(file, True) for file in execution.removed]
    return [
        {"container_id": execution.container_id, "file_id": file.pk, "path": file.path, "gone": gone}
        for file, gone in found[:_MAX_FILES]
    ]
