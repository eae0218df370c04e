"""Followers that lose their connection repeatedly, on two nodes, receive the same events as an undisturbed one."""

import random
import re
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.support.api import Api, Caller
from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Pause, Script, stream
from tests.support.web import WebProcess

TIMES = 100


@pytest.fixture
def nodes(web: WebProcess, daphne_web: WebProcess, http: httpx2.Client, caller: Caller) -> list[Api]:
    """The API of one team on two web processes."""
    return [Api(http, url=node.url, caller=caller) for node in (web, daphne_web)]


def numbers(raw: bytes) -> list[int]:
    """Return the numbers of the events in these bytes."""
    return [int(number) for number in re.findall(rb'"sequence_number":(\d+)', raw)]


class RoamingFollower:
    """A follower that disconnects after a few events and continues on any node after the last one it has."""

    def __init__(self, nodes: list[Api], response_id: str, *, seed: int) -> None:
        self.got = b""
        self.is_over = False
        self._nodes = nodes
        self._path = f"/v1/responses/{response_id}"
        self._chance = random.Random(seed)

    def follow_for(self, events: int | None) -> None:
        """Follow for this many events, or to the end. The connection breaks in the middle of the next event."""
        api = self._chance.choice(self._nodes)
        query = {"stream": "true"}
        if have := numbers(self.got):
            query["starting_after"] = str(have[-1])
        url = api._url.removesuffix("/v1") + self._path
        rest, came = b"", 0
        with api._http.stream("GET", url, params=query, headers=api.headers) as answer:
            assert answer.status_code == 200
            for piece in answer.iter_bytes(self._chance.choice([64, 500, 5000])):
                *whole, rest = (rest + piece).split(b"\n\n")
                for frame in whole:
                    if events is not None and came == events:
                        return
                    came += not frame.startswith(b":")
                    self.got += b"" if frame.startswith(b":") else frame + b"\n\n"
        self.is_over = True


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("worker")
def test_a_follower_reconnecting_a_hundred_times_misses_no_event(nodes: list[Api], script: Script) -> None:
    chance = random.Random(5)
    words = [piece for n in range(400) for piece in (chunk(content=f"word {n} "), Pause(0.02))]
    script.then(stream(*words, chunk(finish="stop")))
    response_id = nodes[0].create(model=script.model, input="Hi", background=True)["id"]
    undisturbed = RoamingFollower(nodes, response_id, seed=1)
    with ThreadPoolExecutor(1) as other:
        stayed = other.submit(undisturbed.follow_for, None)
        nomad = RoamingFollower(nodes, response_id, seed=2)
        for _ in range(TIMES):
            nomad.follow_for(chance.randint(0, 6))
        assert not nomad.is_over
        nomad.follow_for(None)
        stayed.result(60)
    assert nomad.got == undisturbed.got
    assert nomad.got.endswith(b"data: [DONE]\n\n")
    assert numbers(nomad.got) == list(range(len(numbers(nomad.got))))


def test_a_broken_stream_can_be_resumed_on_another_node(nodes: list[Api], script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    here, there = nodes
    with here.stream(model=script.model, input="Hi") as live:
        begun = [live.next() for _ in range(3)]
        gate.wait_until_reached()
    with there.follow(begun[0]["response"]["id"], starting_after=begun[-1]["sequence_number"]) as live:
        gate.open()
        rest = live.rest()
    assert [event["sequence_number"] for event in [*begun, *rest]] == list(range(len(begun) + len(rest)))
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"
