"""Circuit breakers of several processes share their states through Redis. Models with one target use none of it."""

import asyncio
import os
from collections.abc import Callable
from uuid import uuid4

import pytest
import redis

from core.errors import Failure, UpstreamError
from core.work.notifications import loop_notifications
from core.work.redis_client import loop_client
from engine.turn import Sampling, TurnRequest
from providers.clients import close_clients
from providers.targets.breaker.sharing import Breakers, loop_breakers, shared_states, target_key
from providers.targets.turn import FailoverModel
from providers.upstream import UpstreamModel
from providers.upstream_errors import CREDENTIALS_REJECTED, QUOTA_EXHAUSTED
from tenants.directory import Route, UpstreamEndpoint
from tests.support.upstream import ScriptedUpstream

BROKEN = Failure.of(UpstreamError("It is down."))


def route() -> Route:
    """Return a target that nothing else uses."""
    upstream = UpstreamEndpoint(id=uuid4().hex, name="u", base_url="http://127.0.0.1:1/v1", api_key="")
    return Route(model="m", upstream_model="m", upstream=upstream)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


pytestmark = pytest.mark.usefixtures("servers")


async def test_states_reach_other_processes() -> None:
    here, there, target = Breakers(), Breakers(), route()
    assert await there.admit(target)
    here.failed(target, QUOTA_EXHAUSTED, status=402)
    await until(lambda: not there.is_closed(target))
    assert not await there.admit(target)
    there.succeeded(target)
    await until(lambda: here.is_closed(target))
    assert await here.admit(target)


async def test_a_new_process_knows_the_states_before_its_first_request() -> None:
    here, target = Breakers(), route()
    here.failed(target, QUOTA_EXHAUSTED, status=402)
    key = target_key(target.upstream.id, target.upstream_model)
    await until(lambda: key in (shared_states() or {}))
    assert not await Breakers().admit(target)


async def test_one_of_several_processes_probes() -> None:
    processes, target = [Breakers() for _ in range(4)], route()
    for process in processes:
        await process.admit(target)
    processes[0].failed(target, CREDENTIALS_REJECTED, status=401)
    await until(lambda: not any(process.is_closed(target) for process in processes))
    for pause in (1, 2):
        await asyncio.sleep(pause + 0.2)
        admitted = [await process.admit(target) for process in processes for _ in range(3)]
        assert sum(admitted) == 1
        prober = processes[admitted.index(True) // 3]
        prober.failed(target, BROKEN, status=500)
        assert not any([await process.admit(target) for process in processes])
        # The pauses that follow, of 2 and 4 seconds.
        await until(lambda: all(process.seconds_until_probe(target) > 1 for process in processes))


async def test_the_states_are_rebuilt_after_redis_has_lost_them() -> None:
    here, target = Breakers(), route()
    here.failed(target, QUOTA_EXHAUSTED, status=402)
    key = target_key(target.upstream.id, target.upstream_model)
    await until(lambda: key in (shared_states() or {}))
    with redis.Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.delete("platform:targets")
    await until(lambda: key in (shared_states() or {}))
    assert not await Breakers().admit(target)


async def run_turn(model: UpstreamModel | FailoverModel, name: str) -> None:
    """Run a turn that says hello."""
    turn = model.open(TurnRequest(model=name, instructions=None, items=[], sampling=Sampling(), first_output_index=0))
    async for _ in turn.events():
        pass
    assert turn.result().failure is None


async def test_a_model_with_one_target_uses_no_breaker(upstream: ScriptedUpstream) -> None:
    with upstream.script() as script:
        script.say("Hello").say("Hello")
        endpoint = UpstreamEndpoint(id=uuid4().hex, name="u", base_url=upstream.url, api_key="k")
        only = Route(model=script.model, upstream_model=script.model, upstream=endpoint)
        tasks = asyncio.all_tasks()
        await run_turn(UpstreamModel(only), script.model)
        # Without these objects, the event loop has no connection to Redis, and no task uses one.
        made = [loop_breakers.pop(), loop_client.pop(), loop_notifications.pop()]
        assert made == [None, None, None]
        assert {task.get_name() for task in asyncio.all_tasks() - tasks} == set()
        await run_turn(FailoverModel(UpstreamModel(Route.through([only, route()]))), script.model)
        assert loop_breakers.pop() is not None
        await close_clients()
