"""`/v1/webhook_endpoints` and `GET /v1/webhook_event_types`."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from responses.webhooks import services
from tenants import scope
from tenants.models import AuditEvent
from tests.support.api import Api, MakeApi, error, ok
from tests.support.webhooks import Receiver, add_endpoint, endpoint_of, running_receiver

BODY = {"name": "orders", "url": "https://example.com/hook", "event_types": ["response.completed", "response.failed"]}
PATH = "/webhook_endpoints"


def create_endpoint(api: Api, **changed: object) -> str:
    """Create an endpoint."""
    return str(ok(api.post(PATH, {**BODY, **changed}))["id"])


def audit_events(api: Api) -> list[str]:
    """Return the audit events of the team's endpoints."""
    with scope.team(api.caller.team.pk):
        lines = AuditEvent.objects.filter(action__startswith="webhook_endpoint.").order_by("pk")
        return [line.action.partition(".")[2] for line in lines]


def test_the_sdk_manages_endpoints(client: OpenAI) -> None:
    made = client.webhooks.create(
        name="orders", url="https://example.com/hook", event_types=["response.completed", "response.completed"]
    )
    assert made.signing_secret.startswith("whsec_")
    found = client.webhooks.retrieve(made.id)
    assert (found.name, found.event_types) == ("orders", ["response.completed"])
    assert found.signing_secret_hint == f"whsec_…{made.signing_secret[-4:]}"
    changed = client.webhooks.update(made.id, name="bills", event_types=["batch.failed"])
    assert (changed.name, changed.url, changed.event_types) == ("bills", found.url, ["batch.failed"])
    assert [one.id for one in client.webhooks.list()] == [made.id]
    assert "response.cancelled" in client.webhooks.event_types.list().data
    assert client.webhooks.delete(made.id).deleted
    assert list(client.webhooks.list()) == []


def test_changes_are_audited_without_the_secret(api: Api) -> None:
    made = ok(api.post(PATH, BODY))
    api.post(f"{PATH}/{made['id']}", {"name": "bills"})
    api.post(f"{PATH}/{made['id']}/rotate_secret", {})
    api.delete(f"{PATH}/{made['id']}")
    assert audit_events(api) == ["created", "updated", "secret_rotated", "deleted"]
    with scope.team(api.caller.team.pk):
        whole = str(list(AuditEvent.objects.values()))
    assert made["signing_secret"] not in whole


def test_an_update_without_changes_is_not_audited(api: Api) -> None:
    mine = create_endpoint(api)
    before = endpoint_of(api.caller).updated_at
    ok(api.post(f"{PATH}/{mine}", {"name": BODY["name"]}))
    ok(api.post(f"{PATH}/{mine}", {}))
    assert (endpoint_of(api.caller).updated_at, audit_events(api)) == (before, ["created"])


def test_endpoints_are_listed_newest_first_in_pages(api: Api) -> None:
    made = [create_endpoint(api, name=name) for name in ("a", "b", "c")]
    first = ok(api.get(PATH, limit=2))
    assert ([one["id"] for one in first["data"]], first["has_more"]) == ([made[2], made[1]], True)
    assert [one["id"] for one in ok(api.get(PATH, after=first["last_id"]))["data"]] == [made[0]]
    assert error(api.get(PATH, after="we_unknown")) == (404, "after", None)


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"url": "http://example.com/hook"}, "url", "url_not_allowed"),
        ({"url": "https://127.0.0.1/hook"}, "url", "url_not_allowed"),
        ({"url": "https://metadata.internal/"}, "url", "url_not_allowed"),
        ({"url": "https://example.com:8443/"}, "url", "url_not_allowed"),
        ({"url": ""}, "url", "empty_string"),
        ({"name": "x" * 257}, "name", "string_above_max_length"),
        ({"event_types": []}, "event_types", "empty_array"),
        ({"event_types": ["response.completed", "eval.run.failed"]}, "event_types[1]", "invalid_value"),
        ({"enabled": True}, "enabled", "unknown_parameter"),
    ],
)
def test_invalid_endpoints_are_refused(api: Api, changed: dict[str, object], param: str, code: str) -> None:
    assert error(api.post(PATH, {**BODY, **changed})) == (400, param, code)
    if "enabled" not in changed:
        mine = create_endpoint(api)
        assert error(api.post(f"{PATH}/{mine}", changed)) == (400, param, code)


