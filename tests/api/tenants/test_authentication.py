"""Authentication with API keys: which keys are accepted, and how fast changes take effect."""

from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest
from django.utils.timezone import now

from responses.models import Response
from tenants import scope, services
from tenants.directory import cache
from tenants.models import ApiKey, Scope
from tests.support.api import Api, Caller, MakeApi, MakeCaller, error, ok
from tests.support.upstream import Script
from tests.support.waiting import eventually
from tests.support.web import WebProcess

ENDPOINTS = [
    ("GET", "/responses", {}),
    ("GET", "/responses/resp_x", {}),
    ("GET", "/responses/resp_x?stream=true", {}),
    ("DELETE", "/responses/resp_x", {}),
    ("GET", "/responses/resp_x/input_items", {}),
    ("GET", "/models", {}),
    ("GET", "/models/m", {}),
    ("POST", "/responses", {"model": "m", "input": "Hi"}),
    ("POST", "/responses", {"model": "m", "input": "Hi", "stream": True}),
    ("POST", "/chat/completions", {"model": "m", "messages": []}),
    ("POST", "/chat/completions", {"model": "m", "messages": [], "stream": True}),
]
every_endpoint = pytest.mark.parametrize(("method", "path", "body"), ENDPOINTS)


@pytest.fixture
def anonymous(web: WebProcess, http: httpx2.Client) -> Api:
    """The API without a key."""
    return Api(http, url=web.url)


@every_endpoint
def test_a_request_without_a_key_is_rejected(anonymous: Api, method: str, path: str, body: dict[str, object]) -> None:
    answer = anonymous.request(method, path, json=body or None)
    assert error(answer) == (401, None, None)
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["message"].startswith("You didn't provide an API key.")


