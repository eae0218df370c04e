"""`/v1/skills/{id}/versions`: creating, listing, reading and deleting versions."""

import pytest
from openai import OpenAI

from skills import services
from skills.models import SkillVersion
from tenants import scope
from tests.api.skills.test_skills import create
from tests.support.api import Api, error, ok
from tests.support.skills import skill_files, unzipped


@pytest.fixture
def skill(api: Api) -> str:
    """A skill of the caller's team with two versions, of which the first is the default."""
    made = str(ok(create(api))["id"])
    ok(create(api, skill_files(description="Add better."), path=f"/skills/{made}/versions"))
    return made


def numbers(api: Api, skill: str, **query: object) -> list[str]:
    return [row["version"] for row in ok(api.get(f"/skills/{skill}/versions", **query))["data"]]


@pytest.mark.slow
def test_the_sdk_creates_reads_and_deletes_versions(client: OpenAI) -> None:
    skill = client.skills.create(files=list(skill_files().items())).id
    files = skill_files(**{"a.txt": "a"})
    made = client.skills.versions.create(skill, files=list(files.items()), default=True)
    assert (made.object, made.version, made.skill_id, made.name) == ("skill.version", "2", skill, "sums")
    assert client.skills.retrieve(skill).default_version == "2"
    assert client.skills.versions.retrieve("2", skill_id=skill) == made
    assert [one.version for one in client.skills.versions.list(skill)] == ["2", "1"]
    assert unzipped(client.skills.versions.content.retrieve("2", skill_id=skill).read()) == files
    deleted = client.skills.versions.delete("1", skill_id=skill)
    assert (deleted.object, deleted.version, deleted.deleted) == ("skill.version.deleted", "1", True)


def test_versions_are_listed_by_number_in_pages(api: Api, skill: str) -> None:
    first = ok(api.get(f"/skills/{skill}/versions", limit=1))
    assert ([row["version"] for row in first["data"]], first["has_more"]) == (["2"], True)
    assert numbers(api, skill, after=first["last_id"]) == ["1"]
    assert numbers(api, skill, order="asc") == ["1", "2"]
    assert error(api.get(f"/skills/{skill}/versions", after="skillver_unknown")) == (404, "after", None)


def test_latest_names_the_newest_version(api: Api, skill: str) -> None:
    assert ok(api.get(f"/skills/{skill}/versions/latest"))["version"] == "2"
    ok(api.post(f"/skills/{skill}", {"default_version": "latest"}))
    assert ok(api.get(f"/skills/{skill}"))["default_version"] == "2"


@pytest.mark.parametrize("version", ["3", "0", "-1", "x", "1.0", "99999999999999999999", "٢"])
def test_an_unknown_version_is_not_found(api: Api, skill: str, version: str) -> None:
    for path in ("", "/content"):
        assert error(api.get(f"/skills/{skill}/versions/{version}{path}"))[0] == 404
    assert error(api.delete(f"/skills/{skill}/versions/{version}"))[0] == 404


def test_the_default_version_cannot_be_deleted_while_there_are_others(api: Api, skill: str) -> None:
    assert error(api.delete(f"/skills/{skill}/versions/1")) == (400, "version", "invalid_value")
    ok(api.delete(f"/skills/{skill}/versions/2"))
    assert ok(api.get(f"/skills/{skill}"))["latest_version"] == "1"


@pytest.mark.slow
def test_a_version_number_is_never_reused(api: Api, skill: str) -> None:
    ok(api.delete(f"/skills/{skill}/versions/2"))
    assert ok(create(api, path=f"/skills/{skill}/versions"))["version"] == "3"
    assert numbers(api, skill) == ["3", "1"]


@pytest.mark.slow
def test_deleting_the_only_version_deletes_the_skill(api: Api, skill: str) -> None:
    ok(api.delete(f"/skills/{skill}/versions/2"))
    ok(api.delete(f"/skills/{skill}/versions/1"))
    assert error(api.get(f"/skills/{skill}"))[0] == 404


def test_the_default_parameter_must_be_a_boolean(api: Api, skill: str) -> None:
    assert error(create(api, path=f"/skills/{skill}/versions", default="maybe")) == (400, "default", "invalid_value")
    assert error(create(api, default="true")) == (400, "default", "unknown_parameter")


def test_the_number_of_versions_is_limited(api: Api, skill: str) -> None:
    with scope.team(api.caller.team.pk):
        many = [
            SkillVersion(team_id=api.caller.team.pk, skill_id=skill, number=3 + n, archive=b"", archive_size=0, files=1)
            for n in range(services.MAX_VERSIONS - 2)
        ]
        SkillVersion.objects.bulk_create(many)
    assert error(create(api, path=f"/skills/{skill}/versions")) == (400, None, "skill_limit_exceeded")
