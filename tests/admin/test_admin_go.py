"""Go to ID: an id redirects to the page of its object, if the user may see it."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from containers.models import Container, ContainerFile
from conversations.models import Conversation, File, Item, Placement, Section, Upload
from core.clock import now
from core.ids import new_id
from responses.models import ChatCompletion, PromptTemplate, PromptVersion
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreBatch
from responses.webhooks.models import WebhookDelivery, WebhookEndpoint
from skills.models import Skill, SkillVersion
from tenants import scope
from tenants.models import UsageRecord
from tests.admin.rows import add_call, add_items, add_response, assistant_message, page_url, text
from tests.support.api import Caller
from tests.support.site_client import SiteClient


def target_of(client: Client, requested_id: str) -> str | None:
    """Return where an id redirects to; None for 404."""
    answer = client.get(f"/admin/go/{requested_id}")
    return answer["Location"] if answer.status_code == 302 else None


def page(name: str, key: Any) -> str:
    """Return the URL of a row's page."""
    return reverse(f"admin:{name}_change", args=[key])


@pytest.fixture
def targets(caller: Caller) -> dict[str, str]:
    """One object of each kind: ids and the URLs they redirect to."""
    team = caller.team
    # A worker that another test started removes expired objects.
    tomorrow = now() + timedelta(days=1)
    with scope.team(team.pk):
        file = File.objects.create(
            team=team, filename="a.txt", purpose="user_data", content_type="text/plain", size=3, sha256="0" * 64,
            state="ready",
        )  # fmt: skip
        upload = Upload.objects.create(
            team=team,
            filename="a",
            purpose="user_data",
            content_type="text/plain",
            size=3,
            expires_at=tomorrow,
            file=file,
        )
        batch = Batch.objects.create(
            team=team, api_key=caller.key, endpoint="/v1/responses", completion_window="24h", input_file_id=file.pk,
            expires_at=tomorrow,
        )  # fmt: skip
        line = BatchLine.objects.create(team=team, batch=batch, position=0, custom_id="first")
        store = VectorStore.objects.create(team=team, name="manuals")
        files = VectorStoreBatch.objects.create(team=team, store=store)
        container = Container.objects.create(team=team, name="sums")
        inside = ContainerFile.objects.create(
            team=team, container=container, path="/mnt/data/a", size=1, changed=1, source="user"
        )
        skill = Skill.objects.create(team=team, name="sums", description="Add numbers.")
        version = SkillVersion.objects.create(team=team, skill=skill, number=1, archive=b"", archive_size=0, files=1)
        chat = ChatCompletion.objects.create(id=new_id("chatcmpl").replace("_", "-", 1), team=team, model="m")
        prompt = PromptTemplate.objects.create(team=team, name="greeting")
        PromptVersion.objects.create(team=team, prompt=prompt, number=1)
        endpoint = WebhookEndpoint.objects.create(team=team, name="orders", url="https://a.example/", secret="whsec_x")
        delivery = WebhookDelivery.objects.create(
            team=team, endpoint=endpoint, event_id=new_id("evt"), event_type="response.completed", object_id="resp_1"
        )
    return {
        file.pk: page("conversations_file", file.pk),
        upload.pk: page("conversations_file", file.pk),
        batch.pk: page("responses_batch", batch.pk),
        line.pk: page("responses_batch", batch.pk),
        store.pk: page("responses_vectorstore", store.pk),
        files.pk: page("responses_vectorstore", store.pk),
        container.pk: page("containers_container", container.pk),
        inside.pk: page("containers_container", container.pk),
        skill.pk: page("skills_skill", skill.pk),
        version.pk: page("skills_skill", skill.pk),
        chat.pk: page("responses_chatcompletion", chat.pk),
        prompt.pk: page("responses_prompttemplate", prompt.pk),
        endpoint.pk: page("responses_webhookendpoint", endpoint.pk),
        delivery.event_id: page("responses_webhookdelivery", delivery.pk),
        team.pk: page("tenants_team", team.pk),
        caller.key.pk: page("tenants_apikey", caller.key.pk),
        caller.key.prefix: page("tenants_apikey", caller.key.pk),
        f"{caller.key.prefix}…{caller.key.last_four}": page("tenants_apikey", caller.key.pk),
    }


def test_each_kind_of_id_redirects_to_its_page(developer: Client, admin: Client, targets: dict[str, str]) -> None:
    assert {requested_id: target_of(developer, requested_id) for requested_id in targets} == targets
    assert {requested_id: target_of(admin, requested_id) for requested_id in targets} == targets


def test_each_target_page_opens(developer: Client, targets: dict[str, str]) -> None:
    assert {url: developer.get(url).status_code for url in set(targets.values())} == dict.fromkeys(
        targets.values(), 200
    )


@pytest.mark.slow
def test_ids_of_another_team_do_not_redirect(stranger: Client, targets: dict[str, str]) -> None:
    assert {requested_id: target_of(stranger, requested_id) for requested_id in targets} == dict.fromkeys(targets)


