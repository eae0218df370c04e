"""Many clients and one conversation: one of them is served at a time, and nothing is lost or doubled."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.api import Api, ok
from tests.support.chunks import text
from tests.support.conversations import begin, items
from tests.support.upstream import Gate, Script, stream
from tests.support.waiting import eventually

CLIENTS = 50
MESSAGE = "Another process is currently operating on this conversation. Please retry in a few seconds."


def ask(api: Api, script: Script, name: str, number: int) -> str | None:
    """The answer to a question of this client's; None where it was refused because of others."""
    body: dict[str, Any] = {"model": script.model, "input": f"question {number}", "conversation": name}
    answer = api.post("/responses", body)
    if answer.status_code == 200:
        return str(ok(answer)["id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conversation_locked"), answer.text
    assert answer.json()["error"]["message"] == MESSAGE
    return None


def check_turns(api: Api, name: str, script: Script, *, length: int) -> None:
    """Questions and answers stand in pairs, each once, and every run has read all that stood before its own."""
    told = [item["content"][0]["text"] for item in items(api, name)]
    questions, answers = told[0::2], told[1::2]
    assert len(questions) == len(set(questions)) == length
    assert answers == length * ["Hello"]
    read = sorted((messages for messages in script.messages), key=len)
    assert [len(messages) for messages in read] == [2 * turn + 1 for turn in range(length)]
    assert [messages[-1]["content"] for messages in read] == questions


def test_of_fifty_clients_one_is_served_and_the_others_are_told_so(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    name = begin(api)
    with ThreadPoolExecutor(CLIENTS) as crowd:
        asked = [crowd.submit(ask, api, script, name, number) for number in range(CLIENTS)]
        eventually(lambda: sum(one.done() for one in asked) == CLIENTS - 1, seconds=30)
        gate.open()
    assert sum(one.result() is not None for one in asked) == 1
    check_turns(api, name, script, length=1)
