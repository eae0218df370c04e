"""`/v1/containers`: made, listed, retrieved, deleted; who may, and what is refused."""

from datetime import timedelta

import pytest
from openai import OpenAI

from kernel.clock import now
from responses.containers import services
from responses.containers.models import Container
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, ok
from tests.support.sandboxes import Sandbox, fault


def make(api: Api, name: str = "work", **fields: object) -> dict[str, object]:
    return ok(api.post("/containers", {"name": name, **fields}))


def expire(container_id: object) -> None:
    with scope.every_team():
        assert Container.objects.filter(pk=container_id).update(last_active_at=now() - timedelta(minutes=21)) == 1


def test_a_container_is_made_as_the_sdk_knows_it(client: OpenAI, sandbox: Sandbox) -> None:
    made = client.containers.create(name="work", expires_after={"anchor": "last_active_at", "minutes": 5})
    found = client.containers.retrieve(made.id)
    assert found.model_dump() == made.model_dump()
    assert (made.object, made.status, made.memory_limit) == ("container", "running", "1g")
    assert made.expires_after is not None
    assert made.expires_after.minutes == 5
    client.containers.delete(made.id)
    assert client.containers.list().data == []


def test_a_list_is_narrowed_by_name_and_has_pages(api: Api, sandbox: Sandbox) -> None:
    ids = [make(api, name)["id"] for name in ("a", "b", "a")]
    assert [row["id"] for row in ok(api.get("/containers?name=a&order=asc"))["data"]] == [ids[0], ids[2]]
    page = ok(api.get(f"/containers?order=asc&limit=1&after={ids[0]}"))
    assert ([row["id"] for row in page["data"]], page["has_more"]) == ([ids[1]], True)


def test_one_that_nobody_used_is_expired(api: Api, sandbox: Sandbox) -> None:
    made = make(api)
    expire(made["id"])
    assert ok(api.get(f"/containers/{made['id']}"))["status"] == "expired"
    assert fault(api.get(f"/containers/{made['id']}/files"), 400)["code"] == "container_expired"


def test_it_is_forgotten_long_after_it_has_ended(api: Api, sandbox: Sandbox) -> None:
    old, young = make(api)["id"], make(api)["id"]
    with scope.every_team():
        Container.objects.filter(pk=old).update(last_active_at=now() - timedelta(days=31))
    assert services.delete_old_containers() >= 1
    assert api.get(f"/containers/{old}").status_code == 404
    assert ok(api.get(f"/containers/{young}"))["status"] == "running"


def test_deleting_ends_it_and_is_in_the_audit_log(api: Api, sandbox: Sandbox) -> None:
    made = make(api)
    ok(api.delete(f"/containers/{made['id']}"))
    assert fault(api.get(f"/containers/{made['id']}"), 404)["message"].endswith("not found.")
    with scope.every_team():
        assert AuditEvent.objects.filter(target=made["id"], action="container.deleted").count() == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"memory_limit": "2g"}, "memory_limit"),
        ({"memory_limit": "64g"}, "memory_limit"),
        ({"network_policy": {"type": "allowlist", "allowed_domains": ["example.com"]}}, "network_policy"),
        ({"skills": [{"type": "skill_reference", "skill_id": "skill_1"}]}, "skills"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 21}}, "expires_after.minutes"),
        ({"name": ""}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_it_cannot_have_is_refused_by_name(
    fields: dict[str, object], param: str, api: Api, sandbox: Sandbox
) -> None:
    assert fault(api.post("/containers", {"name": "work", **fields}), 400)["param"] == param


def test_unknown_files_are_told_by_their_place(api: Api, sandbox: Sandbox) -> None:
    answer = api.post("/containers", {"name": "work", "file_ids": ["file-nothing"]})
    assert fault(answer, 404)["param"] == "file_ids[0]"


def test_another_team_gets_the_answer_of_an_unknown_id(api: Api, outsider: Api, sandbox: Sandbox) -> None:
    made = make(api)
    for answer in (outsider.get(f"/containers/{made['id']}"), outsider.delete(f"/containers/{made['id']}")):
        assert fault(answer, 404)["message"] == f"Container with id '{made['id']}' not found."
    assert ok(outsider.get("/containers"))["data"] == []


def test_a_key_needs_the_scopes(make_api: MakeApi, sandbox: Sandbox) -> None:
    reader = make_api(scopes=["containers.read"])
    assert ok(reader.get("/containers"))["data"] == []
    assert fault(reader.post("/containers", {"name": "work"}), 403)["code"] == "insufficient_scope"
    assert fault(reader.delete("/containers/cntr_1"), 403)["code"] == "insufficient_scope"
    assert fault(make_api(scopes=["files.read"]).get("/containers"), 403)["code"] == "insufficient_scope"
