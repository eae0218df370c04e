"""Tools that run in containers of the server's: the code interpreter and the hosted shell.

Source: section 3.2 of the API surface specification.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from conversations.items import Wire, by_type
from kernel.errors import InvalidValue, UnsupportedParameter
from kernel.validation import TAG
from responses.schema.mcp import McpToolParam

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
MAX_FILES = 50
_ContainerId = Annotated[str, Field(min_length=1, max_length=128)]


class NetworkPolicy(Wire):
    """What can be reached from inside."""

    type: Literal["disabled", "allowlist"]
    allowed_domains: list[str] | None = None
    domain_secrets: list[dict[str, Any]] | None = Field(default=None, repr=False)


class _Auto(Wire):
    """A container that is made when it is needed."""

    file_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=MAX_FILES)] | None = None
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None

    def _shown(self) -> dict[str, Any]:
        return {
            "file_ids": self.file_ids or [],
            "memory_limit": self.memory_limit or "1g",
            "network_policy": {"type": "disabled"},
        }


class AutoContainer(_Auto):
    """The container of a code interpreter."""

    type: Literal["auto"]

    def shown(self) -> dict[str, Any]:
        """As the response echoes it."""
        return {"type": self.type, **self._shown()}


class AutoEnvironment(_Auto):
    """The container of a shell."""

    type: Literal["container_auto"]
    skills: list[dict[str, Any]] | None = None

    def shown(self) -> dict[str, Any]:
        """As the response echoes it."""
        return {"type": self.type, **self._shown()}


class ReferencedEnvironment(Wire):
    """A container that the client has made before."""

    type: Literal["container_reference"]
    container_id: _ContainerId

    def shown(self) -> dict[str, Any]:
        """As the response echoes it."""
        return self.model_dump()


def _shape(value: Any) -> str:
    return f"{TAG}auto" if isinstance(value, dict | AutoContainer) else f"{TAG}id"


class CodeInterpreterParam(Wire):
    """Python that runs on the server."""

    type: Literal["code_interpreter"]
    container: Annotated[
        Annotated[_ContainerId, Tag(f"{TAG}id")] | Annotated[AutoContainer, Tag(f"{TAG}auto")],
        Discriminator(_shape),
    ]
    allowed_callers: list[Literal["direct", "programmatic"]] | None = None

    def shown(self) -> dict[str, Any]:
        """The tool as the response object echoes it."""
        container = self.container if isinstance(self.container, str) else self.container.shown()
        sent = {} if self.allowed_callers is None else {"allowed_callers": self.allowed_callers}
        return {"type": self.type, "container": container, **sent}


HostedEnvironment = Annotated[
    Annotated[AutoEnvironment, Tag(f"{TAG}container_auto")]
    | Annotated[ReferencedEnvironment, Tag(f"{TAG}container_reference")],
    Discriminator(by_type),
]
"""Where a shell of the server's runs."""


def is_built_in(tool: Any) -> bool:
    """Whether an `mcp` tool names the code interpreter instead of a server."""
    return isinstance(tool, McpToolParam) and tool.built_in


def check_container(container: Any, *, param: str) -> None:
    """What OpenAI's containers can do, and the server's cannot."""
    if not isinstance(container, AutoContainer | AutoEnvironment):
        return
    if container.network_policy is not None and container.network_policy.type != "disabled":
        message = "Containers on this server have no network access: 'network_policy' must be 'disabled'."
        raise UnsupportedParameter(message, param=f"{param}.network_policy")
    if isinstance(container, AutoEnvironment) and container.skills:
        raise UnsupportedParameter("Skills are not supported by this server.", param=f"{param}.skills")


def check_code_tools(tools: Sequence[Any], *, param: str) -> None:
    """There is one code interpreter at most, under whichever name."""
    places = [index for index, tool in enumerate(tools) if isinstance(tool, CodeInterpreterParam) or is_built_in(tool)]
    if len(places) > 1:
        raise InvalidValue("Invalid 'tools': the code interpreter stands in it twice.", param=f"{param}[{places[1]}]")
