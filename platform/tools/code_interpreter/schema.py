"""Tools that run in containers on the server: the code interpreter and the hosted shell."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from typing_extensions import override

from containers.policy import NetworkPolicy, check_policy, public_policy
from core.http.validation import ContainerId, FileId
from core.http.wire import BY_TYPE, TAG, Wire
from responses.schema.tools import Callers, LocalShellEnvironment, ToolParam, present
from skills.schema import Skills

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
MAX_FILES = 50


class _Auto(Wire):
    file_ids: Annotated[list[FileId], Field(max_length=MAX_FILES)] | None = None
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None

    def _shown(self) -> dict[str, Any]:
        return {
            "file_ids": self.file_ids or [],
            "memory_limit": self.memory_limit or "1g",
            "network_policy": public_policy(check_policy(self.network_policy, param="network_policy")),
        }


class AutoContainer(_Auto):
    """Configuration for a code interpreter container. Optionally specifies the ids of files to run the code on."""

    type: Literal["auto"]

    def shown(self) -> dict[str, Any]:
        """Return the container as the response shows it."""
        return {"type": self.type, **self._shown()}


class AutoEnvironment(_Auto):
    """A container that is created automatically for the shell."""

    type: Literal["container_auto"]
    skills: Skills | None = None

    def shown(self) -> dict[str, Any]:
        """Return the environment as the response shows it."""
        # Returned only to clients that sent skills.
        skills = [skill.model_dump(exclude_none=True) for skill in self.skills or ()]
        return {"type": self.type, **self._shown(), **({"skills": skills} if skills else {})}


class ReferencedEnvironment(Wire):
    """A container created with `POST /v1/containers`."""

    type: Literal["container_reference"]
    container_id: ContainerId

    def shown(self) -> dict[str, Any]:
        """Return the environment as the response shows it."""
        return self.model_dump()


class CodeInterpreterParam(ToolParam):
    """A tool that runs Python code to help generate a response to a prompt."""

    type: Literal["code_interpreter"]
    container: Annotated[
        Annotated[ContainerId, Tag(f"{TAG}id")] | Annotated[AutoContainer, Tag(f"{TAG}auto")],
        # Everything else is validated as the id of a container.
        Discriminator(lambda value: f"{TAG}{'auto' if isinstance(value, dict | AutoContainer) else 'id'}"),
    ]
    allowed_callers: Callers | None = None

    @property
    @override
    def only_one(self) -> str:
        return "code interpreter"

    @override
    def check(self, tools: Sequence[ToolParam], *, param: str) -> None:
        _check_container(self.container, param=f"{param}.container")

    @override
    def shown(self) -> dict[str, Any]:
        container = self.container if isinstance(self.container, str) else self.container.shown()
        # Returned only to clients that sent it.
        sent = {} if self.allowed_callers is None else {"allowed_callers": self.allowed_callers}
        return {"type": self.type, "container": container, **sent}


class AnyShellParam(ToolParam):
    """A tool that allows the model to execute shell commands, on the client's machine or in a container."""

    type: Literal["shell"]
    environment: Annotated[LocalShellEnvironment | AutoEnvironment | ReferencedEnvironment, BY_TYPE] | None = None
    allowed_callers: Callers | None = None

    @override
    def shown(self) -> dict[str, Any]:
        match self.environment:
            case None:
                environment: dict[str, Any] = {"type": "local"}
            case LocalShellEnvironment() as local:
                environment = local.model_dump(exclude_none=True)
            case hosted:
                environment = hosted.shown()
        return {"type": "shell", "environment": environment, **present(allowed_callers=self.allowed_callers)}

    @override
    def check(self, tools: Sequence[ToolParam], *, param: str) -> None:
        _check_container(self.environment, param=f"{param}.environment")


def _check_container(container: object, *, param: str) -> None:
    if isinstance(container, AutoContainer | AutoEnvironment):
        check_policy(container.network_policy, param=f"{param}.network_policy")
