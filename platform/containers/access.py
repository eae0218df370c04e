"""Access to containers and their files: the only place where objects are looked up for a caller."""

from containers import selectors
from containers.models import Container, ContainerFile
from core.clock import now
from core.errors import ContainerExpired
from tenants.principal import Principal


def get_container(*, principal: Principal, container_id: str, param: str | None = None) -> Container:
    """Return a container of the caller's team. Raises NotFound for an unknown id or another team's id."""
    found = selectors.find_container(team_id=principal.team_id, container_id=container_id)
    if found is None:
        raise selectors.unknown_container(container_id, param=param)
    return found


def get_running_container(*, principal: Principal, container_id: str, param: str | None = None) -> Container:
    """Return a container that can be used. Raises ContainerExpired if it has expired."""
    found = get_container(principal=principal, container_id=container_id, param=param)
    if not found.runs_at(now()):
        raise ContainerExpired(param=param)
    return found


def get_container_file(*, container: Container, file_id: str) -> ContainerFile:
    """Return a file of a container that this module has returned. Raises NotFound for an unknown id."""
    found = selectors.find_container_file(container=container, file_id=file_id)
    if found is None:
        raise selectors.unknown_container_file(file_id)
    return found