def test_the_number_of_endpoints_is_limited(api: Api) -> None:
    for number in range(services.MAX_ENDPOINTS):
        add_endpoint(api.caller, f"https://example.com/{number}")
    assert error(api.post(PATH, BODY)) == (400, None, "webhook_endpoint_limit_exceeded")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "", {"name": "mine"}),
        ("DELETE", "", None),
        ("POST", "/rotate_secret", {}),
        ("POST", "/test", {"event_type": "response.completed"}),
    ],
)
def test_another_teams_endpoint_is_not_found(api: Api, outsider: Api, method: str, path: str, body: object) -> None:
    mine = create_endpoint(api)
    theirs = outsider.request(method, f"{PATH}/{mine}{path}", json=body)
    unknown = outsider.request(method, f"{PATH}/we_unknown{path}", json=body)
    assert error(theirs) == error(unknown) == (404, None, None)
    assert theirs.text == unknown.text.replace("we_unknown", mine)
    assert (endpoint_of(api.caller).name, audit_events(api)) == ("orders", ["created"])
    assert ok(outsider.get(PATH))["data"] == []


def test_reading_and_writing_have_separate_scopes(api: Api, make_api: MakeApi) -> None:
    reader = make_api(team=api.caller.team, scopes=["webhooks.read"])
    mine = create_endpoint(api)
    assert ok(reader.get(f"{PATH}/{mine}"))["id"] == mine
    for answer in (reader.post(PATH, BODY), reader.delete(f"{PATH}/{mine}"), reader.post(f"{PATH}/{mine}/test", {})):
        assert error(answer) == (403, None, "insufficient_scope")


def test_rotation_returns_a_new_secret(api: Api) -> None:
    made = ok(api.post(PATH, BODY))
    plain = ok(api.post(f"{PATH}/{made['id']}/rotate_secret", b""))
    assert plain["signing_secret"] != made["signing_secret"]
    row = endpoint_of(api.caller)
    assert (row.secret, row.previous_secret, row.previous_until) == (plain["signing_secret"], "", None)
    kept = ok(api.post(f"{PATH}/{made['id']}/rotate_secret", {"keep_old_secret_active_for_24_hours": True}))
    row = endpoint_of(api.caller)
    assert (row.secret, row.previous_secret) == (kept["signing_secret"], plain["signing_secret"])
    assert row.previous_until is not None
    assert (row.previous_until - row.updated_at) == services.OVERLAP


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook receiver that accepts every delivery."""
    with running_receiver() as running:
        yield running


def test_sending_a_test_event_posts_a_signed_payload(reaching: Api, receiver: Receiver) -> None:
    receiver.statuses = [202]
    made = ok(reaching.post(PATH, {**BODY, "url": receiver.url}))
    tested = ok(reaching.post(f"{PATH}/{made['id']}/test", {"event_type": "response.failed"}))
    assert (tested["status_code"], tested["webhook_endpoint_id"]) == (202, made["id"])
    event = receiver.requests[0].unwrap(made["signing_secret"])
    assert (event.type, event.object, event.id) == ("response.failed", "event", receiver.requests[0].id)
    assert event.data.id.startswith("resp_")
    assert audit_events(reaching) == ["created", "tested"]


def test_a_test_event_of_a_budget_alert_has_the_fields_of_a_real_one(reaching: Api, receiver: Receiver) -> None:
    made = ok(reaching.post(PATH, {**BODY, "url": receiver.url, "event_types": ["budget.alert"]}))
    ok(reaching.post(f"{PATH}/{made['id']}/test", {"event_type": "budget.alert"}))
    data = receiver.requests[0].unwrap(made["signing_secret"]).data
    assert (data.id[:4], data.percent, data.spent, data.amount) == ("ntf_", 80, "80.5000000000", "100.0000000000")


@pytest.mark.parametrize("status", [307, 400, 500])
def test_a_test_event_that_the_endpoint_rejects_is_an_error(reaching: Api, receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    receiver.headers = {"location": "https://elsewhere.example/secret"}
    mine = create_endpoint(reaching, url=receiver.url)
    answer = reaching.post(f"{PATH}/{mine}/test", {"event_type": "batch.failed"})
    assert error(answer) == (400, None, "webhook_endpoint_test_failed")
    assert f"HTTP status {status}" in answer.text
    assert "elsewhere" not in answer.text
    assert audit_events(reaching) == ["created", "tested"]


def test_a_test_event_without_a_response_is_an_error(reaching: Api, api: Api) -> None:
    mine = create_endpoint(reaching, url="http://127.0.0.1:1/hook")
    sample = {"event_type": "response.completed"}
    assert error(reaching.post(f"{PATH}/{mine}/test", sample)) == (400, None, "url_not_fetched")
    hidden = add_endpoint(api.caller, "https://127.0.0.1/hook")
    assert error(api.post(f"{PATH}/{hidden.pk}/test", sample))[0] == 400
    assert error(api.post(f"{PATH}/{hidden.pk}/test", {"event_type": "video.failed"})) == (
        400,
        "event_type",
        "invalid_value",
    )