def test_an_id_of_another_team_looks_like_an_unknown_id(stranger: Client, caller: Caller) -> None:
    there, nowhere = add_response(caller).pk, new_id("resp")
    answers = [stranger.get(f"/admin/go/{requested_id}") for requested_id in (there, nowhere)]
    assert [answer.status_code for answer in answers] == [404, 404]
    pages = [re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", text(answer)) for answer in answers]
    assert pages[0].replace(there, nowhere) == pages[1]
    assert "looks like the ID of a response" in pages[0]


def test_a_response_id_redirects_to_its_page(developer: Client, caller: Caller) -> None:
    response = add_response(caller)
    assert target_of(developer, response.pk) == page_url(response)


def test_an_item_redirects_to_its_place_in_a_response(developer: Client, operator: Client, caller: Caller) -> None:
    response = add_response(caller)
    item = new_id("msg")
    add_items(response, Section.OUTPUT, {**assistant_message("Hello."), "id": item})
    assert target_of(developer, item) == f"{page_url(response)}#{item}"
    assert target_of(operator, item) == f"{page_url(response)}#{item}"


def test_an_item_with_an_id_of_the_client_is_found(developer: Client, stranger: Client, caller: Caller) -> None:
    response = add_response(caller)
    add_items(response, Section.INPUT, {**assistant_message("Hello."), "id": "my-own-17"})
    assert target_of(developer, "my-own-17") == f"{page_url(response)}#my-own-17"
    assert target_of(stranger, "my-own-17") is None


def test_an_item_outside_a_response_redirects_to_its_conversation(developer: Client, caller: Caller) -> None:
    with scope.team(caller.team.pk):
        conversation = Conversation.objects.create(team=caller.team)
        body = {**assistant_message("Hello."), "id": new_id("msg")}
        item = Item.objects.create(team=caller.team, id=body["id"], type="message", body=body)
        Placement.objects.create(team=caller.team, owner=conversation.pk, section="items", position=0, item=item)
    place = f"/admin/conversations/conversation/{conversation.pk}/change/"
    assert target_of(developer, conversation.pk) == place
    assert target_of(developer, body["id"]) == f"{place}?item={body['id']}#{body['id']}"
    assert body["id"] in text(developer.get(place, {"item": body["id"]}))


def test_a_call_id_redirects_to_its_response(developer: Client, stranger: Client, caller: Caller) -> None:
    response = add_response(caller)
    for call_id in ("call_AbC123", "toolu_17"):
        add_call(response, call_id=call_id, turn=len(call_id))
        assert target_of(developer, call_id) == f"{page_url(response)}#{call_id}"
        assert target_of(stranger, call_id) is None


def test_a_request_id_redirects_to_its_response(
    developer: Client, admin: Client, stranger: Client, caller: Caller
) -> None:
    response = add_response(caller)
    assert [target_of(client, response.request_id) for client in (developer, admin)] == [page_url(response)] * 2
    assert target_of(stranger, response.request_id) is None


def test_an_unstored_completion_redirects_to_its_usage_record(developer: Client, caller: Caller) -> None:
    requested_id = new_id("chatcmpl").replace("_", "-", 1)
    with scope.team(caller.team.pk):
        row = UsageRecord.objects.create(
            team=caller.team, api_key=caller.key, endpoint="chat", object_id=requested_id, model="m", upstream_id="u",
            upstream_model="m", outcome="stop",
        )  # fmt: skip
    assert target_of(developer, requested_id) == page("tenants_usagerecord", row.pk)


def test_a_full_api_key_redirects_and_does_not_appear_in_the_answer(
    developer: Client, stranger: Client, caller: Caller
) -> None:
    assert target_of(developer, caller.secret) == page("tenants_apikey", caller.key.pk)
    answer = stranger.get(f"/admin/go/{caller.secret}")
    assert answer.status_code == 404
    assert caller.secret[-20:] not in text(answer)


@pytest.mark.parametrize(
    "requested_id", ["resp_", "conv_x", "req_zzz", "evt_1", "sk-", "nothing", "%3Cscript%3E", "x" * 400]
)
def test_an_invalid_id_is_not_found(admin: Client, requested_id: str) -> None:
    answer = admin.get(f"/admin/go/{requested_id}")
    assert answer.status_code == 404
    assert "<script>" not in text(answer).partition('id="content')[2].partition("</form>")[0]


def test_the_form_redirects_to_the_id(admin: Client) -> None:
    assert admin.get("/admin/go/").status_code == 200
    assert admin.get("/admin/go/", {"id": " resp_1 "})["Location"] == "/admin/go/resp_1"


def test_without_a_session_an_id_redirects_to_the_sign_in_page(caller: Caller) -> None:
    response = add_response(caller)
    assert SiteClient().get(f"/admin/go/{response.pk}")["Location"].startswith("/admin/login/")


def test_an_id_needs_at_most_25_queries(developer: Client, admin: Client, caller: Caller) -> None:
    response = add_response(caller)
    item = new_id("msg")
    add_items(response, Section.OUTPUT, {**assistant_message("Hello."), "id": item})
    for client in (developer, admin):
        for requested_id in (response.pk, item, response.request_id, "call_unknown", new_id("req")):
            with CaptureQueriesContext(connection) as queries:
                client.get(f"/admin/go/{requested_id}")
            assert len(queries) <= 25, (requested_id, [query["sql"] for query in queries])
