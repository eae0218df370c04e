"""Conversations with many clients, processes that die while holding the lock, and lists that change while read."""

import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import httpx2
import pytest

from responses.models import ConversationLock
from tenants import scope
from tests.support.api import Api, ok
from tests.support.chunks import chunk, text
from tests.support.conversations import add, begin, items
from tests.support.sampling import rest_at_night
from tests.support.upstream import Gate, Pause, Script, stream
from tests.support.waiting import eventually
from tests.support.web import WebProcess, running_web

CLIENTS = 50
MESSAGE = "Another process is currently operating on this conversation. Please retry in a few seconds."


def ask(api: Api, script: Script, name: str, number: int) -> str | None:
    """Return the answer to a client's question, or None if the conversation was locked."""
    body: dict[str, Any] = {"model": script.model, "input": f"question {number}", "conversation": name}
    answer = api.post("/responses", body)
    if answer.status_code == 200:
        return str(ok(answer)["id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conversation_locked"), answer.text
    assert answer.json()["error"]["message"] == MESSAGE
    return None


def check_turns(api: Api, name: str, script: Script, *, length: int) -> None:
    """Assert that questions and answers alternate without duplicates, and each run has read everything before it."""
    texts = [item["content"][0]["text"] for item in items(api, name)]
    questions, answers = texts[0::2], texts[1::2]
    assert len(questions) == len(set(questions)) == length
    assert answers == length * ["Hello"]
    read = sorted((messages for messages in script.messages), key=len)
    assert [len(messages) for messages in read] == [2 * turn + 1 for turn in range(length)]
    assert [messages[-1]["content"] for messages in read] == questions


def test_one_of_fifty_clients_continues_a_conversation_and_the_others_get_a_conflict(api: Api, script: Script) -> None:
    gate = Gate()
    script.then(stream(gate, *text("Hello")))
    name = begin(api)
    with ThreadPoolExecutor(CLIENTS) as crowd:
        asked = [crowd.submit(ask, api, script, name, number) for number in range(CLIENTS)]
        eventually(lambda: sum(one.done() for one in asked) == CLIENTS - 1)
        gate.open()
    assert sum(one.result() is not None for one in asked) == 1
    check_turns(api, name, script, length=1)


@pytest.mark.nightly
@pytest.mark.slow
def test_fifty_retrying_clients_are_served_one_after_the_other(
    api: Api, script: Script, daphne_web: WebProcess
) -> None:
    script.always(stream(Pause(0.02), *text("Hello")))
    name = begin(api)
    nodes = [api, Api(api._http, url=daphne_web.url, caller=api.caller)]

    def ask_until_answered(number: int) -> None:
        while ask(nodes[number % 2], script, name, number) is None:
            Event().wait(0.3)

    with ThreadPoolExecutor(CLIENTS) as crowd:
        list(crowd.map(ask_until_answered, range(CLIENTS)))
    check_turns(api, name, script, length=CLIENTS)


@pytest.mark.slow
def test_a_killed_process_unlocks_its_conversation_within_its_lease(
    api: Api, http: httpx2.Client, script: Script, database: None
) -> None:
    script.then(stream(chunk(content="Hal"), Gate(), *text("lo"))).say("2")
    name = begin(api, "a")
    with running_web(LEASE_SECONDS="3") as doomed:
        elsewhere = Api(http, url=doomed.url, caller=api.caller)
        with elsewhere.open("/responses", {"model": script.model, "input": "b", "conversation": name}):
            script.wait_for_call()
            assert ask(api, script, name, 0) is None
            doomed.stop(signal.SIGKILL)
    # Sooner than with the lease of other processes, 30 s.
    eventually(lambda: ask(api, script, name, 1) is not None, seconds=25)
    assert [item["content"][0]["text"] for item in items(api, name)] == ["a", "question 1", "2"]
    assert {one["status"] for one in api.get("/responses").json()["data"]} == {"failed", "completed"}
    with scope.team(api.caller.team.pk):
        assert not ConversationLock.objects.exists()


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("order", rest_at_night(["asc", "desc"], first=1))
def test_pages_list_each_item_once_during_inserts_and_deletes(api: Api, order: str) -> None:
    name = begin(api, *map(str, range(1000)))
    before = every_id(api, name, order)
    doomed = before[::10]
    deleted: set[str] = set()
    stop = Event()

    def disturb() -> None:
        for item_id in doomed:
            if stop.is_set():
                return
            ok(api.delete(f"/conversations/{name}/items/{item_id}"))
            deleted.add(item_id)
            add(api, name, "more")

    with ThreadPoolExecutor(1) as other:
        work = other.submit(disturb)
        found = every_id(api, name, order)
        stop.set()
        work.result()
    assert len(found) == len(set(found))
    assert [item_id for item_id in found if item_id in set(before) - deleted] == [
        item_id for item_id in before if item_id not in deleted
    ]
    assert deleted


def every_id(api: Api, name: str, order: str) -> list[str]:
    """Return the ids of all pages, page by page."""
    found: list[str] = []
    while True:
        cursor = {"after": found[-1]} if found else {}
        page = ok(api.get(f"/conversations/{name}/items", order=order, limit=20, **cursor))
        found += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            return found
