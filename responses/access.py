"""The door for responses: an object enters with the principal that asks for it, or not at all.

An unknown id, another team's id and an id whose content was not stored get the same answer.
"""

from kernel.errors import BadRequest, NotFound, PreviousResponseNotFound
from responses import selectors
from responses.engine.events import Body
from responses.models import RUNNING, Response
from tenants.principal import Principal


def get_response(*, principal: Principal, response_id: str) -> Response:
    """A stored response of the caller's team, or the 404 of an unknown id."""
    response = find_response(team_id=principal.team_id, response_id=response_id)
    if response is None:
        raise NotFound(f"Response with id '{response_id}' not found.")
    return response


def get_chain(*, principal: Principal, response_id: str) -> list[Body]:
    """The items of the chain that ends with a response, or the 400 of an unknown or unfinished one."""
    found = None if "\x00" in response_id else selectors.chain(team_id=principal.team_id, response_id=response_id)
    if found is None:
        raise PreviousResponseNotFound(response_id)
    if found.status in RUNNING:
        message = f"Previous response with id '{response_id}' is not finished yet."
        raise BadRequest(message, param="previous_response_id")
    return found.items


def find_response(*, team_id: str, response_id: str) -> Response | None:
    """A stored response of a team."""
    # PostgreSQL refuses NUL in a parameter; no id has one.
    if "\x00" in response_id:
        return None
    return Response.objects.filter(pk=response_id, team_id=team_id, stored=True).first()
