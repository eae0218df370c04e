"""`GET /v1/models` and `GET /v1/models/{id}`: the models that a key may use."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tenants import scope, services
from tenants.models import Model, Team
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.upstream import ScriptedUpstream
from tests.support.waiting import eventually

AddModel = Callable[..., str]


@pytest.fixture
def add_model(database: None, upstream: ScriptedUpstream) -> AddModel:
    """Add a model with its own upstream; `teams` None makes it available to all teams."""

    def add(*, teams: list[Team] | None = None, owner: str | None = None, **values: Any) -> str:
        name = f"vendor/family/{uuid.uuid4().hex[:8]}:8b"
        row = services.add_upstream(name=owner or f"upstream {name}", base_url=upstream.url, models=[name])
        Model.objects.filter(name=name).update(**values)
        if teams is not None:
            with scope.every_team():
                Model.objects.get(name=name, upstream=row).teams.set(teams)
        return name

    return add


def names(api: Api) -> set[str]:
    return {model["id"] for model in ok(api.get("/models"))["data"]}


def test_a_model_name_may_contain_slashes(api: Api, add_model: AddModel) -> None:
    name = add_model()
    shown = ok(api.get(f"/models/{name}"))
    assert (shown["id"], shown["object"], shown["owned_by"]) == (name, "model", f"upstream {name}")
    assert isinstance(shown["created"], int)
    assert shown in ok(api.get("/models"))["data"]


def test_a_model_name_may_be_percent_encoded(api: Api, add_model: AddModel) -> None:
    name = add_model()
    assert ok(api.get(f"/models/{name.replace('/', '%2F')}"))["id"] == name


def test_the_list_has_openais_format(api: Api, add_model: AddModel) -> None:
    add_model()
    listed = ok(api.get("/models"))
    assert listed["object"] == "list"
    assert all(model.keys() == {"id", "object", "created", "owned_by"} for model in listed["data"])


def test_a_wildcard_route_is_not_listed(api: Api) -> None:
    assert "*" not in names(api)
    assert error(api.get("/models/*")) == (404, "model", "model_not_found")


def test_an_unknown_model_is_not_found(api: Api) -> None:
    answer = api.get("/models/no/such/model")
    assert error(answer) == (404, "model", "model_not_found")
    assert answer.json()["error"]["message"] == "The model 'no/such/model' does not exist."


def test_a_team_sees_its_own_and_the_shared_models(
    api: Api, outsider: Api, caller: Caller, add_model: AddModel
) -> None:
    own, shared = add_model(teams=[caller.team]), add_model()
    assert {own, shared} <= names(api)
    assert own not in names(outsider)
    assert shared in names(outsider)


def test_another_teams_model_is_not_found(outsider: Api, caller: Caller, add_model: AddModel) -> None:
    own = add_model(teams=[caller.team])
    foreign, unknown = outsider.get(f"/models/{own}"), outsider.get("/models/unknown")
    assert (foreign.status_code, foreign.text.replace(own, "unknown")) == (404, unknown.text)


def test_a_key_sees_only_its_allowed_models(make_api: MakeApi, add_model: AddModel) -> None:
    allowed, other = add_model(), add_model()
    api = make_api(allowed_models=[allowed])
    assert names(api) == {allowed}
    assert error(api.get(f"/models/{other}")) == (404, "model", "model_not_found")


def test_a_key_can_use_only_its_allowed_models(make_api: MakeApi, add_model: AddModel) -> None:
    api = make_api(allowed_models=[add_model()])
    other = add_model()
    for path, asks in (
        ("/responses", {"input": "Hi"}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        refused, unknown = (api.post(path, {"model": name, **asks}) for name in (other, "unknown"))
        assert error(refused) == (400, "model", "model_not_found")
        assert refused.text.replace(other, "unknown") == unknown.text


def test_a_disabled_model_is_not_found(api: Api, add_model: AddModel) -> None:
    name = add_model(enabled=False)
    assert name not in names(api)
    assert error(api.get(f"/models/{name}")) == (404, "model", "model_not_found")


def test_a_public_name_may_differ_from_the_upstream_name(
    api: Api, upstream: ScriptedUpstream, add_model: AddModel
) -> None:
    name = add_model()
    with upstream.script() as script:
        Model.objects.filter(name=name).update(upstream_model=script.model)
        script.say("Hello")
        response = api.create(model=name, input="Hi")
    assert response["model"] == name


def test_a_new_model_is_available_within_two_seconds(api: Api, upstream: ScriptedUpstream, add_model: AddModel) -> None:
    """A `*` route has matched the name before and is cached until the model has its own route."""
    name = add_model(enabled=False)
    assert error(api.post("/responses", {"model": name, "input": "Hi"})) == (400, "model", "model_not_found")
    with upstream.script() as script:
        Model.objects.filter(name=name).update(enabled=True, upstream_model=script.model)
        script.say("Hello")
        answer = eventually(lambda: _created(api, name), seconds=10)
    assert answer["status"] == "completed"


def _created(api: Api, model: str) -> dict[str, Any]:
    answer = api.post("/responses", {"model": model, "input": "Hi"})
    return ok(answer) if answer.status_code == 200 else {}


def test_listing_models_requires_its_scope(make_api: MakeApi) -> None:
    api = make_api(scopes=["responses.write"])
    assert error(api.get("/models")) == error(api.get("/models/m")) == (403, None, "insufficient_scope")