@every_endpoint
def test_a_request_with_a_wrong_key_is_rejected(
    anonymous: Api, method: str, path: str, body: dict[str, object]
) -> None:
    secret = "sk-wrongkey-" + "x" * 43
    answer = anonymous.request(method, path, json=body or None, headers={"Authorization": f"Bearer {secret}"})
    assert error(answer) == (401, None, "invalid_api_key")
    assert "wrongkey" not in answer.text


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", None),
        ("Bearer", None),
        ("Basic dXNlcjpwYXNz", None),
        ("sk-only-the-key", None),
        ("Bearer two words", "invalid_api_key"),
        ("Bearer \xe4\xf6\xfc", "invalid_api_key"),
        ("Bearer " + "x" * 5000, "invalid_api_key"),
        ("Bearer null", "invalid_api_key"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_malformed_authorization_header_is_rejected(
    anonymous: Api, streamed: bool, header: str, code: str | None
) -> None:
    body = {"model": "m", "input": "Hi", "stream": streamed}
    answer = anonymous.post("/responses", body, {"Authorization": header.encode("latin-1")})
    assert error(answer) == (401, None, code)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_the_bearer_scheme_is_case_insensitive(anonymous: Api, caller: Caller, scheme: str) -> None:
    assert ok(anonymous.request("GET", "/responses", headers={"Authorization": f"{scheme} {caller.secret}"}))


def test_a_partial_or_altered_key_is_rejected(anonymous: Api, caller: Caller) -> None:
    whole = caller.secret
    altered = [whole[:-1] + ("a" if whole[-1] != "a" else "b"), whole[:24] + whole[24:][::-1], whole[:-24] + "x" * 24]
    for secret in (whole[:-1], whole + "x", whole.lower(), caller.key.prefix, *altered):
        # The key itself is in the process's cache, and no similar key may match it.
        assert ok(anonymous.request("GET", "/responses", headers={"Authorization": f"Bearer {whole}"}))
        answer = anonymous.request("GET", "/responses", headers={"Authorization": f"Bearer {secret}"})
        assert error(answer) == (401, None, "invalid_api_key")


def test_an_expired_key_is_rejected(make_api: MakeApi) -> None:
    api = make_api(expires_at=now() - timedelta(seconds=1))
    answer = api.get("/responses")
    assert error(answer) == (401, None, "api_key_expired")
    assert answer.json()["error"]["message"] == "This API key has expired."


@pytest.mark.slow
def test_a_cached_key_expires_on_time(make_api: MakeApi) -> None:
    # On a busy machine, a key may expire before the first request arrives.
    lifetimes = (timedelta(seconds=seconds) for seconds in (2, 10, 60))
    made = (make_api(expires_at=now() + lifetime) for lifetime in lifetimes)
    api = next(api for api in made if api.get("/responses").status_code == 200)
    eventually(lambda: api.get("/responses").status_code == 401)
    assert error(api.get("/responses")) == (401, None, "api_key_expired")


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_a_revoked_key_is_rejected_within_two_seconds(make_api: MakeApi, script: Script, streamed: bool) -> None:
    api = make_api()
    script.say("Hello")
    assert api.post("/responses", {"model": script.model, "input": "Hi", "stream": streamed}).status_code == 200
    services.revoke_key(key=api.caller.key)
    refused = {"model": "m", "input": [], "stream": streamed}
    # On a busy machine the answer may take longer, but a cached result is never older.
    assert cache.CACHE_SECONDS <= cache.LONGEST_USE_SECONDS < 2
    eventually(lambda: api.post("/responses", refused).status_code == 401)
    assert error(api.post("/responses", refused)) == (401, None, "api_key_revoked")


def test_a_new_key_works_right_after_a_wrong_key_was_rejected(make_api: MakeApi) -> None:
    assert make_api().get("/responses").status_code == 200


def test_revoking_a_key_does_not_affect_other_keys_of_the_team(make_api: MakeApi, make_caller: MakeCaller) -> None:
    revoked = make_caller()
    other = make_api(team=revoked.team)
    services.revoke_key(key=revoked.key)
    assert other.get("/responses").status_code == 200


HI = [{"role": "user", "content": "Hi"}]
SCOPES: dict[Scope, list[tuple[str, str, Any]]] = {
    Scope.RESPONSES_READ: [ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[2], ENDPOINTS[4]],
    Scope.RESPONSES_DELETE: [ENDPOINTS[3]],
    Scope.MODELS_READ: [ENDPOINTS[5], ENDPOINTS[6]],
    Scope.RESPONSES_WRITE: [ENDPOINTS[7], ENDPOINTS[8]],
    Scope.CHAT_WRITE: [
        ("POST", "/chat/completions", {"model": "unknown", "messages": HI}),
        ("POST", "/chat/completions", {"model": "unknown", "messages": HI, "stream": True}),
        ("POST", "/chat/completions/unknown", {"metadata": {}}),
    ],
    Scope.CHAT_READ: [
        ("GET", "/chat/completions", {}),
        ("GET", "/chat/completions/unknown", {}),
        ("GET", "/chat/completions/unknown/messages", {}),
    ],
    Scope.CHAT_DELETE: [("DELETE", "/chat/completions/unknown", {})],
}


@pytest.mark.parametrize("given", SCOPES)
def test_a_scope_allows_its_own_endpoints_only(make_api: MakeApi, given: Scope) -> None:
    api = make_api(scopes=[given.value])
    for needed, endpoints in SCOPES.items():
        for method, path, body in endpoints:
            answer = api.request(method, path, json=body or None)
            forbidden = answer.status_code == 403 and error(answer) == (403, None, "insufficient_scope")
            assert forbidden is (needed != given), (needed, method, path, answer.text)


def test_a_key_without_scopes_can_do_nothing(make_api: MakeApi) -> None:
    answer = make_api(scopes=[]).get("/responses")
    assert error(answer) == (403, None, "insufficient_scope")
    message = "Your API key is missing the scope 'responses.read', which this request requires."
    assert (answer.json()["error"]["message"], answer.json()["error"]["type"]) == (message, "permission_error")


def test_a_request_updates_the_last_use_of_its_key(api: Api, caller: Caller) -> None:
    began = now()
    api.get("/responses")

    def used_at() -> datetime | None:
        with scope.team(caller.team.pk):
            return ApiKey.objects.get(pk=caller.key.pk).last_used_at

    # No request waits until its use is recorded.
    assert began <= eventually(used_at) <= now()  # type: ignore[operator]  # it is set


def test_a_response_records_the_key_that_created_it(api: Api, script: Script, caller: Caller) -> None:
    script.say("Hello")
    response = api.create(model=script.model, input="Hi")
    with scope.team(caller.team.pk):
        assert Response.objects.get(pk=response["id"]).api_key_id == caller.key.pk
