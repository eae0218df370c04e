"""The directory: teams of keys and routes of model names, cached for one to two seconds."""

import asyncio
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.clock import now
from core.db.db_threads import in_db_thread
from core.errors import Forbidden, ModelNotFound, Unauthorized
from tenants import directory, scope, services
from tenants.directory import Route
from tenants.models import ApiKey, Model, ModelVisibility, Scope, Team, Upstream
from tests.support.api import Caller, MakeCaller
from tests.support.machine_clock import machine_time
from tests.support.waiting import eventually

PROMISED_SECONDS = 2.0


def seconds_until(happened: Callable[[], bool]) -> float:
    """Return the seconds until the condition is true."""
    began = machine_time()
    while not happened():
        assert machine_time() - began < 2 * PROMISED_SECONDS, "it never happened"
        time.sleep(0.01)
    return machine_time() - began


def is_accepted(secret: str) -> bool:
    """Return whether the key is accepted."""
    try:
        directory.principal(secret)
    except Unauthorized:
        return False
    return True


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_resolves_to_its_team_and_limits(database: None, make_caller: MakeCaller) -> None:
    caller = make_caller(scopes=[Scope.MODELS_READ], allowed_models=["a", "b"])
    principal = directory.principal(caller.secret)
    assert (principal.team_id, principal.key_id) == (caller.team.pk, caller.key.pk)
    assert (principal.may_use("a"), principal.may_use("c")) == (True, False)
    principal.require(Scope.MODELS_READ)
    with pytest.raises(Forbidden, match=r"responses\.write"):
        principal.require(Scope.RESPONSES_WRITE)


@pytest.mark.slow
def test_a_revoked_key_is_rejected_within_two_seconds(database: None, caller: Caller) -> None:
    assert is_accepted(caller.secret)
    assert services.revoke_key(key=caller.key)
    assert seconds_until(lambda: not is_accepted(caller.secret)) < PROMISED_SECONDS
    with pytest.raises(Unauthorized) as refused:
        directory.principal(caller.secret)
    assert refused.value.code == "api_key_revoked"


def test_a_key_can_only_be_revoked_once(database: None, caller: Caller) -> None:
    assert [services.revoke_key(key=caller.key) for _ in range(2)] == [True, False]


@pytest.mark.slow
def test_an_expired_key_is_rejected_even_if_it_is_cached(database: None, make_caller: MakeCaller) -> None:
    # On a busy machine, a key may expire before it is looked up.
    made = (make_caller(expires_at=now() + timedelta(seconds=seconds)) for seconds in (0.8, 5, 60))
    caller = next(caller for caller in made if is_accepted(caller.secret))
    expires_at = caller.key.expires_at
    assert expires_at is not None
    eventually(lambda: now() > expires_at)
    assert not is_accepted(caller.secret)
    with pytest.raises(Unauthorized) as refused:
        directory.principal(caller.secret)
    assert refused.value.code == "api_key_expired"


