"""Cancelling a run that is about to end: either the cancellation or the end wins, permanently and for all clients."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import httpx2
import pytest

from tests.support.api import Api, Caller, ok
from tests.support.chunks import chunk, text
from tests.support.machine_clock import machine_time
from tests.support.sampling import SEED, sized
from tests.support.upstream import Pause, Received, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess

RACES = sized(40, full=500)
AT_ONCE = 8


@pytest.fixture
def nodes(web: WebProcess, daphne_web: WebProcess, http: httpx2.Client, caller: Caller) -> list[Api]:
    """The API of one team on two web processes."""
    return [Api(http, url=node.url, caller=caller) for node in (web, daphne_web)]


class Races:
    """Background runs that are cancelled at random moments, and their outcomes."""

    def __init__(self, nodes: list[Api], script: Script) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.unclosed: list[str] = []
        # Adapted to the speed of the machine, so that about as many runs are cancelled as complete.
        self._longest_wait = 0.6
        self._nodes = nodes
        self._script = script
        self._lock = threading.Lock()

    def run(self, number: int) -> None:
        """Run one race. Without a cancellation the run takes about a third of a second."""
        chance = random.Random(f"{SEED} {number}")
        here, there = chance.choice(self._nodes), chance.choice(self._nodes)
        body = here.create(model=self._script.model, input=f"race {number}", background=True)
        time.sleep(chance.uniform(0, self._longest_wait))
        cancelled = ok(there.post(f"/responses/{body['id']}/cancel", {}))
        is_closed = cancelled["status"] != "cancelled" or self._is_over_soon(number)
        with self._lock:
            self._longest_wait *= 1.1 if cancelled["status"] == "cancelled" else 0.9
            self.answers[body["id"]] = cancelled
            if not is_closed:
                self.unclosed.append(body["id"])

    def _is_over_soon(self, number: int) -> bool:
        """Return whether the upstream call was never made, has ended, or was closed."""
        # Within a second on a machine that does nothing else.
        deadline = machine_time() + 10
        while any(not (call.closed.is_set() or call.answered.is_set()) for call in self._calls(number)):
            if machine_time() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _calls(self, number: int) -> list[Received]:
        question = f"race {number}"
        return [call for call in [*self._script.received] if call.body["messages"][-1]["content"] == question]


@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_the_status_that_cancel_returns_is_final(nodes: list[Api], script: Script) -> None:
    script.always(stream(chunk(content="Hel"), Pause(0.25), *text("lo")[1:]))
    races = Races(nodes, script)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(races.run, range(RACES)))
    outcomes = Counter(body["status"] for body in races.answers.values())
    assert races.unclosed == []
    assert set(outcomes) == {"cancelled", "completed"}, outcomes
    assert min(outcomes.values()) > RACES / 50, outcomes
    eventually(lambda: all(call.closed.is_set() or call.answered.is_set() for call in script.received))
    for response_id, body in races.answers.items():
        # The usage of an interrupted call is known once its process has recorded it.
        known = body if body["usage"] else {**body, "usage": ANY}
        assert nodes[0].retrieve(response_id) == known
