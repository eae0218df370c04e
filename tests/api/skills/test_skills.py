"""`/v1/skills`: creating from a folder or a zip archive, reading, changing the default version and deleting."""

from typing import Any

import httpx2
import pytest
from openai import OpenAI

from skills import services
from skills.models import Skill, SkillVersion
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, error, ok
from tests.support.metrics import Samples
from tests.support.skills import skill_files, unzipped, zipped
from tests.support.web import WebProcess


def create(api: Api, files: dict[str, bytes] | None = None, path: str = "/skills", **fields: str) -> httpx2.Response:
    """Create a skill or a version from files, as browsers and curl send a folder."""
    parts = [("files[]", (name, content)) for name, content in (files or skill_files()).items()]
    return api.request("POST", path, files=parts, data=fields)


@pytest.fixture
def skill(api: Api) -> str:
    """A skill of the caller's team."""
    return str(ok(create(api))["id"])


def test_the_sdk_creates_reads_and_deletes_a_skill(client: OpenAI) -> None:
    files = skill_files(**{"lib/add.py": "print(1 + 1)"})
    made = client.skills.create(files=list(files.items()))
    assert (made.object, made.name, made.description) == ("skill", "sums", "Add numbers.")
    assert (made.default_version, made.latest_version) == ("1", "1")
    assert client.skills.retrieve(made.id) == made
    content = client.skills.content.retrieve(made.id)
    assert unzipped(content.read()) == files
    assert content.response.headers["content-type"] == "application/zip"
    deleted = client.skills.delete(made.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "skill.deleted")
    assert list(client.skills.list()) == []


def test_the_sdk_creates_a_skill_from_a_zip_archive(client: OpenAI) -> None:
    files = skill_files("tables", "Make tables.", folder="any_name", **{"a.txt": "a"})
    made = client.skills.create(files=("tables.zip", zipped(files), "application/zip"))
    assert (made.name, made.description) == ("tables", "Make tables.")
    assert unzipped(client.skills.content.retrieve(made.id).read()) == files


def test_the_default_version_decides_name_description_and_content(client: OpenAI) -> None:
    made = client.skills.create(files=list(skill_files().items()))
    second = skill_files("sums-2", "Add more numbers.")
    client.skills.versions.create(made.id, files=list(second.items()))
    unchanged = client.skills.retrieve(made.id)
    assert (unchanged.name, unchanged.default_version, unchanged.latest_version) == ("sums", "1", "2")
    changed = client.skills.update(made.id, default_version="2")
    assert (changed.name, changed.description, changed.default_version) == ("sums-2", "Add more numbers.", "2")
    assert unzipped(client.skills.content.retrieve(made.id).read()) == second


def test_skills_are_listed_in_pages(api: Api) -> None:
    ids = [ok(create(api, skill_files(name)))["id"] for name in ("a", "b", "c")]
    first = ok(api.get("/skills", limit=2))
    assert ([row["id"] for row in first["data"]], first["has_more"]) == ([ids[2], ids[1]], True)
    assert [row["id"] for row in ok(api.get("/skills", after=first["last_id"]))["data"]] == [ids[0]]
    assert [row["id"] for row in ok(api.get("/skills", order="asc"))["data"]] == ids
    assert error(api.get("/skills", after="skill_unknown")) == (404, "after", None)


@pytest.mark.parametrize(
    ("files", "param", "code"),
    [
        ({"a.txt": b"no manifest"}, "files", "invalid_value"),
        ({"../a/SKILL.md": b""}, "files", "invalid_value"),
        ({"sums.zip": b"PK\x03\x04 damaged"}, "files", "invalid_value"),
        ({f"sums/{number}": b"" for number in range(501)}, None, "invalid_multipart"),
    ],
)
def test_defective_files_are_refused(api: Api, files: dict[str, bytes], param: str | None, code: str) -> None:
    assert error(create(api, files)) == (400, param, code)


@pytest.mark.slow
@pytest.mark.parametrize("files", [skill_files(), {"sums.zip": zipped(skill_files())}])
def test_a_skill_and_its_versions_are_read_in_a_process_with_limits(
    web: WebProcess, api: Api, files: dict[str, bytes]
) -> None:
    samples = Samples(f"{web.url}/metrics")
    made = ok(create(api, files))["id"]
    ok(create(api, files, f"/skills/{made}/versions"))
    assert samples.added("ors_computations_total", outcome="done") == 2


@pytest.mark.parametrize("bomb", ["merge keys", "aliases", "base 60", "nested lists"])
def test_front_matter_that_expands_while_it_is_read_is_refused(api: Api, bomb: str) -> None:
    manifest = f"---\nname: sums\ndescription: Add.\n{_bomb(bomb)}\n---\n".encode()
    assert len(manifest) < 16 * 1024
    assert error(create(api, {"sums/SKILL.md": manifest})) == (400, "files", "invalid_value")


