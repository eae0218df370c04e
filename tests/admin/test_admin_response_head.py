"""The head of the page of a response: its ids, its figures, and the buttons that fit who looks and what it is."""

from decimal import Decimal

import pytest
from django.test import Client

from responses.models import Response, Status
from tests.admin.rows import add_response, page_of, text
from tests.support.api import Caller

BUTTONS = ("Cancel", "Retry as new", "Delete", "Open in playground", "Copy as curl", "Copy as Python")


@pytest.fixture
def response(caller: Caller) -> Response:
    """A response that has ended."""
    return add_response(caller)


def buttons(client: Client, response: Response) -> list[str]:
    """Those that the head offers."""
    head = text(client.get(page_of(response))).partition("c-head-deeds")[2].partition("<dl")[0]
    return [name for name in BUTTONS if f"{name}<" in head]


def test_who_makes_responses_may_do_everything_that_fits(lead: Client, developer: Client, response: Response) -> None:
    for client in (lead, developer):
        assert buttons(client, response) == list(BUTTONS[1:])


def test_one_that_runs_can_be_cancelled_and_not_asked_again(lead: Client, caller: Caller) -> None:
    offered = buttons(lead, add_response(caller, status=Status.IN_PROGRESS))
    assert ("Cancel" in offered, "Retry as new" in offered) == (True, False)


def test_who_only_looks_has_no_buttons(auditor: Client, platform_auditor: Client, response: Response) -> None:
    for client in (auditor, platform_auditor):
        assert buttons(client, response) == []


def test_an_operator_cancels_and_copies_nothing(operator: Client, caller: Caller) -> None:
    assert buttons(operator, add_response(caller, status=Status.IN_PROGRESS)) == ["Cancel"]


def test_nothing_can_be_copied_of_what_was_not_stored(lead: Client, caller: Caller) -> None:
    assert buttons(lead, add_response(caller, stored=False, parameters={})) == ["Delete"]


def test_the_playground_opens_with_it(lead: Client, response: Response) -> None:
    assert f"/admin/playground/?from={response.pk}" in text(lead.get(page_of(response)))


def test_every_id_can_be_copied_and_those_that_have_a_page_lead_there(lead: Client, caller: Caller) -> None:
    before = add_response(caller)
    ids = {"conversation_id": "conv_1", "client_request_id": "mine-7", "previous_response_id": before.pk}
    response = add_response(caller, **ids)
    page = text(lead.get(page_of(response)))
    for name in (response.pk, response.request_id, *ids.values()):
        assert f'aria-label="Copy {name}"' in page, name
    assert f'href="{page_of(before)}"' in page
    assert 'href="/admin/conversations/conversation/conv_1/change/"' in page


def test_what_it_cost_is_among_the_figures(lead: Client, caller: Caller) -> None:
    page = text(lead.get(page_of(add_response(caller, cost=Decimal("0.0125")))))
    assert "$0.0125" in page
