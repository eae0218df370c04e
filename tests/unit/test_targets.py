"""The targets of a run: the order in which its turns try them."""

from uuid import uuid4

import pytest

from core.errors import Failure
from providers.retries import Retries
from providers.targets.queue import Targets
from tenants.directory import Route, UpstreamEndpoint


def route() -> Route:
    """Return a target that nothing else uses."""
    upstream = UpstreamEndpoint(id=uuid4().hex, name="u", base_url="http://127.0.0.1:1/v1", api_key="")
    return Route(model="m", upstream_model="m", upstream=upstream)


@pytest.fixture
def routes() -> list[Route]:
    """Three targets."""
    return [route() for _ in range(3)]


def ids(targets: Targets) -> list[str]:
    return [target.upstream.id for target in targets.ordered()]


def quiet(target: Route, seconds: int) -> None:
    """Let the upstream of a target ask for a pause."""
    failure = Failure(code="rate_limit_exceeded", message="", status=429, headers={"retry-after": str(seconds)})
    Retries(target).observe(failure)


def test_a_target_that_has_answered_comes_first(routes: list[Route]) -> None:
    targets = Targets(Route.through(routes))
    targets.stay_with(targets.ordered()[2])
    assert ids(targets) == [routes[2].upstream.id, routes[0].upstream.id, routes[1].upstream.id]


def test_a_silent_target_is_dropped_unless_it_is_the_last(routes: list[Route]) -> None:
    targets = Targets(Route.through(routes))
    for target in targets.ordered():
        targets.drop(target)
    assert ids(targets) == [routes[2].upstream.id]


def test_targets_that_ask_for_a_long_pause_come_last(routes: list[Route]) -> None:
    targets = Targets(Route.through(routes))
    quiet(routes[0], 30)
    quiet(routes[1], 20)
    assert ids(targets) == [routes[2].upstream.id, routes[1].upstream.id, routes[0].upstream.id]


def test_a_short_pause_does_not_change_the_order(routes: list[Route]) -> None:
    targets = Targets(Route.through(routes))
    quiet(routes[0], 1)
    assert ids(targets) == [target.upstream.id for target in routes]
