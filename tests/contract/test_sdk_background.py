"""The unmodified SDK with background responses: follow, resume, cancel, over real sockets."""

import pytest
from openai import OpenAI

from tests.support.chunks import chunk, text
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("worker")


def test_the_sdk_resumes_a_stream_after_the_last_event(client: OpenAI, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    with client.responses.create(model=script.model, input="Hi", background=True, stream=True) as live:
        begun = [event for event, _ in zip(live, range(4), strict=False)]
    created = begun[0]
    assert created.type == "response.created"
    gate.open()
    last = begun[-1].sequence_number
    rest = [*client.responses.retrieve(created.response.id, stream=True, starting_after=last)]
    assert [event.sequence_number for event in [*begun, *rest]] == list(range(len(begun) + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "Hello"


def test_the_stream_helper_follows_a_running_response(client: OpenAI, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    response = client.responses.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with client.responses.stream(response_id=response.id, starting_after=2) as live:
        gate.open()
        assert next(iter(live)).sequence_number == 3
        assert live.get_final_response().output_text == "Hello"


def test_the_stream_of_a_cancelled_response_ends_without_an_error(client: OpenAI, script: Script) -> None:
    gate = Gate()
    script.then(stream(chunk(content="Hel"), gate, *text("lo")))
    response = client.responses.create(model=script.model, input="Hi", background=True)
    gate.wait_until_reached()
    with client.responses.retrieve(response.id, stream=True) as live:
        events = iter(live)
        next(event for event in events if event.type == "response.output_text.delta")
        cancelled = client.responses.cancel(response.id)
        assert [event.type for event in events][-1] == "response.output_item.done"
    gate.open()
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "Hel")
    # Its usage is shown once the worker has recorded the call.
    usage = eventually(lambda: client.responses.cancel(response.id).usage)
    assert client.responses.cancel(response.id) == cancelled.model_copy(update={"usage": usage})
