"""Access to responses and prompts by id: fetch them and check that they belong to the principal's team.

An unknown id, another team's id and the id of an unstored response get the same answer.
"""

from collections.abc import Mapping

from django.db.models import F
from django.db.models.expressions import BaseExpression

from core.errors import ApprovalAwaited, BadRequest, NotFound, PreviousResponseNotFound
from responses.models import IS_AWAITED, RUNNING, Decision, PromptVersion, Response
from responses.runs import selectors
from responses.runs.selectors import Chain
from tenants.principal import Principal

_MAX_DIGITS = 10


def get_response(
    *, principal: Principal, response_id: str, annotations: Mapping[str, BaseExpression] | None = None
) -> Response:
    """Return a stored response of the caller's team, with optional annotations. Raises `NotFound`."""
    responses = Response.objects.filter(pk=response_id, team_id=principal.team_id, stored=True)
    response = responses.annotate(**annotations or {}).first()
    if response is None:
        raise NotFound(f"Response with id '{response_id}' not found.")
    return response


def get_chain(*, principal: Principal, response_id: str) -> Chain:
    """Return the chain that ends with a response. Raises a 400 if it is unknown or has not ended."""
    found = selectors.chain(team_id=principal.team_id, response_id=response_id)
    if found is None:
        raise PreviousResponseNotFound(response_id)
    if found.status in RUNNING:
        awaited = Decision.objects.filter(IS_AWAITED, response_id=response_id).values_list("pk", flat=True).first()
        if awaited is not None:
            raise ApprovalAwaited(awaited, response_id=response_id, param="previous_response_id")
        raise BadRequest(
            f"Previous response with id '{response_id}' is not finished yet.", param="previous_response_id"
        )
    return found


def get_prompt_version(*, principal: Principal, prompt_id: str, version: str | None) -> PromptVersion:
    """Return a version of a prompt of the caller's team; by default the current one. Raises `NotFound`."""
    versions = PromptVersion.objects.filter(prompt_id=prompt_id, team_id=principal.team_id)
    number: F | int = F("prompt__current")
    if version is not None:
        # Versions start at 1, so 0 matches none.
        is_number = version.isascii() and version.isdigit() and len(version) < _MAX_DIGITS
        number = int(version) if is_number else 0
    found = versions.filter(number=number).first()
    if found is not None:
        return found
    if version is not None and versions.exists():
        raise NotFound(f"Prompt with id '{prompt_id}' has no version '{version}'.", param="prompt.version")
    raise NotFound(f"Prompt with id '{prompt_id}' not found.", param="prompt.id")
