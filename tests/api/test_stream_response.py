"""`POST /v1/responses` with `stream:true`."""

from tests.support.api import Api
from tests.support.streams import assert_stream_equals_stored
from tests.support.upstream import Script


def test_it_streams_what_it_stores(api: Api, script: Script) -> None:
    script.say("Hel", "lo")
    events = api.events(model=script.model, input="Hi")
    assert_stream_equals_stored(events, api.retrieve(events[0]["response"]["id"]))
