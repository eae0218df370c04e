"""Asking again what a response was the answer to."""

from typing import Any

import pytest

from kernel.errors import BadRequest
from responses import again
from responses.models import Response
from tenants import scope
from tests.admin.rows import add_response
from tests.support.api import Api, Caller


def made(caller: Caller, api: Api, **body: Any) -> Response:
    """A response that the API made of this request."""
    answer = api.post("/v1/responses", key=caller.secret, json=body)
    assert answer.status_code == 200, answer.text
    with scope.team(caller.team.pk):
        return Response.objects.get(pk=answer.json()["id"])


def request_of(response: Response) -> dict[str, Any]:
    with scope.team(response.team_id):
        return again.request_of(response)


def test_what_was_not_stored_cannot_be_asked_again(caller: Caller) -> None:
    with pytest.raises(BadRequest, match="not stored"):
        request_of(add_response(caller, stored=False))
