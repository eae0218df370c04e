"""Rotated and disabled API keys and suspended teams: changes take effect everywhere within two seconds."""

from datetime import timedelta

import pytest

from core.clock import now
from tenants import scope, services
from tenants.models import ApiKey, AuditEvent
from tests.support.api import Api, Caller
from tests.support.waiting import eventually

HOUR = timedelta(hours=1)


def authenticate(api: Api, secret: str) -> tuple[int, str | None]:
    """Return the status of a request with this secret, and its error code."""
    got = api.request("GET", "/models", headers={"Authorization": f"Bearer {secret}"})
    return got.status_code, got.json()["error"]["code"] if got.status_code != 200 else None


def stored(caller: Caller) -> ApiKey:
    with scope.every_team():
        return ApiKey.objects.get(pk=caller.key.pk)


@pytest.mark.slow
def test_both_secrets_work_until_the_grace_period_ends(api: Api, caller: Caller) -> None:
    new = services.rotate_key(key=caller.key, grace=HOUR)
    assert new.key.pk == caller.key.pk
    assert [authenticate(api, secret)[0] for secret in (caller.secret, new.secret)] == [200, 200]
    with scope.every_team():
        ApiKey.objects.filter(pk=caller.key.pk).update(old_until=now())
    eventually(lambda: authenticate(api, caller.secret) == (401, "api_key_expired"))
    assert authenticate(api, new.secret)[0] == 200


@pytest.mark.slow
def test_the_old_secret_expires_immediately_without_a_grace_period(api: Api, caller: Caller) -> None:
    assert authenticate(api, caller.secret)[0] == 200
    new = services.rotate_key(key=caller.key, grace=timedelta(0))
    eventually(lambda: authenticate(api, caller.secret) == (401, "api_key_expired"))
    assert authenticate(api, new.secret)[0] == 200


def test_a_second_rotation_invalidates_the_first_secret(api: Api, caller: Caller) -> None:
    second = services.rotate_key(key=caller.key, grace=HOUR)
    third = services.rotate_key(key=second.key, grace=HOUR)
    assert [authenticate(api, each) for each in (caller.secret, second.secret, third.secret)] == [
        (401, "invalid_api_key"),
        (200, None),
        (200, None),
    ]


def test_the_last_use_of_the_old_secret_is_recorded(api: Api, caller: Caller) -> None:
    new = services.rotate_key(key=caller.key, grace=HOUR)
    assert authenticate(api, new.secret)[0] == 200
    assert stored(caller).old_used_at is None
    assert authenticate(api, caller.secret)[0] == 200
    # No request waits until its use is recorded.
    used_at = eventually(lambda: stored(caller).old_used_at)
    assert used_at >= new.key.rotated_at  # type: ignore[operator]  # both are set


def test_address_and_user_agent_of_the_last_use_are_recorded(api: Api, caller: Caller) -> None:
    api.request("GET", "/models", headers={"User-Agent": "shop/1.2"})
    eventually(lambda: stored(caller).last_used_at)
    key = stored(caller)
    assert (key.last_used_address, key.last_used_agent) == ("127.0.0.1", "shop/1.2")


def test_a_revoked_key_cannot_be_rotated(caller: Caller) -> None:
    services.revoke_key(key=caller.key)
    with pytest.raises(ValueError, match="revoked"):
        services.rotate_key(key=caller.key, grace=HOUR)


@pytest.mark.slow
def test_a_key_can_be_disabled_and_enabled(api: Api, caller: Caller) -> None:
    assert [services.enable_key(key=caller.key, enabled=False) for _ in range(2)] == [True, False]
    eventually(lambda: authenticate(api, caller.secret) == (401, "api_key_disabled"))
    assert services.enable_key(key=caller.key, enabled=True)
    eventually(lambda: authenticate(api, caller.secret)[0] == 200)


@pytest.mark.slow
def test_keys_of_a_suspended_team_are_refused(api: Api, caller: Caller, outsider: Api) -> None:
    assert [services.suspend_team(team=caller.team, suspended=True) for _ in range(2)] == [True, False]
    eventually(lambda: authenticate(api, caller.secret) == (403, "team_suspended"))
    assert authenticate(outsider, outsider.caller.secret)[0] == 200
    assert services.suspend_team(team=caller.team, suspended=False)
    eventually(lambda: authenticate(api, caller.secret)[0] == 200)


def test_rotating_and_disabling_a_key_is_audited(caller: Caller) -> None:
    new = services.rotate_key(key=caller.key, grace=HOUR)
    services.enable_key(key=caller.key, enabled=False)
    with scope.every_team():
        lines = list(AuditEvent.objects.filter(target=caller.key.pk).order_by("id"))
    assert [line.action for line in lines] == ["api_key.created", "api_key.rotated", "api_key.disabled"]
    assert lines[1].after["prefix"] == new.key.prefix
    assert new.secret not in str([line.after for line in lines])
