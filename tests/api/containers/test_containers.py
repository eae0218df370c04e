"""`/v1/containers`: creating, listing, retrieving and deleting; permissions and rejected options."""

from datetime import timedelta

import pytest
from openai import OpenAI

from containers import services
from containers.models import Container
from core.clock import now
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, ok
from tests.support.sandboxes import Sandbox, asked, fault
from tests.support.skills import inline, skill_files, zipped


def create(api: Api, name: str = "work", **fields: object) -> dict[str, object]:
    return ok(api.post("/containers", {"name": name, **fields}))


def expire(container_id: object) -> None:
    with scope.every_team():
        assert Container.objects.filter(pk=container_id).update(last_active_at=now() - timedelta(minutes=21)) == 1


def test_the_sdk_can_create_retrieve_and_delete_a_container(client: OpenAI, sandbox: Sandbox) -> None:
    created = client.containers.create(name="work", expires_after={"anchor": "last_active_at", "minutes": 5})
    found = client.containers.retrieve(created.id)
    assert found.model_dump() == created.model_dump()
    assert (created.object, created.status, created.memory_limit) == ("container", "running", "1g")
    assert created.expires_after is not None
    assert created.expires_after.minutes == 5
    client.containers.delete(created.id)
    assert client.containers.list().data == []


def test_containers_are_listed_in_pages_and_filtered_by_name(api: Api, sandbox: Sandbox) -> None:
    ids = [create(api, name)["id"] for name in ("a", "b", "a")]
    assert [row["id"] for row in ok(api.get("/containers?name=a&order=asc"))["data"]] == [ids[0], ids[2]]
    page = ok(api.get(f"/containers?order=asc&limit=1&after={ids[0]}"))
    assert ([row["id"] for row in page["data"]], page["has_more"]) == ([ids[1]], True)


def test_an_idle_container_expires(api: Api, sandbox: Sandbox) -> None:
    created = create(api)
    expire(created["id"])
    assert ok(api.get(f"/containers/{created['id']}"))["status"] == "expired"
    assert fault(api.get(f"/containers/{created['id']}/files"), 400)["code"] == "container_expired"


def test_an_expired_container_is_deleted_after_its_retention(api: Api, sandbox: Sandbox) -> None:
    old, young = create(api)["id"], create(api)["id"]
    with scope.every_team():
        Container.objects.filter(pk=old).update(last_active_at=now() - timedelta(days=31))
    assert services.delete_old_containers() >= 1
    assert api.get(f"/containers/{old}").status_code == 404
    assert ok(api.get(f"/containers/{young}"))["status"] == "running"


def test_deleting_stops_the_container_and_is_audited(api: Api, sandbox: Sandbox) -> None:
    created = create(api)
    ok(api.delete(f"/containers/{created['id']}"))
    assert fault(api.get(f"/containers/{created['id']}"), 404)["message"].endswith("not found.")
    with scope.every_team():
        assert AuditEvent.objects.filter(target=created["id"], action="container.deleted").count() == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"memory_limit": "2g"}, "memory_limit"),
        ({"memory_limit": "64g"}, "memory_limit"),
        ({"network_policy": {"type": "allowlist", "allowed_domains": ["example.com"]}}, "network_policy"),
        ({"skills": [{"type": "skill_reference", "skill_id": "skill_1", "version": "0"}]}, "skills[0].version"),
        ({"skills": [inline("sums", b"no zip")]}, "skills[0].source.data"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 21}}, "expires_after.minutes"),
        ({"name": ""}, "name"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_unsupported_options_are_rejected(fields: dict[str, object], param: str, api: Api, sandbox: Sandbox) -> None:
    assert fault(api.post("/containers", {"name": "work", **fields}), 400)["param"] == param


def test_skills_are_mounted_in_a_new_container(client: OpenAI, sandbox: Sandbox) -> None:
    skill = client.skills.create(files=list(skill_files(**{"lib/add.py": "print(40 + 2)"}).items()))
    described = inline("tables", zipped(skill_files("other", folder="x")), "Make tables.")
    created = client.containers.create(
        name="work", skills=[{"type": "skill_reference", "skill_id": skill.id}, described]
    )
    ran = asked(sandbox.client.shell(created.id, "cd /mnt/skills; python3 sums/lib/add.py; ls -d */*.md", seconds=60))
    assert ran.stdout == "42\nsums/SKILL.md\ntables/SKILL.md\n"
    # They do not appear in the container's list of files.
    assert client.containers.files.list(created.id).data == []


def test_another_teams_skill_cannot_be_mounted(api: Api, outsider: Api, client: OpenAI, sandbox: Sandbox) -> None:
    skill = client.skills.create(files=list(skill_files().items()))
    wanted = {"name": "work", "skills": [{"type": "skill_reference", "skill_id": skill.id}]}
    refused = fault(outsider.post("/containers", wanted), 404)
    assert (refused["param"], refused["message"]) == ("skills[0].skill_id", f"Skill with id '{skill.id}' not found.")
    assert ok(api.post("/containers", wanted))["status"] == "running"


def test_an_unknown_file_is_reported_by_its_index(api: Api, sandbox: Sandbox) -> None:
    answer = api.post("/containers", {"name": "work", "file_ids": ["file-nothing"]})
    assert fault(answer, 404)["param"] == "file_ids[0]"


def test_another_teams_container_gets_the_404_of_an_unknown_id(api: Api, outsider: Api, sandbox: Sandbox) -> None:
    created = create(api)
    for answer in (outsider.get(f"/containers/{created['id']}"), outsider.delete(f"/containers/{created['id']}")):
        assert fault(answer, 404)["message"] == f"Container with id '{created['id']}' not found."
    assert ok(outsider.get("/containers"))["data"] == []


def test_each_operation_requires_its_scope(make_api: MakeApi, sandbox: Sandbox) -> None:
    reader = make_api(scopes=["containers.read"])
    assert ok(reader.get("/containers"))["data"] == []
    assert fault(reader.post("/containers", {"name": "work"}), 403)["code"] == "insufficient_scope"
    assert fault(reader.delete("/containers/cntr_1"), 403)["code"] == "insufficient_scope"
    assert fault(make_api(scopes=["files.read"]).get("/containers"), 403)["code"] == "insufficient_scope"
