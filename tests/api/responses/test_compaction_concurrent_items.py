"""Items that a client adds to a conversation during its compaction are not summarised, and still read afterwards."""

from tests.support.api import Api, ok
from tests.support.chunks import text
from tests.support.conversations import add
from tests.support.upstream import Gate, Script, stream

SUMMARY = "The red car is in Vienna."
ITEMS = [{"role": "user", "content": "Find the red car."}, {"role": "assistant", "content": "so it was " * 600}]


def test_items_added_during_a_compaction_are_read_by_the_next_response(api: Api, script: Script) -> None:
    gate = Gate()
    script.say(SUMMARY).then(stream(gate, *text("In Vienna."))).say("Sure.")
    name = ok(api.post("/conversations", {"items": ITEMS}))["id"]
    managed = [{"type": "compaction", "compact_threshold": 1000}]
    body = {"model": script.model, "input": "And where is it?", "conversation": name, "context_management": managed}
    with api.stream(**body) as live:
        gate.wait_until_reached()
        add(api, name, "meanwhile")
        gate.open()
        live.rest()
    api.create(model=script.model, input="Sure?", conversation=name)
    read = [str(message["content"]).rpartition("\n\n")[2] for message in script.messages[2]]
    assert read == ["Find the red car.", "meanwhile", "And where is it?", SUMMARY, "In Vienna.", "Sure?"]
