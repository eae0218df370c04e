"""Reads: containers and their files, as they are stored and as the wire shows them."""

from typing import Any

from kernel.clock import now, unix
from kernel.errors import NotFound
from kernel.pagination import Page, PageRequest, Position, keyset
from responses.containers.models import Container, ContainerFile


def list_containers(*, team_id: str, name: str | None, page: PageRequest) -> Page[Container]:
    """A team's containers, by time; those that have expired too."""
    rows = Container.objects.filter(team_id=team_id)
    if name is not None:
        rows = rows.filter(name=name)

    def position(container_id: str, param: str) -> Position:
        found = find_container(team_id=team_id, container_id=container_id)
        if found is None:
            raise unknown_container(container_id, param=param)
        return found.created_at, found.pk

    return keyset(rows, page=page, position=position)


def find_container(*, team_id: str, container_id: str) -> Container | None:
    """A team's container, expired or not."""
    # PostgreSQL refuses NUL in a parameter; no id has one.
    if "\x00" in container_id:
        return None
    return Container.objects.filter(pk=container_id, team_id=team_id).first()


def list_container_files(*, container: Container, page: PageRequest) -> Page[ContainerFile]:
    """The files of a container, by time."""

    def position(file_id: str, param: str) -> Position:
        found = find_container_file(container=container, file_id=file_id)
        if found is None:
            raise unknown_container_file(file_id, param=param)
        return found.created_at, found.pk

    return keyset(ContainerFile.objects.filter(container=container), page=page, position=position)


def find_container_file(*, container: Container, file_id: str) -> ContainerFile | None:
    """A file of a container."""
    return None if "\x00" in file_id else ContainerFile.objects.filter(pk=file_id, container=container).first()


def unknown_container(container_id: str, *, param: str | None = None) -> NotFound:
    """The 404 for a container that does not exist, or not for the caller."""
    return NotFound(f"Container with id '{container_id}' not found.", param=param)


def unknown_container_file(file_id: str, *, param: str | None = None) -> NotFound:
    """The 404 for a file that is not in the container."""
    return NotFound(f"Container file with id '{file_id}' not found.", param=param)


def public_container(container: Container) -> dict[str, Any]:
    """The container object of the wire."""
    return {
        "id": container.pk,
        "object": "container",
        "created_at": unix(container.created_at),
        "status": "running" if container.runs_at(now()) else "expired",
        "expires_after": {"anchor": "last_active_at", "minutes": container.idle_minutes},
        "last_active_at": unix(container.last_active_at),
        "memory_limit": container.memory_limit,
        "name": container.name,
        "network_policy": {"type": "disabled"},
    }


def public_container_file(file: ContainerFile) -> dict[str, Any]:
    """The file object of the wire."""
    return {
        "id": file.pk,
        "object": "container.file",
        "created_at": unix(file.created_at),
        "bytes": file.size,
        "container_id": file.container_id,
        "path": file.path,
        "source": file.source,
    }