@pytest.mark.parametrize("secret", ["sk-nobody", "", "é", "sk-" + "x" * 10_000])
def test_an_unknown_key_is_rejected(database: None, secret: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        directory.principal(secret)
    assert refused.value.code == "invalid_api_key"


def test_a_busy_key_queries_the_database_once_a_second(database: None, caller: Caller) -> None:
    directory.principal(caller.secret)
    with CaptureQueriesContext(connection) as captured:
        for _ in range(50):
            directory.principal(caller.secret)
    assert len(captured) == 0


def test_a_key_is_looked_up_together_with_its_team(database: None, caller: Caller) -> None:
    directory.principal(caller.secret)
    with CaptureQueriesContext(connection) as captured:
        assert directory.guardrails(caller.team.pk) is None
    assert len(captured) == 0


async def test_requests_that_miss_at_the_same_time_share_a_lookup() -> None:
    looked_up: list[str] = []

    @directory.CachedLookup
    def slow(name: str) -> str:
        looked_up.append(name)
        time.sleep(0.05)
        return name.upper()

    waiting = [asyncio.create_task(slow.aget(name)) for name in ("a", "b") * 10]
    await asyncio.sleep(0)
    waiting.pop(0).cancel()
    assert await asyncio.gather(*waiting) == ["B", *["A", "B"] * 9]
    assert sorted(looked_up) == ["a", "b"]


def counting() -> "directory.CachedLookup[int]":
    """Return a lookup whose result is the number of lookups so far."""
    results = count(1)

    @directory.CachedLookup
    def next_number(_: str) -> int:
        return next(results)

    return next_number


async def eventually_returns(lookup: "directory.CachedLookup[int]", expected: int) -> None:
    async with asyncio.timeout(60):
        while await lookup.aget("a") != expected:
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_result_in_use_is_renewed_in_the_background() -> None:
    lookup = counting()
    lookup.remember(0, "a", at=time.monotonic() - 1.5)
    # A lookup would have suspended it.
    with pytest.raises(StopIteration) as returned:
        lookup.aget("a").send(None)
    assert returned.value.value == 0
    await eventually_returns(lookup, 1)
    # By a timer, as it was used.
    await eventually_returns(lookup, 2)


async def test_a_cached_result_expires_before_two_seconds() -> None:
    lookup = counting()
    lookup.remember(0, "a", at=time.monotonic() - 1.9)
    assert await lookup.aget("a") == 1


async def test_an_unused_result_is_not_renewed() -> None:
    lookup = counting()
    assert await lookup.aget("a") == 1
    lookup._renew_if_used(("a",))
    assert not lookup._active


async def test_an_earlier_lookup_does_not_replace_a_later_one() -> None:
    lookup, at = counting(), time.monotonic()
    lookup.remember(2, "a", at=at)
    lookup.remember(1, "a", at=at - 0.1)
    assert lookup("a") == 2


@pytest.mark.slow
async def test_a_revoked_key_in_use_is_rejected_on_the_event_loop(database: None, make_caller: MakeCaller) -> None:
    caller = await in_db_thread(make_caller)
    await directory.aprincipal(caller.secret)
    assert await in_db_thread(partial(services.revoke_key, key=caller.key))

    async def is_rejected() -> bool:
        try:
            await directory.aprincipal(caller.secret)
        except Unauthorized:
            return True
        return False

    async with asyncio.timeout(60):
        while not await is_rejected():
            await asyncio.sleep(0.01)


async def test_the_event_loop_records_the_last_use_without_waiting(database: None, make_caller: MakeCaller) -> None:
    callers = [await in_db_thread(make_caller) for _ in range(3)]
    for caller in callers:
        await directory.aprincipal(caller.secret)

    def unused() -> int:
        with scope.every_team():
            return ApiKey.objects.filter(pk__in=[one.key.pk for one in callers], last_used_at=None).count()

    async with asyncio.timeout(60):
        while await in_db_thread(unused):
            await asyncio.sleep(0.02)


def test_the_last_use_of_a_key_is_recorded(database: None, caller: Caller) -> None:
    assert caller.key.last_used_at is None
    directory.principal(caller.secret)
    with scope.team(caller.team.pk):
        assert ApiKey.objects.get(pk=caller.key.pk).last_used_at is not None


def test_only_a_digest_of_a_secret_is_stored(database: None, caller: Caller) -> None:
    with scope.team(caller.team.pk), connection.cursor() as cursor:
        cursor.execute("SELECT to_jsonb(k)::text FROM tenants_apikey AS k WHERE id = %s", [caller.key.pk])
        (row,) = cursor.fetchone()
    assert caller.secret not in row
    assert caller.secret.rsplit("-", 1)[-1] not in row
    assert caller.secret[-4:] in row


# -- routes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def name() -> str:
    """A model name that no other test uses."""
    return f"model-{uuid.uuid4().hex}"


def add_route(name: str, *teams: Team, default: bool = False, upstream_model: str = "", enabled: bool = True) -> str:
    """Route a name to a new upstream, for these teams or for all. Return the upstream's id."""
    upstream = Upstream.objects.create(name=uuid.uuid4().hex, base_url="http://x/v1", api_key="k", is_default=default)
    model = Model.objects.create(name=name, upstream=upstream, upstream_model=upstream_model, enabled=enabled)
    for team in teams:
        with scope.team(team.pk):
            ModelVisibility.objects.create(model=model, team=team)
    return upstream.pk


async def route(caller: Caller, model: str) -> Route:
    """Return the route of the caller's requests for a model."""
    principal = await directory.aprincipal(caller.secret)
    return await directory.aroute(principal, model)


async def test_an_exact_name_takes_precedence_over_the_wildcard(database: None, caller: Caller, name: str) -> None:
    _, own = await in_db_thread(lambda: (add_route("*", caller.team, default=True), add_route(name)))
    assert (await route(caller, name)).upstream.id == own


async def test_other_names_match_the_wildcard(database: None, caller: Caller, name: str) -> None:
    star = await in_db_thread(lambda: add_route("*", caller.team))
    found = await route(caller, name)
    assert (found.upstream.id, found.model, found.upstream_model) == (star, name, name)


async def test_a_route_of_the_team_takes_precedence_over_a_shared_one(
    database: None, caller: Caller, name: str
) -> None:
    _, own = await in_db_thread(lambda: (add_route(name, default=True), add_route(name, caller.team)))
    assert (await route(caller, name)).upstream.id == own


async def test_a_route_of_several_teams_counts_as_own_for_each(
    database: None, make_caller: MakeCaller, name: str
) -> None:
    callers = await in_db_thread(lambda: [make_caller() for _ in range(3)])
    teams = [caller.team for caller in callers]
    everybodys, shared = await in_db_thread(lambda: (add_route(name, default=True), add_route(name, *teams[:2])))
    found = [(await route(caller, name)).upstream.id for caller in callers]
    assert found == [shared, shared, everybodys]


async def test_the_default_upstream_takes_precedence(database: None, caller: Caller, name: str) -> None:
    _, default, _ = await in_db_thread(lambda: (add_route(name), add_route(name, default=True), add_route(name)))
    assert (await route(caller, name)).upstream.id == default


async def test_the_oldest_of_equal_routes_is_used(database: None, caller: Caller, name: str) -> None:
    oldest, _ = await in_db_thread(lambda: (add_route(name), add_route(name)))
    assert (await route(caller, name)).upstream.id == oldest


async def test_a_model_of_another_team_is_not_found(database: None, make_caller: MakeCaller, name: str) -> None:
    mine, other = await in_db_thread(lambda: (make_caller(), make_caller()))
    theirs = await in_db_thread(lambda: {add_route(name, other.team), add_route("*", other.team)})
    assert await upstream_of(other, name) in theirs
    # Another test may have left a wildcard for all teams.
    assert await upstream_of(mine, name) == await upstream_of(mine, f"{name}-unknown")
    assert await upstream_of(mine, name) not in theirs


async def upstream_of(caller: Caller, model: str) -> str | None:
    """Return the id of the upstream of a model, or None without a route."""
    try:
        return (await route(caller, model)).upstream.id
    except ModelNotFound:
        return None


async def target_ids(caller: Caller, model: str) -> list[str]:
    """Return the ids of the upstreams that may serve the caller's requests for a model, in their order."""
    return [target.upstream.id for target in (await route(caller, model)).targets]


async def test_all_upstreams_of_a_name_are_targets(database: None, caller: Caller, name: str) -> None:
    oldest, default, newest = await in_db_thread(
        lambda: (add_route(name), add_route(name, default=True), add_route(name))
    )
    assert await target_ids(caller, name) == [default, oldest, newest]


async def test_the_wildcard_is_no_target_of_a_name_with_its_own_row(database: None, caller: Caller, name: str) -> None:
    _, own = await in_db_thread(lambda: (add_route("*", caller.team), add_route(name, caller.team)))
    assert await target_ids(caller, name) == [own]


async def test_all_wildcards_of_a_team_are_targets_of_other_names(database: None, caller: Caller, name: str) -> None:
    stars = await in_db_thread(lambda: [add_route("*", caller.team) for _ in range(2)])
    assert await target_ids(caller, name) == stars


async def test_targets_of_the_team_are_not_mixed_with_others(database: None, caller: Caller, name: str) -> None:
    _, *own = await in_db_thread(lambda: (add_route(name), add_route(name, caller.team), add_route(name, caller.team)))
    assert await target_ids(caller, name) == own


async def test_all_upstreams_of_a_fallback_model_come_last(database: None, caller: Caller, name: str) -> None:
    def add() -> list[str]:
        small = [add_route(f"{name}-small") for _ in range(2)]
        Model.objects.filter(name=f"{name}-small", upstream=small[0]).update(fallback_for=name, priority=-5)
        return [add_route(name), *small]

    expected = await in_db_thread(add)
    assert await target_ids(caller, name) == expected
    found = await route(caller, name)
    assert [target.model for target in found.targets] == [name, f"{name}-small", f"{name}-small"]


async def test_a_fallback_model_serves_a_name_whose_upstreams_take_no_requests(
    database: None, caller: Caller, name: str
) -> None:
    def add() -> str:
        drained, small = add_route(name), add_route(f"{name}-small")
        Model.objects.filter(upstream=drained).update(weight=0)
        Model.objects.filter(upstream=small).update(fallback_for=name)
        return small

    small = await in_db_thread(add)
    found = await route(caller, name)
    assert (found.upstream.id, found.model, found.others) == (small, f"{name}-small", ())


async def test_a_model_whose_upstreams_take_no_requests_is_not_found(database: None, caller: Caller, name: str) -> None:
    await in_db_thread(lambda: Model.objects.filter(upstream=add_route(name, caller.team)).update(weight=0))
    with pytest.raises(ModelNotFound):
        await route(caller, name)


async def test_a_disabled_route_is_ignored(database: None, caller: Caller, name: str) -> None:
    disabled, other = await in_db_thread(lambda: (add_route(name, caller.team, enabled=False), add_route(name)))
    assert (await route(caller, name)).upstream.id == other != disabled


async def test_a_key_can_be_limited_to_some_models(database: None, make_caller: MakeCaller, name: str) -> None:
    caller = await in_db_thread(lambda: make_caller(allowed_models=["another"]))
    await in_db_thread(lambda: add_route(name, caller.team))
    with pytest.raises(ModelNotFound):
        await route(caller, name)


async def test_the_upstream_may_use_another_model_name(database: None, caller: Caller, name: str) -> None:
    await in_db_thread(lambda: add_route(name, caller.team, upstream_model="gpt"))
    found = await route(caller, name)
    assert (found.model, found.upstream_model, found.upstream.api_key) == (name, "gpt", "k")


async def test_the_wildcard_cannot_be_requested(database: None, caller: Caller) -> None:
    await in_db_thread(lambda: add_route("*", caller.team))
    with pytest.raises(ModelNotFound):
        await route(caller, "*")


@pytest.mark.slow
async def test_a_new_route_is_found_within_two_seconds(database: None, caller: Caller, name: str) -> None:
    old = await in_db_thread(lambda: add_route(name))
    assert (await route(caller, name)).upstream.id == old
    new = await in_db_thread(lambda: add_route(name, caller.team))
    began = machine_time()
    while (await route(caller, name)).upstream.id != new:
        assert machine_time() - began < PROMISED_SECONDS


def test_the_key_of_an_upstream_is_encrypted_and_never_shown(database: None, name: str) -> None:
    upstream = Upstream.objects.get(pk=add_route(name))
    with connection.cursor() as cursor:
        cursor.execute("SELECT api_key FROM tenants_upstream WHERE id = %s", [upstream.pk])
        (stored,) = cursor.fetchone()
    assert upstream.api_key == "k"
    assert stored.startswith("gAAAA")
    shown = directory.UpstreamEndpoint(id="upst_1", base_url="http://x/v1", api_key="secret")
    assert "secret" not in repr(shown)
