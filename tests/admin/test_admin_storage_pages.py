"""Pages of stored objects: batches, vector stores, files, containers and chat completions."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from containers.models import Container, ContainerFile
from conversations.models import File
from core.clock import now
from core.ids import new_id
from responses.models import ChatCompletion
from responses.models.batches import Batch, BatchLine
from responses.models.vector_stores import VectorStore, VectorStoreFile
from skills.models import Skill, SkillVersion
from tenants import scope
from tenants.models import AuditEvent
from tests.admin.rows import text
from tests.support.api import Caller

LISTS = (
    "/admin/responses/batch/",
    "/admin/responses/vectorstore/",
    "/admin/conversations/file/",
    "/admin/containers/container/",
    "/admin/skills/skill/",
    "/admin/responses/chatcompletion/",
)
SECRET = "the parcel is blue"


@pytest.fixture
def stored_objects(caller: Caller, no_worker: None) -> dict[str, str]:
    """One object of each kind, by the URL of its list. Workers would run the batch, whose file has no content."""
    team = caller.team
    with scope.team(team.pk):
        file = File.objects.create(
            team=team, filename="manual.txt", purpose="user_data", content_type="text/plain", size=3,
            sha256="0" * 64, state="ready",
        )  # fmt: skip
        batch = Batch.objects.create(
            team=team, api_key=caller.key, endpoint="/v1/responses", completion_window="24h", input_file_id=file.pk,
            expires_at=now() + timedelta(days=1), total=3, completed=1, failed=1, metadata={"topic": SECRET},
        )  # fmt: skip
        BatchLine.objects.create(team=team, batch=batch, position=0, custom_id="first-line", body=SECRET)
        store = VectorStore.objects.create(team=team, name="manuals", metadata={"topic": SECRET})
        VectorStoreFile.objects.create(team=team, store=store, file=file, chunks=7)
        container = Container.objects.create(team=team, name="sums")
        ContainerFile.objects.create(
            team=team, container=container, path="/mnt/data/out.csv", size=1, changed=1, source="assistant"
        )
        skill = Skill.objects.create(team=team, name="sums", description="Add numbers.")
        SkillVersion.objects.create(
            team=team, skill=skill, number=1, name="sums", archive=b"zip", archive_size=3, files=1
        )
        chat = ChatCompletion.objects.create(
            id=new_id("chatcmpl").replace("_", "-", 1), team=team, api_key=caller.key, model="m",
            messages=[{"role": "user", "content": SECRET}], body={"choices": []},
        )  # fmt: skip
    return dict(zip(LISTS, (batch.pk, store.pk, file.pk, container.pk, skill.pk, chat.pk), strict=True))


def pages_of(stored_objects: dict[str, str]) -> list[str]:
    """Return the URLs of the pages of the objects."""
    return [f"{address}{row_pk}/change/" for address, row_pk in stored_objects.items()]


@pytest.mark.slow
def test_each_list_links_its_rows(developer: Client, admin: Client, stored_objects: dict[str, str]) -> None:
    for client in (developer, admin):
        for address, row_pk in stored_objects.items():
            assert f"{address}{row_pk}/change/" in text(client.get(address)), address


def test_each_page_shows_its_details(developer: Client, stored_objects: dict[str, str]) -> None:
    expected = ["first-line", "manual.txt", "manuals", "/mnt/data/out.csv", "Add numbers.", SECRET]
    for address, words in zip(pages_of(stored_objects), expected, strict=True):
        assert words in text(developer.get(address)), address


@pytest.mark.slow
def test_another_team_cannot_see_stored_objects(stranger: Client, stored_objects: dict[str, str]) -> None:
    for address, row_pk in stored_objects.items():
        assert row_pk not in text(stranger.get(address))
        assert stranger.get(f"{address}{row_pk}/change/").status_code == 404
        assert f"{row_pk}/change/" not in text(stranger.get(address, {"q": row_pk}))


def test_stored_objects_are_read_only(admin: Client, stored_objects: dict[str, str]) -> None:
    for address, row_pk in stored_objects.items():
        assert admin.get(f"{address}add/").status_code == 403
        assert admin.post(f"{address}{row_pk}/change/", {}).status_code == 405
        assert admin.post(f"{address}{row_pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.slow
def test_content_is_hidden_until_it_is_revealed(
    operator: Client, auditor: Client, caller: Caller, stored_objects: dict[str, str]
) -> None:
    for client in (operator, auditor):
        for address in (*LISTS, *pages_of(stored_objects)):
            assert SECRET not in text(client.get(address)), address
        form = {"team": caller.team.pk, "reason": "a customer asks for it"}
        client.post("/admin/content/reveal/", form)
        assert SECRET in text(client.get(pages_of(stored_objects)[-1]))


def test_reading_a_chat_completion_is_audited(admin: Client, stored_objects: dict[str, str], caller: Caller) -> None:
    admin.get(pages_of(stored_objects)[-1])
    with scope.team(caller.team.pk):
        assert AuditEvent.objects.filter(action="content.viewed", target=stored_objects[LISTS[-1]]).count() == 1


@pytest.mark.slow
def test_a_list_can_be_searched_by_id(admin: Client, stored_objects: dict[str, str]) -> None:
    for address, row_pk in stored_objects.items():
        assert f"{row_pk}/change/" in text(admin.get(address, {"q": row_pk}))
        assert f"{row_pk}/change/" not in text(admin.get(address, {"q": "nothing"}))


@pytest.mark.slow
def test_lists_run_no_count_and_few_queries(
    admin: Client,
    stored_objects: dict[str, str],
    sql_of: Callable[..., str],
    count_queries: Callable[[Client, str], int],
) -> None:
    for address in LISTS:
        sql = sql_of(admin, address).upper()
        assert "COUNT(" not in sql, address
        assert count_queries(admin, address) <= 14, address


def test_the_page_of_a_batch_gives_the_reason_for_the_failure_of_its_files(
    lead: Client, caller: Caller, stored_objects: dict[str, str]
) -> None:
    batch_id, url = stored_objects[LISTS[0]], f"{LISTS[0]}{stored_objects[LISTS[0]]}/change/"
    assert "Next attempt" not in text(lead.get(url))
    with scope.team(caller.team.pk):
        Batch.objects.filter(pk=batch_id).update(
            file_failures=3, file_error="No space left on device", files_retry_at=now()
        )
    page = text(lead.get(url))
    assert "cannot be read or stored: No space left on device" in page
    assert "3 attempts" in page
    assert "Next attempt" in page
