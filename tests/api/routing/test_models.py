"""`GET /v1/models` and `GET /v1/models/{id}`: the models that a key may use."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import Any

import pytest
from aiohttp import web as aiohttp
from openai import OpenAI

from tenants import scope, services
from tenants.models import Model, Team
from tests.support.aiohttp_server import serving
from tests.support.api import Api, Caller, MakeApi, MakeCaller, error, ok
from tests.support.targets import several_targets
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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", {"input": "Hi"}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}),
    ],
)
def test_the_error_of_an_unknown_model_points_to_the_list_of_models(api: Api, path: str, body: dict[str, Any]) -> None:
    refused = api.post(path, {"model": "x", **body}).json()["error"]
    first, second = "The requested model 'x' does not exist.", "lists the models that this API key may use."
    assert refused["message"] == f"{first} `GET /v1/models` {second}"


def test_a_model_name_may_be_percent_encoded(api: Api, add_model: AddModel) -> None:
    name = add_model()
    assert ok(api.get(f"/models/{name.replace('/', '%2F')}"))["id"] == name


def test_the_list_has_openais_format(api: Api, add_model: AddModel) -> None:
    add_model()
    listed = ok(api.get("/models"))
    assert listed["object"] == "list"
    assert all(model.keys() == {"id", "object", "created", "owned_by", "shutdown_date"} for model in listed["data"])


def test_the_shutdown_date_is_a_date_or_null(client: OpenAI, add_model: AddModel) -> None:
    ending, staying = add_model(shutdown_date=date(2027, 3, 31)), add_model()
    found = {model.id: model.shutdown_date for model in client.models.list()}
    assert (found[ending], found[staying]) == ("2027-03-31", None)
    assert client.models.retrieve(ending).shutdown_date == "2027-03-31"


def test_a_model_is_shut_down_with_its_last_target(api: Api, upstream: ScriptedUpstream, database: None) -> None:
    with several_targets(upstream) as targets:
        targets.add(shutdown_date=date(2027, 3, 31))
        targets.add(shutdown_date=date(2027, 1, 31))
        assert ok(api.get(f"/models/{targets.name}"))["shutdown_date"] == "2027-03-31"
        targets.add()
        assert ok(api.get(f"/models/{targets.name}"))["shutdown_date"] is None


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_new_model_is_available_within_two_seconds(api: Api, upstream: ScriptedUpstream, add_model: AddModel) -> None:
    """A `*` route has matched the name before and is cached until the model has its own route."""
    name = add_model(enabled=False)
    assert error(api.post("/responses", {"model": name, "input": "Hi"})) == (400, "model", "model_not_found")
    with upstream.script() as script:
        Model.objects.filter(name=name).update(enabled=True, upstream_model=script.model)
        script.say("Hello")
        answer = eventually(lambda: _created(api, name))
    assert answer["status"] == "completed"


def _created(api: Api, model: str) -> dict[str, Any]:
    answer = api.post("/responses", {"model": model, "input": "Hi"})
    return ok(answer) if answer.status_code == 200 else {}


@pytest.mark.slow
def test_listing_models_requires_its_scope(make_api: MakeApi) -> None:
    api = make_api(scopes=["responses.write"])
    assert error(api.get("/models")) == error(api.get("/models/m")) == (403, None, "insufficient_scope")


class Lister:
    """An upstream with a list of models. It also has the models in `unlisted`, which it does not list."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = 0
        self.status = 200
        self.rows: list[Any] = []
        self.unlisted: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    async def list_models(self, _: aiohttp.Request) -> aiohttp.Response:
        self.asked += 1
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        return aiohttp.json_response({"object": "list", "data": self.rows}, status=self.status)

    async def show_model(self, request: aiohttp.Request) -> aiohttp.Response:
        name = request.match_info["name"]
        return aiohttp.json_response({"id": name}, status=200 if name in self.unlisted else 404)


@pytest.fixture
def lister(database: None, caller: Caller) -> Iterator[Lister]:
    """Start an upstream with a `*` route of the team, which takes precedence over other `*` routes."""
    lister = Lister()
    app = aiohttp.Application()
    app.router.add_get("/v1/models", lister.list_models)
    app.router.add_get("/v1/models/{name:.+}", lister.show_model)
    with serving(app) as lister.url:
        row = services.add_upstream(name=f"lister {lister.url}", base_url=lister.url, models=["*"])
        with scope.every_team():
            Model.objects.get(name="*", upstream=row).teams.set([caller.team])
        yield lister
        lister.gate.set()


def test_the_models_behind_a_wildcard_are_listed(client: OpenAI, lister: Lister, add_model: AddModel) -> None:
    own = add_model()
    lister.rows = [{"id": "org/model:7b", "created": 7}, {"id": "plain", "owned_by": "somebody"}, {"id": own}]
    found = {model.id: model for model in client.models.list()}
    assert {"org/model:7b", "plain", own} <= found.keys()
    assert (found["org/model:7b"].created, found["plain"].owned_by) == (7, f"lister {lister.url}")
    # A name that is configured on the platform is routed to another upstream.
    assert found[own].owned_by == f"upstream {own}"
    assert client.models.retrieve("org/model:7b") == found["org/model:7b"]


@pytest.mark.slow
def test_the_list_of_an_upstream_is_cached(api: Api, lister: Lister) -> None:
    lister.rows = [{"id": "plain"}]
    assert all("plain" in names(api) for _ in range(3))
    assert ok(api.get("/models/plain"))["id"] == "plain"
    assert lister.asked == 1


