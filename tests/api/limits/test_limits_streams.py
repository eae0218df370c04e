"""Limits of WebSocket connections and of streams that are read again."""

import pytest
from websockets.exceptions import InvalidStatus

from tenants import scope
from tenants.models import Reservation
from tests.support.api import Api, error
from tests.support.chunks import chunk, usage
from tests.support.limits import limit
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess
from tests.support.websocket_client import open_socket


def test_the_first_event_of_a_websocket_has_the_rate_limit_headers(api: Api, web: WebProcess, script: Script) -> None:
    limit(api.caller, requests_per_minute=2)
    script.say("Hello").say("Hello")
    with open_socket(web.url, secret=api.caller.secret) as socket:
        for left in ("1", "0"):
            socket.ask(model=script.model, input="Hi")
            created = socket.rest()[0]
            assert created["headers"]["x-ratelimit-remaining-requests"] == left
        socket.ask(model=script.model, input="Hi")
        refused = socket.next()
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        headers = refused["error"]["headers"]
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert int(headers["retry-after"]) in range(25, 31)
        socket.ask(model=script.model)
        assert socket.next()["error"]["headers"]["x-ratelimit-limit-requests"] == "2"


def test_websocket_connections_count_as_open_streams(api: Api, web: WebProcess, script: Script) -> None:
    limit(api.caller, open_streams=1, requests_per_minute=5)
    script.say("Hello")
    with open_socket(web.url, secret=api.caller.secret) as socket:
        # A response on the connection does not count as another stream.
        socket.ask(model=script.model, input="Hi")
        assert socket.rest()[-1]["type"] == "response.completed"
        with pytest.raises(InvalidStatus) as caught, open_socket(web.url, secret=api.caller.secret):
            pass
        refused = caught.value.response
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.headers["x-ratelimit-limit-requests"] == "5"

    def is_free() -> bool:
        try:
            with open_socket(web.url, secret=api.caller.secret):
                return True
        except InvalidStatus:
            return False

    eventually(is_free)


def test_a_replayed_stream_counts_as_an_open_stream(api: Api, script: Script) -> None:
    limit(api.caller, open_streams=1)
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, chunk(finish="stop"), usage()))
    with api.stream(model=script.model, input="Hi") as live:
        response_id = next(live.events)["response"]["id"]
        gate.wait_until_reached()
        refused = api.get(f"/responses/{response_id}", stream="true")
        assert error(refused) == (429, None, "rate_limit_exceeded")
        gate.open()
        live.rest()
    eventually(lambda: api.get(f"/responses/{response_id}", stream="true").status_code == 200)
    eventually(lambda: api.get(f"/responses/{response_id}", stream="true").status_code == 200)


def test_a_disconnect_before_the_first_event_releases_the_stream(api: Api, script: Script, no_worker: None) -> None:
    limit(api.caller, open_streams=30)
    for _ in range(20):
        with api.open("/responses", {"model": script.model, "input": "Hi", "background": True, "stream": True}):
            pass

    def open_streams() -> int:
        with scope.team(api.caller.team.pk):
            return Reservation.objects.filter(team=api.caller.team, is_stream=True).count()

    eventually(lambda: open_streams() == 0)
