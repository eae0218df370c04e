"""The tool `file_search` over real vector stores: streamed or not, in the foreground and in the background."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from responses.models.vector_stores import VectorStore
from tenants import scope
from tenants.models import Team
from tests.support.api import Api, error
from tests.support.chunks import chunk, usage
from tests.support.upstream import Gate, Piece, Script, stream
from tests.support.vector_stores import StoreClient

Json = dict[str, Any]
Ask = Callable[..., Json]
RESULTS = "file_search_call.results"
CALL = orjson.dumps({"queries": ["where do herons nest?"]}).decode()
HERONS, OAKS = "Herons nest in old trees.", "Oaks grow slowly."


@pytest.fixture
def birds(store_client: StoreClient) -> StoreClient:
    """Create a vector store with two short files."""
    store_client.add("herons.txt", HERONS, attributes={"kind": "bird"})
    store_client.add("oaks.txt", OAKS, attributes={"kind": "tree"})
    return store_client


def tool(*stores: StoreClient, **options: Any) -> Json:
    return {"type": "file_search", "vector_store_ids": [store.id for store in stores], **options}


def request_body(script: Script, *stores: StoreClient, **options: Any) -> Json:
    """Return the body of a request to the scripted model."""
    return {"model": script.model, "input": "Where do herons nest?", "tools": [tool(*stores, **options)]}


class Quoting:
    """Lets the model answer after it has read its sources: `answer` derives the text from what the model received."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._gate, self._pieces = Gate(), list[Piece]()
        self._pieces.append(self._gate)
        script.call(file_search=CALL).then(stream_of(self._pieces))

    def run(self, request: Callable[[], Json], answer: Callable[[str], list[str]]) -> Json:
        """The response to a request, which is sent in a thread."""
        with ThreadPoolExecutor(1) as pool:
            response = pool.submit(request)
            self._gate.wait_until_reached()
            received = self._script.messages[1][-1]["content"]
            self._pieces += [*(chunk(content=piece) for piece in answer(received)), chunk(finish="stop"), usage()]
            self._gate.open()
            return response.result(30)


def stream_of(pieces: list[Piece]) -> Any:
    """Return an answer that can still be extended while it waits at a gate."""
    answer = stream()
    object.__setattr__(answer, "pieces", pieces)
    return answer


def mark_before(received: str, words: str) -> str:
    """Return the marker of the source that begins with these words."""
    found = re.search(r"(【\w{4}:\d+】) " + re.escape(words), received)
    assert found, received
    return found[1]


@pytest.mark.slow
def test_the_model_reads_passages_and_cites_them(birds: StoreClient, ask: Ask, script: Script) -> None:
    def answer(received: str) -> list[str]:
        assert HERONS in received
        mark = mark_before(received, "herons.txt")
        return ["In old trees", mark[:2], mark[2:], ", they say. 【zzzz:9】"]

    response = Quoting(script).run(lambda: ask(**request_body(script, birds)), answer)
    call, message = response["output"]
    assert (call["type"], call["status"], call["results"]) == ("file_search_call", "completed", None)
    assert call["queries"] == ["where do herons nest?"]
    part = message["content"][0]
    assert part["text"] == "In old trees, they say. "
    file_id = birds.search("herons")[0]["file_id"]
    citation = {"type": "file_citation", "file_id": file_id, "filename": "herons.txt", "index": len("In old trees")}
    assert part["annotations"] == [citation]


@pytest.mark.slow
def test_events_are_sent_in_the_documented_order(birds: StoreClient, api: Api, script: Script) -> None:
    script.call(file_search=CALL).say("In trees.")
    events = api.events(**request_body(script, birds))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:7] == [
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
    ]
    assert events[2]["item"]["status"] == "in_progress"


@pytest.mark.slow
def test_results_are_included_on_request(birds: StoreClient, ask: Ask, script: Script) -> None:
    script.call(file_search=CALL).say("In trees.")
    response = ask(**request_body(script, birds), include=[RESULTS])
    (first, second) = response["output"][0]["results"]
    assert (first["filename"], first["text"], first["attributes"]) == ("herons.txt", HERONS, {"kind": "bird"})
    assert first["score"] > second["score"]
    stored = birds.api.get(f"/responses/{response['id']}", include=RESULTS).json()
    assert stored["output"][0]["results"] == [first, second]


