"""Endpoints of `/v1/skills`."""

from django.http import HttpResponse

from core.db.db_threads import in_db_thread
from core.http.asgi import header
from core.http.endpoints import BINARY, BOOLEAN, ApiObject, Endpoint
from core.http.objects import ListPage
from core.http.pagination import PageRequest, page_argument
from core.http.rendering import download_headers
from skills import access, objects, selectors, services
from skills.api.schema import UpdateSkill, read_skill, read_version
from skills.models import Skill, SkillVersion
from tenants import scope
from tenants.models import Scope
from tenants.views import ApiRequest, ApiView

_FILES = {"type": "array", "items": BINARY}
_NEW_SKILL = ApiObject.of("NewSkill", {"files": _FILES})
_NEW_VERSION = ApiObject.of("NewSkillVersion", {"files": _FILES, "default": BOOLEAN}, required=["files"])
_PAGE = page_argument(before=False)


class SkillsView(ApiView, path="skills"):
    """All skills of a team."""

    @Endpoint(
        Scope.SKILLS_WRITE,
        "Create a skill",
        form=_NEW_SKILL,
        errors=(400, 401, 403, 413),
        note="a directory as multipart `files[]`, or one zip; up to 500 files, 25 MiB a file and 50 MiB the zip",
    )
    async def post(self, request: ApiRequest) -> objects.Skill:
        bundle = await read_skill(request.asgi["body"], header(request.asgi, b"content-type"))
        made = await in_db_thread(lambda: services.create_skill(principal=request.principal, bundle=bundle))
        return selectors.public_skill(made)

    @Endpoint(Scope.SKILLS_READ, "List skills", query=(_PAGE,))
    def get(self, request: ApiRequest, page: PageRequest) -> ListPage[objects.Skill]:
        with scope.team(request.principal.team_id):
            found = selectors.list_skills(team_id=request.principal.team_id, page=page)
        return found.as_list(present=selectors.public_skill)


class SkillView(ApiView, path="skills/<str:skill_id>"):
    """One skill."""

    @Endpoint(Scope.SKILLS_READ, "Retrieve a skill")
    def get(self, request: ApiRequest, skill_id: str) -> objects.Skill:
        return selectors.public_skill(_skill(request, skill_id))

    @Endpoint(Scope.SKILLS_WRITE, "Update the default version of a skill", body=UpdateSkill)
    def post(self, request: ApiRequest, skill_id: str, body: UpdateSkill) -> objects.Skill:
        changed = services.set_default_version(
            principal=request.principal,
            skill=_skill(request, skill_id),
            version=body.default_version,
        )
        return selectors.public_skill(changed)

    @Endpoint(Scope.SKILLS_WRITE, "Delete a skill", note="with all of its versions")
    def delete(self, request: ApiRequest, skill_id: str) -> objects.DeletedSkill:
        services.delete_skill(principal=request.principal, skill=_skill(request, skill_id))
        return {"id": skill_id, "object": "skill.deleted", "deleted": True}


class SkillContentView(ApiView, path="skills/<str:skill_id>/content"):
    """Files of the default version of a skill."""

    @Endpoint(
        Scope.SKILLS_READ,
        "Retrieve the content of a skill",
        returns="application/zip",
        note="the default version as a zip",
    )
    def get(self, request: ApiRequest, skill_id: str) -> HttpResponse:
        return _content(request, skill_id, None)


class SkillVersionsView(ApiView, path="skills/<str:skill_id>/versions"):
    """All versions of a skill."""

    @Endpoint(
        Scope.SKILLS_WRITE,
        "Create a skill version",
        form=_NEW_VERSION,
        errors=(400, 401, 403, 404, 413),
        note="numbered from 1; the default version stays unless `default` is true",
    )
    async def post(self, request: ApiRequest, skill_id: str) -> objects.SkillVersion:
        skill = await in_db_thread(lambda: _skill(request, skill_id))
        bundle, is_default = await read_version(request.asgi["body"], header(request.asgi, b"content-type"))
        made = await in_db_thread(
            lambda: services.create_version(
                principal=request.principal,
                skill=skill,
                bundle=bundle,
                is_default=is_default,
            )
        )
        return selectors.public_version(made)

    @Endpoint(Scope.SKILLS_READ, "List skill versions", query=(_PAGE,))
    def get(self, request: ApiRequest, skill_id: str, page: PageRequest) -> ListPage[objects.SkillVersion]:
        with scope.team(request.principal.team_id):
            skill = access.get_skill(principal=request.principal, skill_id=skill_id)
            found = selectors.list_versions(skill=skill, page=page)
        return found.as_list(present=selectors.public_version)


class SkillVersionView(ApiView, path="skills/<str:skill_id>/versions/<str:version>"):
    """One version of a skill."""

    @Endpoint(Scope.SKILLS_READ, "Retrieve a skill version", note="by its number, or `latest`")
    def get(self, request: ApiRequest, skill_id: str, version: str) -> objects.SkillVersion:
        return selectors.public_version(_version(request, skill_id, version))

    @Endpoint(
        Scope.SKILLS_WRITE,
        "Delete a skill version",
        errors=(400, 401, 403, 404),
        note="not the default version while there are others; with its only version, the skill is deleted",
    )
    def delete(self, request: ApiRequest, skill_id: str, version: str) -> objects.DeletedSkillVersion:
        gone = services.delete_version(
            principal=request.principal,
            skill=_skill(request, skill_id),
            version=version,
        )
        return {"id": gone.pk, "object": "skill.version.deleted", "deleted": True, "version": str(gone.number)}


class SkillVersionContentView(ApiView, path="skills/<str:skill_id>/versions/<str:version>/content"):
    """Files of a version of a skill."""

    @Endpoint(
        Scope.SKILLS_READ,
        "Retrieve the content of a skill version",
        returns="application/zip",
        note="a zip with one top-level folder",
    )
    def get(self, request: ApiRequest, skill_id: str, version: str) -> HttpResponse:
        return _content(request, skill_id, version)


def _skill(request: ApiRequest, skill_id: str) -> Skill:
    with scope.team(request.principal.team_id):
        return access.get_skill(principal=request.principal, skill_id=skill_id)


def _version(request: ApiRequest, skill_id: str, version: str | None, *, with_archive: bool = False) -> SkillVersion:
    with scope.team(request.principal.team_id):
        return access.get_version(
            principal=request.principal, skill_id=skill_id, version=version, with_archive=with_archive
        )


def _content(request: ApiRequest, skill_id: str, version: str | None) -> HttpResponse:
    found = _version(request, skill_id, version, with_archive=True)
    headers = download_headers(f"{found.name}.zip")
    return HttpResponse(bytes(found.archive), content_type="application/zip", headers=headers)
