"""Reads of containers and their files, and their JSON representations."""

from containers import objects
from containers.models import Container, ContainerFile
from containers.policy import public_policy
from core.clock import now, unix
from core.errors import NotFound
from core.http.pagination import Page, PageRequest, keyset


def list_containers(*, team_id: str, name: str | None, page: PageRequest) -> Page[Container]:
    """List a team's containers by creation time, including expired ones."""
    rows = Container.objects.filter(team_id=team_id)
    if name is not None:
        rows = rows.filter(name=name)
    return keyset(
        rows,
        page=page,
        find=lambda cursor: find_container(team_id=team_id, container_id=cursor),
        unknown=unknown_container,
    )


def find_container(*, team_id: str, container_id: str) -> Container | None:
    """Return a team's container, expired or not, or None."""
    return Container.objects.filter(pk=container_id, team_id=team_id).first()


def list_container_files(*, container: Container, page: PageRequest) -> Page[ContainerFile]:
    """List the files of a container by creation time."""
    return keyset(
        ContainerFile.objects.filter(container=container),
        page=page,
        find=lambda cursor: find_container_file(container=container, file_id=cursor),
        unknown=unknown_container_file,
    )


def find_container_file(*, container: Container, file_id: str) -> ContainerFile | None:
    """Return a file of a container, or None."""
    return ContainerFile.objects.filter(pk=file_id, container=container).first()


def unknown_container(container_id: str, *, param: str | None = None) -> NotFound:
    """Return the error for an unknown container, also used for containers of other teams."""
    return NotFound(f"Container with id '{container_id}' not found.", param=param)


def unknown_container_file(file_id: str, *, param: str | None = None) -> NotFound:
    """Return the error for a file that is not in the container."""
    return NotFound(f"Container file with id '{file_id}' not found.", param=param)


def public_container(container: Container) -> objects.Container:
    """Return the container as the API shows it."""
    return {
        "id": container.pk,
        "object": "container",
        "created_at": unix(container.created_at),
        "status": "running" if container.runs_at(now()) else "expired",
        "expires_after": {"anchor": "last_active_at", "minutes": container.idle_minutes},
        "last_active_at": unix(container.last_active_at),
        "memory_limit": container.memory_limit,
        "name": container.name,
        "network_policy": public_policy(container.allowed_domains),
    }


def public_container_file(file: ContainerFile) -> objects.ContainerFile:
    """Return the file as the API shows it."""
    return {
        "id": file.pk,
        "object": "container.file",
        "created_at": unix(file.created_at),
        "bytes": file.size,
        "container_id": file.container_id,
        "path": file.path,
        "source": file.source,
    }