def test_invalid_entries_of_an_upstream_are_left_out(api: Api, lister: Lister) -> None:
    lister.rows = ["text", {"id": 5}, {"id": ""}, {"id": "*"}, {"id": "a" * 201}, {"id": "a\nb"}, {"id": "good"}]
    listed = [model for model in ok(api.get("/models"))["data"] if model["owned_by"] == f"lister {lister.url}"]
    assert [model["id"] for model in listed] == ["good"]


def test_a_key_sees_only_its_allowed_models_of_an_upstream(make_api: MakeApi, lister: Lister) -> None:
    lister.rows = [{"id": "one"}, {"id": "two"}]
    api = make_api(allowed_models=["one"])
    with scope.every_team():
        Model.objects.get(name="*", upstream__base_url=lister.url).teams.add(api.caller.team)
    assert names(api) == {"one"}
    assert error(api.get("/models/two")) == (404, "model", "model_not_found")


def test_models_of_another_teams_wildcard_are_not_listed(api: Api, outsider: Api, lister: Lister) -> None:
    lister.rows = [{"id": "private"}]
    assert "private" in names(api)
    assert "private" not in names(outsider)
    assert error(outsider.get("/models/private")) == (404, "model", "model_not_found")


def test_models_of_an_unreachable_upstream_are_not_listed(api: Api, lister: Lister, add_model: AddModel) -> None:
    own = add_model()
    lister.status = 500
    assert own in names(api)
    # Its requests would be routed to this upstream, which is not known to lack the model.
    assert ok(api.get("/models/anything"))["owned_by"] == f"lister {lister.url}"


@pytest.mark.slow
def test_models_of_a_slow_upstream_are_not_listed(api: Api, lister: Lister, add_model: AddModel) -> None:
    own = add_model()
    lister.gate.clear()
    assert own in names(api)


def test_a_model_not_listed_by_the_upstream_can_be_retrieved(api: Api, lister: Lister) -> None:
    lister.rows, lister.unlisted = [{"id": "plain"}], {"org/dated-2026"}
    assert ok(api.get("/models/org/dated-2026"))["id"] == "org/dated-2026"
    assert error(api.get("/models/other")) == (404, "model", "model_not_found")


def test_a_wildcard_for_a_single_model_lists_that_model(api: Api, lister: Lister) -> None:
    Model.objects.filter(name="*", upstream__base_url=lister.url).update(upstream_model="the-only-one")
    assert "the-only-one" in names(api)
    assert lister.asked == 0


ANTHROPIC = {"anthropic-version": "2023-06-01"}


def anthropic_list(api: Api, **query: object) -> dict[str, Any]:
    """Return the list of models that a client of Anthropic's API gets, which sends only its key."""
    page: dict[str, Any] = ok(api.get("/models", **query))
    return page


@pytest.fixture
def anthropic_api(api: Api) -> Api:
    """A client that sends the headers of Anthropic's SDK."""
    api.headers = {"x-api-key": api.caller.secret, **ANTHROPIC}
    return api


def test_anthropics_clients_get_the_list_in_their_form(anthropic_api: Api, add_model: AddModel) -> None:
    name = add_model()
    page = anthropic_list(anthropic_api, limit=1000)
    (shown,) = [model for model in page["data"] if model["id"] == name]
    assert shown["type"] == "model"
    assert shown["display_name"] == name
    assert datetime.fromisoformat(shown["created_at"]).tzinfo is not None
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    assert page["has_more"] is False
    assert ok(anthropic_api.get(f"/models/{name}")) == shown


def test_a_key_in_anthropics_header_is_enough(api: Api, add_model: AddModel) -> None:
    name = add_model()
    api.headers = {"x-api-key": api.caller.secret}
    assert ok(api.get(f"/models/{name}"))["type"] == "model"


def test_a_bearer_key_with_anthropics_version_gets_their_form(api: Api, add_model: AddModel) -> None:
    name = add_model()
    api.headers |= ANTHROPIC
    assert ok(api.get(f"/models/{name}"))["type"] == "model"


def test_anthropics_clients_read_the_list_in_pages(anthropic_api: Api, add_model: AddModel) -> None:
    added = {add_model() for _ in range(3)}
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = anthropic_list(anthropic_api, limit=2, **after)
        seen += [model["id"] for model in page["data"]]
        if not page["has_more"]:
            break
        after = {"after_id": page["last_id"]}
    assert added <= set(seen)
    assert len(seen) == len(set(seen))
    before = anthropic_list(anthropic_api, limit=2, before_id=seen[3])
    assert [model["id"] for model in before["data"]] == seen[1:3]
    assert before["has_more"] is True


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"after_id": "no-such-model"}])
def test_anthropics_clients_get_their_error_for_an_invalid_page(anthropic_api: Api, query: dict[str, str]) -> None:
    answer = anthropic_api.get("/models", **query)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_anthropics_clients_get_their_error_for_an_unknown_model(anthropic_api: Api) -> None:
    answer = anthropic_api.get("/models/no-such-model")
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    assert answer.json()["error"]["type"] == "not_found_error"


def test_anthropics_clients_with_a_wrong_key_get_their_error(anthropic_api: Api) -> None:
    anthropic_api.headers["x-api-key"] = "sk-wrong"
    answer = anthropic_api.get("/models")
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert answer.headers["x-should-retry"] == "false"


def test_anthropics_clients_see_no_model_of_another_team(
    api: Api, make_caller: MakeCaller, add_model: AddModel
) -> None:
    name = add_model(teams=[make_caller().team])
    api.headers = {"x-api-key": api.caller.secret, **ANTHROPIC}
    assert api.get(f"/models/{name}").status_code == 404
    assert name not in {model["id"] for model in anthropic_list(api, limit=1000)["data"]}
