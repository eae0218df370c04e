"""The door for containers and their files: an object enters with the principal that asks for it, or not at all."""

from kernel.clock import now
from kernel.errors import ContainerExpired
from responses.containers import selectors
from responses.containers.models import Container, ContainerFile
from tenants.principal import Principal


def get_container(*, principal: Principal, container_id: str, param: str | None = None) -> Container:
    """A container of the caller's team, or the 404 of an unknown id."""
    found = selectors.find_container(team_id=principal.team_id, container_id=container_id)
    if found is None:
        raise selectors.unknown_container(container_id, param=param)
    return found


def get_running_container(*, principal: Principal, container_id: str, param: str | None = None) -> Container:
    """The same of one that can be used; what has expired is told so."""
    found = get_container(principal=principal, container_id=container_id, param=param)
    if not found.runs_at(now()):
        raise ContainerExpired(param=param)
    return found


def get_container_file(*, container: Container, file_id: str) -> ContainerFile:
    """A file of a container that has come in through this door, or the 404 of an unknown id."""
    found = selectors.find_container_file(container=container, file_id=file_id)
    if found is None:
        raise selectors.unknown_container_file(file_id)
    return found
