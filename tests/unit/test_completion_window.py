"""Completion windows: the start within the window at which the model is cheapest."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.conf import LazySettings

from responses.requests.completion_window import PlannedStart, plan_start
from responses.schema import parse_create
from tenants.directory import Route, UpstreamEndpoint
from tenants.prices import Dimension, PriceEntry, PriceList

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DELAY = timedelta(seconds=30)
USUAL = PriceEntry(dimension=Dimension.INPUT, amount=Decimal(4))
OUTPUT = PriceEntry(dimension=Dimension.OUTPUT, amount=Decimal(4))


def cheap(hours: str, amount: str = "1", **conditions: object) -> PriceEntry:
    """Return a lower price of the input for some hours of the day."""
    return PriceEntry(dimension=Dimension.INPUT, amount=Decimal(amount), hours=hours, **conditions)  # type: ignore[arg-type]


def target(name: str, *entries: PriceEntry, group: int = 0) -> Route:
    upstream = UpstreamEndpoint(id=name, base_url="http://x/v1", api_key="")
    return Route(model="m", upstream_model=name, upstream=upstream, prices=PriceList(entries), group=group)


def priced(*entries: PriceEntry) -> Route:
    return target("a", USUAL, OUTPUT, *entries)


def planned(route: Route, window: str = "8h", **parameters: object) -> PlannedStart:
    body = parse_create(
        {
            "model": "m",
            "input": "Hi",
            "background": True,
            "background_options": {"completion_window": window},
            **parameters,
        }
    )
    assert body.may_wait
    return plan_start(body, route, created_at=NOON, input_tokens=1000)


@pytest.mark.parametrize("options", [{}, {"background_options": {"completion_window": "soonest"}}])
def test_a_request_without_a_window_does_not_wait(options: dict[str, object]) -> None:
    assert not parse_create({"model": "m", "input": "Hi", "background": True, **options}).may_wait


def test_the_run_starts_shortly_after_the_cheapest_hours_begin() -> None:
    route = priced(cheap("14:00-15:00", "2"), cheap("16:30-00:30"))
    assert planned(route) == (NOON.replace(hour=16, minute=30) + DELAY, route)


def test_of_equal_costs_the_earliest_time_counts() -> None:
    assert planned(priced(cheap("14:00-14:30"), cheap("16:00-16:30"))).at == NOON.replace(hour=14) + DELAY


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (cheap("11:00-13:00"),),
        (cheap("14:00-15:00", "9"),),
        # A price of another tier.
        (cheap("14:00-15:00", service_tier="priority"),),
        # Too late for this window.
        (cheap("18:00-19:00"),),
    ],
    ids=["one price", "cheap hours now", "more expensive later", "other tier", "too late"],
)
def test_the_run_starts_at_once_if_no_other_time_is_cheaper(entries: tuple[PriceEntry, ...]) -> None:
    assert planned(priced(*entries)).at is None


def test_the_end_of_expensive_hours_counts() -> None:
    assert planned(priced(cheap("10:00-13:00", "9"))).at == NOON.replace(hour=13) + DELAY


def test_a_price_that_becomes_valid_counts() -> None:
    lower = PriceEntry(dimension=Dimension.INPUT, amount=Decimal(1), valid_from=NOON.replace(hour=15))
    assert planned(priced(lower)).at == NOON.replace(hour=15) + DELAY


def test_cheap_hours_of_the_next_day_count() -> None:
    route = priced(cheap("01:00-02:00"))
    body = parse_create(
        {"model": "m", "input": "Hi", "background": True, "background_options": {"completion_window": "8h"}}
    )
    evening = NOON.replace(hour=22)
    expected = evening + timedelta(hours=3) + DELAY
    assert plan_start(body, route, created_at=evening, input_tokens=1000).at == expected


@pytest.mark.parametrize(("start", "starts"), [("13:20", True), ("13:30", False)])
def test_the_longest_answer_has_time_after_the_start(settings: LazySettings, start: str, starts: bool) -> None:
    settings.UPSTREAM_ANSWER_TIMEOUT, settings.UPSTREAM_BACKGROUND_RETRY_SECONDS = 1800, 300
    assert (planned(priced(cheap(f"{start}-15:00")), "2h").at is not None) is starts


def test_a_run_starts_at_once_if_the_window_is_shorter_than_the_longest_answer(settings: LazySettings) -> None:
    settings.UPSTREAM_ANSWER_TIMEOUT = 10_000
    assert planned(priced(cheap("12:10-15:00")), "2h").at is None


def test_the_cheapest_target_of_the_first_priority_comes_first() -> None:
    first, second = priced(), target("b", USUAL, OUTPUT, cheap("14:00-15:00"))
    later = target("c", cheap("12:00-13:00", "0"), OUTPUT, group=1)
    at, route = planned(Route.through([first, second, later]))
    assert at == NOON.replace(hour=14) + DELAY
    assert [choice.upstream.id for choice in route.targets] == ["b", "a", "c"]


def test_targets_with_equal_costs_keep_their_order() -> None:
    route = Route.through([priced(cheap("14:00-15:00")), target("b", USUAL, OUTPUT, cheap("14:00-15:00"))])
    assert planned(route) == (NOON.replace(hour=14) + DELAY, route)


def test_a_run_does_not_wait_if_its_first_target_has_no_price() -> None:
    route = Route.through([target("a"), target("b", USUAL, OUTPUT, cheap("14:00-15:00"))])
    assert planned(route) == (None, route)
