"""The objects that the endpoints of `/v1/containers` return."""

from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from core.http.objects import Deleted, ListPage, UnixTime, one_of


class Container(TypedDict):
    """A container, in which the model's code runs."""

    id: str
    object: Literal["container"]
    created_at: UnixTime
    status: Literal["running", "expired"]
    expires_after: dict[str, Any]
    last_active_at: UnixTime
    memory_limit: Annotated[str, one_of("1g", "4g", "16g", "64g")]
    name: str
    network_policy: dict[str, Any]


class ContainerFile(TypedDict):
    """A file of a container."""

    id: str
    object: Literal["container.file"]
    created_at: UnixTime
    bytes: int
    container_id: str
    path: str
    source: Annotated[str, one_of("user", "assistant")]


ContainerList = ListPage[Container]
ContainerFileList = ListPage[ContainerFile]
DeletedContainer = Deleted[Container, Literal["container.deleted"]]
DeletedContainerFile = Deleted[ContainerFile, Literal["container.file.deleted"]]