@pytest.mark.slow
def test_tool_settings_are_applied(birds: StoreClient, api: Api, script: Script) -> None:
    script.call(file_search=CALL).say("In trees.")
    trees = {"type": "eq", "key": "kind", "value": "tree"}
    response = api.create(**request_body(script, birds, filters=trees, max_num_results=1), include=[RESULTS])
    assert [one["filename"] for one in response["output"][0]["results"]] == ["oaks.txt"]
    assert response["tools"][0]["filters"] == trees
    assert response["tools"][0]["ranking_options"] == {"ranker": "auto", "score_threshold": 0.0}


@pytest.mark.slow
def test_a_score_threshold_drops_weak_results(birds: StoreClient, api: Api, script: Script) -> None:
    script.call(file_search=CALL).say("In trees.")
    ranking = {
        "ranker": "auto",
        "score_threshold": 0.3,
        "hybrid_search": {"embedding_weight": 1.0, "text_weight": 1.0},
    }
    response = api.create(**request_body(script, birds, ranking_options=ranking), include=[RESULTS])
    assert [one["filename"] for one in response["output"][0]["results"]] == ["herons.txt"]
    assert response["tools"][0]["ranking_options"] == ranking


@pytest.mark.slow
def test_several_stores_are_searched_together(birds: StoreClient, api: Api, script: Script) -> None:
    other = StoreClient(api, api.post("/vector_stores", {"name": "More", "description": "About owls"}).json()["id"])
    other.add("owls.txt", "Owls nest where herons nest.")
    script.call(file_search=CALL).say("There.")
    response = api.create(**request_body(script, birds, other), include=[RESULTS])
    assert {one["filename"] for one in response["output"][0]["results"]} == {"herons.txt", "oaks.txt", "owls.txt"}
    received = script.bodies[0]["tools"][0]["function"]["description"]
    assert "Available: Library; More: About owls." in received


@pytest.mark.slow
def test_a_later_response_reads_earlier_results(birds: StoreClient, api: Api, script: Script) -> None:
    script.call(file_search=CALL).say("In trees.").say("As I said.")
    first = api.create(**request_body(script, birds))
    api.create(model=script.model, input="Sure?", previous_response_id=first["id"])
    received = [message for message in script.messages[2] if message["role"] == "tool"]
    assert HERONS in received[0]["content"]


@pytest.mark.slow
def test_a_failed_search_is_reported_to_the_model(birds: StoreClient, ask: Ask, script: Script) -> None:
    with scope.every_team():
        Team.objects.filter(pk=birds.api.caller.team.pk).update(embedding_model="gone")
    birds.api.post(birds.path, {"name": "Still embedded with the old one"})
    rename(birds, "nobody-answers-for-this")
    script.call(file_search=CALL).say("I cannot look.")
    response = ask(**request_body(script, birds), include=[RESULTS])
    assert (response["status"], response["output"][0]["status"]) == ("completed", "failed")
    assert "does not exist" in script.messages[1][-1]["content"]


def rename(store_client: StoreClient, model: str) -> None:
    with scope.every_team():
        VectorStore.objects.filter(pk=store_client.id).update(embedding_model=model)


@pytest.mark.slow
def test_a_call_without_queries_is_reported_to_the_model(birds: StoreClient, api: Api, script: Script) -> None:
    script.call(file_search="{}").say("Sorry.")
    response = api.create(**request_body(script, birds))
    assert response["output"][0]["status"] == "failed"
    assert "'queries' must be an array of strings" in script.messages[1][-1]["content"]


@pytest.mark.slow
def test_tool_choice_forces_file_search(birds: StoreClient, api: Api, script: Script) -> None:
    script.call(file_search=CALL).say("In trees.")
    api.create(**request_body(script, birds), tool_choice={"type": "file_search"})
    assert script.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "file_search"}}


@pytest.fixture
def rejection(api: Api, birds: StoreClient) -> Callable[[Json], tuple[int, str | None, str | None]]:
    """Return a function that sends an invalid tool, which must be rejected before any upstream call."""
    return lambda given: error(
        api.post("/responses", {"model": "m", "input": "Hi", "tools": [{"type": "file_search", **given}]})
    )


@pytest.mark.slow
def test_an_unsearchable_store_is_rejected(birds: StoreClient, rejection: Any, outsider: Api, script: Script) -> None:
    assert rejection({}) == (400, "tools[0].vector_store_ids", "missing_required_parameter")
    assert rejection({"vector_store_ids": []}) == (400, "tools[0].vector_store_ids", "empty_array")
    assert rejection({"vector_store_ids": ["vs_v"], "max_num_results": 51})[1] == "tools[0].max_num_results"
    foreign = {"model": script.model, "input": "Hi", "tools": [tool(birds)]}
    assert error(outsider.post("/responses", foreign)) == (404, "tools[0].vector_store_ids", None)