def _bomb(kind: str) -> str:
    if kind == "base 60":
        return "duration: 1" + ":1" * 300 + ".5"
    if kind == "nested lists":
        return "list: " + "[" * 8_000
    lines = ["a0: &a0 {key: value}"]
    for number in range(1, 200):
        names = ", ".join([f"*a{number - 1}"] * 9)
        lines.append(f"a{number}: &a{number} " + (f"{{<<: [{names}]}}" if kind == "merge keys" else f"[{names}]"))
    return "\n".join(lines)


@pytest.mark.parametrize("path", ["/skills", "/skills/{}/versions"])
def test_a_request_without_files_is_refused(api: Api, skill: str, path: str) -> None:
    path = path.format(skill)
    assert error(api.post(path, {})) == (400, "files", "missing_required_parameter")
    assert error(api.post(path, b"")) == (400, "files", "missing_required_parameter")
    form = api.request("POST", path, files={"default": (None, "true")})
    assert error(form)[0] == 400
    named = api.request("POST", path, files={"document": ("sums/SKILL.md", b"")})
    assert error(named) == (400, "document", "unknown_parameter")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"default_version": "7"}, 404, None),
        ({"default_version": "0"}, 400, "invalid_value"),
        ({"default_version": 1}, 400, "invalid_type"),
        ({}, 400, "missing_required_parameter"),
    ],
)
def test_an_unusable_default_version_is_refused(
    api: Api, skill: str, body: dict[str, Any], status: int, code: str | None
) -> None:
    assert error(api.post(f"/skills/{skill}", body)) == (status, "default_version", code)


def test_the_number_of_skills_of_a_team_is_limited(api: Api, skill: str) -> None:
    with scope.team(api.caller.team.pk):
        many = [Skill(team_id=api.caller.team.pk, name="x", description="x") for _ in range(services.MAX_SKILLS - 1)]
        Skill.objects.bulk_create(many)
    assert error(create(api)) == (400, None, "skill_limit_exceeded")


def test_the_size_of_the_skills_of_a_team_is_limited(api: Api, outsider: Api, skill: str) -> None:
    with scope.team(api.caller.team.pk):
        SkillVersion.objects.filter(skill_id=skill).update(archive_size=services.MAX_TEAM_BYTES)
    assert error(create(api)) == (400, None, "skill_limit_exceeded")
    assert error(create(api, path=f"/skills/{skill}/versions")) == (400, None, "skill_limit_exceeded")
    ok(create(outsider))


def test_changes_are_audited(api: Api, skill: str) -> None:
    ok(create(api, path=f"/skills/{skill}/versions"))
    ok(api.post(f"/skills/{skill}", {"default_version": "2"}))
    ok(api.delete(f"/skills/{skill}/versions/1"))
    ok(api.delete(f"/skills/{skill}"))
    with scope.team(api.caller.team.pk):
        events = AuditEvent.objects.filter(target=skill).order_by("pk").values_list("action", flat=True)
        assert list(events) == [
            "skill.created",
            "skill.version_created",
            "skill.updated",
            "skill.version_deleted",
            "skill.deleted",
        ]
        assert not SkillVersion.objects.filter(skill_id=skill).exists()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("POST", ""),
        ("DELETE", ""),
        ("GET", "/content"),
        ("GET", "/versions"),
        ("POST", "/versions"),
        ("GET", "/versions/1"),
        ("DELETE", "/versions/1"),
        ("GET", "/versions/1/content"),
    ],
)
def test_another_teams_skill_is_not_found(api: Api, outsider: Api, skill: str, method: str, path: str) -> None:
    def ask(name: str) -> httpx2.Response:
        if (method, path) == ("POST", "/versions"):
            return create(outsider, path=f"/skills/{name}/versions")
        body = {"default_version": "1"} if method == "POST" else None
        return outsider.request(method, f"/skills/{name}{path}", json=body)

    theirs, unknown = ask(skill), ask("skill_unknown")
    assert error(theirs) == error(unknown) == (404, None, None)
    assert theirs.text == unknown.text.replace("skill_unknown", skill)
    assert ok(api.get(f"/skills/{skill}"))["latest_version"] == "1"
    assert ok(outsider.get("/skills"))["data"] == []


def test_reading_and_writing_have_separate_scopes(api: Api, skill: str, make_api: MakeApi) -> None:
    reader = make_api(team=api.caller.team, scopes=["skills.read"])
    assert ok(reader.get(f"/skills/{skill}"))["id"] == skill
    for answer in (create(reader), reader.delete(f"/skills/{skill}"), create(reader, path=f"/skills/{skill}/versions")):
        assert error(answer) == (403, None, "insufficient_scope")
    writer = make_api(team=api.caller.team, scopes=["skills.write"])
    assert error(writer.get(f"/skills/{skill}/content")) == (403, None, "insufficient_scope")
