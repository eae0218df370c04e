"""Head of the response page: ids, figures, and buttons by role and status."""

from decimal import Decimal

import pytest
from django.test import Client

from responses.models import Response, Status
from tests.admin.rows import add_response, page_url, text
from tests.support.api import Caller

BUTTONS = ("Cancel", "Retry as new", "Delete", "Open in playground", "Copy as curl", "Copy as Python")


@pytest.fixture
def response(caller: Caller) -> Response:
    """A response that has ended."""
    return add_response(caller)


def buttons(client: Client, response: Response) -> list[str]:
    """Return the names of the buttons in the head."""
    head = text(client.get(page_url(response))).partition("c-head-actions")[2].partition("<dl")[0]
    return [name for name in BUTTONS if f"{name}<" in head]


def test_leads_and_developers_see_every_applicable_button(lead: Client, developer: Client, response: Response) -> None:
    for client in (lead, developer):
        assert buttons(client, response) == list(BUTTONS[1:])


def test_a_running_response_can_be_cancelled_but_not_retried(lead: Client, caller: Caller) -> None:
    offered = buttons(lead, add_response(caller, status=Status.IN_PROGRESS))
    assert ("Cancel" in offered, "Retry as new" in offered) == (True, False)


def test_auditors_see_no_buttons(auditor: Client, platform_auditor: Client, response: Response) -> None:
    for client in (auditor, platform_auditor):
        assert buttons(client, response) == []


def test_an_operator_sees_only_the_cancel_button(operator: Client, caller: Caller) -> None:
    assert buttons(operator, add_response(caller, status=Status.IN_PROGRESS)) == ["Cancel"]


def test_an_unstored_response_can_only_be_deleted(lead: Client, caller: Caller) -> None:
    assert buttons(lead, add_response(caller, stored=False, parameters={})) == ["Delete"]


def test_the_head_links_to_the_playground(lead: Client, response: Response) -> None:
    assert f"/admin/playground/?from={response.pk}" in text(lead.get(page_url(response)))


def test_every_id_can_be_copied_and_is_linked_if_it_has_a_page(lead: Client, caller: Caller) -> None:
    before = add_response(caller)
    ids = {"conversation_id": "conv_1", "client_request_id": "mine-7", "previous_response_id": before.pk}
    response = add_response(caller, **ids)
    page = text(lead.get(page_url(response)))
    for name in (response.pk, response.request_id, *ids.values()):
        assert f'aria-label="Copy {name}"' in page, name
    assert f'href="{page_url(before)}"' in page
    assert 'href="/admin/conversations/conversation/conv_1/change/"' in page


def test_the_cost_is_shown(lead: Client, caller: Caller) -> None:
    page = text(lead.get(page_url(add_response(caller, cost=Decimal("0.0125")))))
    assert "$0.0125" in page
