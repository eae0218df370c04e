"""`GET /v1/me`: the permissions of a key, and the rest of its limits and budgets."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import limits
from core.clock import now, unix
from limits import Demand
from limits.services import set_limits
from tenants import directory, scope
from tenants.models import ApiKey, Budget, LimitSet, Team, UsageRecord
from tests.support.api import Api, Caller, MakeApi, error, ok
from tests.support.vector_stores import upload


def budget_of(found: LimitSet, *, is_hard: bool = True, amount: str = "10", period: str = "day") -> None:
    with scope.team(found.team_id):
        Budget.objects.create(
            team_id=found.team_id, limit_set=found, amount=Decimal(amount), is_hard=is_hard, period=period
        )


def spend(caller: Caller, cost: str, **columns: Any) -> None:
    with scope.team(caller.team.pk):
        UsageRecord.objects.create(
            team=caller.team, api_key=caller.key, endpoint="responses", object_id="resp_x", model="m", upstream_id="u",
            upstream_model="m", outcome="stop", cost=Decimal(cost), **columns,
        )  # fmt: skip


def use_of(me: dict[str, Any]) -> dict[tuple[str, str], tuple[int, int | None]]:
    """Return the value and the remaining amount by subject and limit."""
    return {(one["subject"], one["limit"]): (one["value"], one["remaining"]) for one in me["limits"]}


def test_a_key_without_limits_has_none(make_api: MakeApi) -> None:
    expiry = now().replace(microsecond=0) + timedelta(days=3)
    api = make_api(scopes=["files.read"], allowed_models=["b", "a"], tools=["mcp"], expires_at=expiry)
    me = ok(api.get("/me"))
    key, team = api.caller.key, api.caller.team
    assert me["key"] == {
        "id": key.pk,
        "name": key.name,
        "prefix": key.prefix,
        "last_four": key.last_four,
        "created_at": unix(key.created_at),
        "expires_at": unix(expiry),
    }
    assert me["team"] == {"id": team.pk, "name": team.name, "time_zone": "UTC"}
    assert (me["scopes"], me["allowed_models"], me["allowed_tools"]) == (["files.read"], ["a", "b"], ["mcp"])
    assert (me["limits"], me["budgets"]) == ([], [])
    assert {use["spent"] for use in me["spend"]} == {0}
    assert key.digest not in str(me)


def test_limits_show_the_remaining_amounts(api: Api) -> None:
    team, key = api.caller.team, api.caller.key
    set_limits(team=team, values={"requests_per_minute": 10, "max_output_tokens": 50, "files": 3, "open_batches": 2})
    set_limits(team=team, api_key=key, values={"concurrent_runs": 4, "stored_bytes": 1000})
    upload(api, "a.txt", b"x" * 100)
    caller = directory.principal(api.caller.secret)
    limits.reserve_sync(caller, Demand(run=True, max_output_tokens=1), reservation_id="resp_1")
    me = ok(api.get("/me"))
    used = use_of(me)
    assert used["key", "concurrent_runs"] == (4, 3)
    assert used["key", "stored_bytes"] == (1000, 900)
    assert used["team", "files"] == (3, 2)
    assert used["team", "open_batches"] == (2, 2)
    assert used["team", "max_output_tokens"] == (50, None)
    value, left = used["team", "requests_per_minute"]
    assert (value, left in {8, 9}) == (10, True)
    assert {one["subject_id"] for one in me["limits"]} == {team.pk, key.pk}


def test_budgets_show_the_spending_of_the_period_in_the_teams_time_zone(api: Api) -> None:
    team, zone = api.caller.team, ZoneInfo("Asia/Kathmandu")
    with scope.team(team.pk):
        Team.objects.filter(pk=team.pk).update(time_zone=zone.key)
    budget_of(set_limits(team=team, values={}))
    budget_of(set_limits(team=team, api_key=api.caller.key, values={}), is_hard=False, amount="1")
    spend(api.caller, "0.0000000001")
    spend(api.caller, "2.5")
    midnight = datetime.combine(now().astimezone(zone).date(), datetime.min.time(), tzinfo=zone)
    spend(api.caller, "100", occurred_at=midnight - timedelta(seconds=1))
    answer = api.get("/me")
    assert b'"spent":2.5000000001,' in answer.content
    hard, soft = ok(answer)["budgets"]
    assert (hard["subject"], hard["amount"], hard["is_hard"], hard["period"]) == ("team", 10, True, "day")
    assert (hard["remaining"], hard["reserved"]) == (7.4999999999, 0)
    assert (soft["subject"], soft["spent"], soft["remaining"], soft["is_hard"]) == ("key", 2.5000000001, 0, False)
    assert hard["period_start"] == soft["period_start"] == int(midnight.timestamp())
    assert hard["period_end"] - hard["period_start"] == 86_400


def test_the_spend_of_key_and_team_is_shown_without_a_budget(api: Api, make_api: MakeApi) -> None:
    team = api.caller.team
    spend(api.caller, "2.5")
    spend(make_api(team=team).caller, "0.5")
    at = now()
    spend(api.caller, "100", occurred_at=at - timedelta(days=40))
    me = ok(api.get("/me"))
    assert me["budgets"] == []
    shown = {(use["subject"], use["subject_id"], use["period"]): use["spent"] for use in me["spend"]}
    assert shown == {
        **{("team", team.pk, period): 3 for period in ("day", "week", "month")},
        **{("key", api.caller.key.pk, period): 2.5 for period in ("day", "week", "month")},
    }
    assert all(use["period_start"] <= at.timestamp() < use["period_end"] for use in me["spend"])
    assert {use["currency"] for use in me["spend"]} == {"usd"}


def test_limits_of_an_end_user_are_shown_on_request(api: Api) -> None:
    team = api.caller.team
    found = set_limits(team=team, end_user="*", values={"requests_per_day": 7})
    budget_of(found, is_hard=False)
    spend(api.caller, "0.5", end_user="ann")
    assert ok(api.get("/me"))["limits"] == []
    ann = ok(api.get("/me", end_user="ann"))
    assert [(one["subject"], one["subject_id"], one["value"]) for one in ann["limits"]] == [("end_user", "ann", 7)]
    assert [(one["subject_id"], one["spent"]) for one in ann["budgets"]] == [("ann", 0.5)]
    assert [one["spent"] for one in ok(api.get("/me", end_user="bob"))["budgets"]] == [0]


def test_each_key_sees_itself_and_its_own_team(api: Api, outsider: Api) -> None:
    set_limits(team=api.caller.team, values={"requests_per_minute": 10})
    foreign = ok(outsider.get("/me"))
    assert (foreign["key"]["id"], foreign["team"]["id"]) == (outsider.caller.key.pk, outsider.caller.team.pk)
    assert foreign["limits"] == []
    assert api.caller.team.pk not in str(foreign)


def test_an_admin_key_has_no_team(make_admin: Any) -> None:
    me = ok(make_admin("admin.usage.read").get("/me"))
    assert (me["team"], me["scopes"], me["limits"], me["spend"]) == (None, ["admin.usage.read"], [], [])
    assert me["key"]["id"].startswith("adminkey_")


def test_unknown_parameters_are_rejected(api: Api) -> None:
    assert error(api.get("/me", enduser="x")) == (400, "enduser", "unknown_parameter")


def test_a_revoked_key_is_refused(api: Api) -> None:
    with scope.team(api.caller.team.pk):
        ApiKey.objects.filter(pk=api.caller.key.pk).update(revoked_at=now())
    assert error(api.get("/me"))[0] == 401
