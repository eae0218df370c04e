"""The `web_search` tool with a search engine on this machine and the pages it finds."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import orjson
import pytest

from engine.citation_markers import mark
from tenants import scope
from tenants.models import UsageRecord
from tenants.prices import PriceEntry, PriceList
from tests.support.api import Api, error, ok
from tests.support.background import ended
from tests.support.chunks import text
from tests.support.limits import limit
from tests.support.mcp_requests import of
from tests.support.model_capabilities import describe
from tests.support.search_engine import SearchServer, engine, search_server
from tests.support.streams import types
from tests.support.upstream import Answer, Gate, Piece, Script
from tests.support.waiting import eventually

TOOL = {"type": "web_search"}
ASKED: dict[str, Any] = {"input": "Do cats purr?", "tools": [TOOL]}
Respond = Callable[..., dict[str, Any]]


@pytest.fixture
def search_engine(reaching: Api) -> Iterator[SearchServer]:
    """The search engine of the team."""
    with search_server() as running:
        engine(reaching.caller.team, running)
        yield running


def arguments(**values: Any) -> str:
    return orjson.dumps(values).decode()


def searching(script: Script, *queries: str) -> Script:
    return script.call(web_search=arguments(queries=queries or ["cats"]))


def last_output(script: Script, turn: int = 1) -> str:
    """Return the output of the last call that the model received."""
    return str(script.messages[turn][-1]["content"])


def test_search_results_are_shown_to_the_model_and_the_client(
    respond: Respond, script: Script, search_engine: SearchServer
) -> None:
    response = respond(model=searching(script).say("They do.").model, **ASKED)
    call, message = response["output"]
    assert (call["status"], call["action"]) == ("completed", {"type": "search", "query": "cats", "queries": ["cats"]})
    assert "results" not in call
    assert message["content"][0] == {"type": "output_text", "text": "They do.", "annotations": [], "logprobs": []}
    assert search_engine.queries == [{"q": "cats", "format": "json", "safesearch": "1"}]
    assert last_output(script).startswith(f"{mark(call['id'], 1)} All about cats\n{search_engine.page}\nThey purr.\n\n")
    assert response["tools"] == [
        {"type": "web_search", "filters": None, "search_context_size": "medium", "user_location": None}
    ]


def test_sources_and_results_are_shown_with_include(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    asked = {"include": ["web_search_call.action.sources"], **ASKED}
    response = reaching.create(model=searching(script).say("They do.").model, **asked)
    sources = [{"type": "url", "url": search_engine.page}, {"type": "url", "url": f"{search_engine.url}/dogs"}]
    assert response["output"][0]["action"]["sources"] == sources
    with_results = reaching.get(f"/responses/{response['id']}", include="web_search_call.results").json()
    assert with_results["output"][0]["results"][0]["text"] == "They purr."


@pytest.mark.usefixtures("search_engine")
def test_a_search_has_openais_events(reaching: Api, script: Script) -> None:
    events = reaching.events(model=searching(script).say("They do.").model, **ASKED)
    assert types(events)[2:7] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    assert events[6]["item"]["action"]["queries"] == ["cats"]


def test_citations_become_annotations_at_the_right_position(
    reaching: Api, script: Script, search_engine: SearchServer
) -> None:
    gate = Gate()
    pieces: list[Piece] = [gate]
    searching(script).then(Answer(pieces=pieces))
    with reaching.stream(model=script.model, **ASKED) as live:
        done = next(event for event in live.events if event["type"] == "response.output_item.done")
        cited = mark(done["item"]["id"], 1)
        pieces += text("They do", cited[:2], cited[2:], ", they say【ffff:9】.")
        gate.open()
        *_, last = live.rest()
    part = last["response"]["output"][1]["content"][0]
    (citation,) = part["annotations"]
    link = f" ([127.0.0.1]({search_engine.page}))"
    assert part["text"] == f"They do{link}, they say."
    assert part["text"][citation["start_index"] : citation["end_index"]] == link
    assert (citation["type"], citation["url"], citation["title"]) == (
        "url_citation",
        search_engine.page,
        "All about cats",
    )


def test_results_of_earlier_responses_can_be_cited(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    first = reaching.create(model=searching(script).say("They do.").model, **ASKED)
    script.say("As I said" + mark(first["output"][0]["id"], 2))
    later = reaching.create(model=script.model, input="Sure?", previous_response_id=first["id"])
    (citation,) = later["output"][0]["content"][0]["annotations"]
    assert citation["url"] == f"{search_engine.url}/dogs"


def test_a_page_can_be_opened_and_searched(respond: Respond, script: Script, search_engine: SearchServer) -> None:
    script.call(open_page=arguments(url=search_engine.page)).call(
        find_in_page=arguments(url=search_engine.page, pattern="HERTZ")
    )
    response = respond(model=script.say("25 hertz.").model, **ASKED)
    opened, place, _ = response["output"]
    assert opened["action"] == {"type": "open_page", "url": search_engine.page}
    assert place["action"] == {"type": "find_in_page", "url": search_engine.page, "pattern": "HERTZ"}
    words = "Cats\nCats purr at 25 hertz.\nNobody knows why."
    assert last_output(script).startswith(f"{mark(opened['id'], 1)} All about & around cats\n{search_engine.page}\n")
    assert words in last_output(script)
    assert "evil" not in last_output(script)
    assert "25 hertz" in last_output(script, 2)
    assert search_engine.pages == ["/cats"]


@pytest.mark.parametrize(
    ("url", "expected_error"),
    [
        ("{}/none", "the server responded with HTTP 404"),
        ("{}/away", "resolves to a public address"),
        ("http://169.254.169.254/latest", "resolves to a public address"),
        ("no address", ""),
    ],
)
def test_the_model_reads_the_error_of_a_page_that_fails(
    reaching: Api, script: Script, search_engine: SearchServer, url: str, expected_error: str
) -> None:
    script.call(open_page=arguments(url=url.format(search_engine.url))).say("Oh.")
    response = reaching.create(model=script.model, **ASKED)
    assert (response["status"], response["output"][0]["status"]) == ("completed", "failed")
    assert last_output(script).startswith("error: ")
    assert expected_error in last_output(script)


def test_the_model_reads_the_error_of_a_failing_engine(
    respond: Respond, script: Script, search_engine: SearchServer
) -> None:
    search_engine.status = 503
    response = respond(model=searching(script).say("Oh.").model, **ASKED)
    assert [item.get("status") for item in response["output"]] == ["failed", "completed"]
    assert "503" in last_output(script)


def test_only_pages_of_allowed_domains_are_used(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    search_engine.results = [
        {"url": f"https://{host}/", "title": host, "content": "x"}
        for host in ("cats.example", "www.CATS.example", "notcats.example", "cats.example.evil.example")
    ]
    tool = {**TOOL, "filters": {"allowed_domains": ["cats.example"]}}
    searching(script).call(open_page=arguments(url=search_engine.page)).say("Oh.")
    response = reaching.create(model=script.model, input="Hi", tools=[tool], include=["web_search_call.results"])
    search, page, _ = response["output"]
    assert [one["title"] for one in search["results"]] == ["cats.example", "www.CATS.example"]
    assert search_engine.queries[0]["q"] == "cats (site:cats.example)"
    functions = [tool["function"]["description"] for tool in script.bodies[0]["tools"]]
    assert all("Only pages of these domains are available: cats.example." in words for words in functions[:2])
    assert (page["status"], search_engine.pages) == ("failed", [])


def test_the_response_counts_its_searches(respond: Respond, script: Script, search_engine: SearchServer) -> None:
    searching(script).call(open_page=arguments(url=search_engine.page)).say("Oh.")
    tool_usage = respond(model=script.model, **ASKED)["tool_usage"]
    assert tool_usage["web_search"] == {"num_requests": 1}
    assert tool_usage["image_gen"]["total_tokens"] == 0


def test_a_response_without_searches_counts_none(api: Api, script: Script) -> None:
    assert "tool_usage" not in api.create(model=script.say("Hello").model, input="Hi")


def test_pages_of_blocked_domains_are_not_used(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    search_engine.results = [
        {"url": f"https://{host}/", "title": host, "content": "x"}
        for host in ("cats.example", "dogs.example", "www.DOGS.example", "hotdogs.example")
    ]
    searching(script).call(open_page=arguments(url="https://dogs.example/")).say("Oh.")
    search_tool = {"type": "web_search_20250305", "name": "web_search", "blocked_domains": ["dogs.example"]}
    body = {"model": script.model, "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
    content = ok(reaching.post("/messages", {**body, "tools": [search_tool]}))["content"]
    found, page = (block["content"] for block in content if block["type"].endswith("_tool_result"))
    assert [result["title"] for result in found] == ["cats.example", "hotdogs.example"]
    assert search_engine.queries[0]["q"] == "cats -site:dogs.example"
    assert page["error_code"] == "url_not_accessible"


def test_location_and_context_size_reach_the_model(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    search_engine.results = [{"url": f"https://e.example/{n}", "title": "t", "content": "y" * 900} for n in range(20)]
    location = {"type": "approximate", "city": "Bern", "country": "CH"}
    tool = {"type": "web_search_preview", "search_context_size": "low", "user_location": location}
    reaching.create(model=searching(script, "a", "b").say("Hi.").model, input="Hi", tools=[tool])
    (function, *_) = script.bodies[0]["tools"]
    assert "Bern, CH" in function["function"]["description"]
    assert (last_output(script).count("https://"), last_output(script).count("y")) == (5, 5 * 300)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("tavily", {"q": "cats"}),
        ("brave", {"q": "cats", "count": "8", "text_decorations": "false", "country": "CH"}),
    ],
)
def test_each_engine_gets_its_own_request_format(
    reaching: Api, script: Script, kind: str, asked: dict[str, str]
) -> None:
    with search_server() as served:
        engine(reaching.caller.team, served, kind=kind, api_key="key-of-the-engine")
        tool = {**TOOL, "user_location": {"type": "approximate", "country": "CH"}}
        response = reaching.create(model=searching(script).say("Hi.").model, input="Hi", tools=[tool])
    assert (response["output"][0]["status"], served.queries) == ("completed", [asked])
    sent = served.headers[0]
    assert "key-of-the-engine" in {
        sent.get("authorization", "").removeprefix("Bearer "),
        sent.get("x-subscription-token"),
    }


@pytest.mark.usefixtures("search_engine")
@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({**TOOL, "external_web_access": "no"}, "tools[0].external_web_access"),
        ({"type": "web_search_preview", "search_content_types": ["video"]}, "tools[0].search_content_types[0]"),
        ({**TOOL, "filters": {"allowed_domains": ["https://cats.example"]}}, "tools[0].filters.allowed_domains[0]"),
        ({**TOOL, "search_context_size": "huge"}, "tools[0].search_context_size"),
        ({**TOOL, "user_location": {"country": "Switzerland"}}, "tools[0].user_location.country"),
    ],
)
def test_unsupported_options_are_refused_by_name(reaching: Api, tool: dict[str, Any], param: str) -> None:
    status, where, _ = error(reaching.post("/responses", {"model": "m", "input": "Hi", "tools": [tool]}))
    assert (status, where) == (400, param)


@pytest.mark.usefixtures("search_engine")
def test_indexed_access_opens_only_pages_that_were_found(
    reaching: Api, script: Script, search_engine: SearchServer
) -> None:
    tools = [{**TOOL, "indexed_web_access": True}]
    script.call(open_page=arguments(url=search_engine.page))
    searching(script).call(open_page=arguments(url=search_engine.page))
    response = reaching.create(model=script.say("Yes.").model, input="Hi", tools=tools)
    assert [item["status"] for item in response["output"][:3]] == ["failed", "completed", "completed"]
    assert "only pages that a search has found can be opened" in last_output(script)
    script.call(open_page=arguments(url=search_engine.page)).say("Yes.")
    later = reaching.create(model=script.model, input="Hi", tools=tools, previous_response_id=response["id"])
    assert later["output"][0]["status"] == "completed"


def test_the_error_without_a_search_engine_names_the_settings(api: Api) -> None:
    answer = api.post("/responses", {"model": "m", "input": "Hi", "tools": [TOOL], "tool_choice": TOOL})
    assert error(answer) == (400, "tools[0].type", "unsupported_value")
    assert "SEARXNG_URL" in answer.json()["error"]["message"]


@pytest.mark.usefixtures("search_engine")
@pytest.mark.parametrize("kind", ["web_search", "web_search_2025_08_26", "web_search_preview"])
def test_tool_choice_can_force_a_search(reaching: Api, script: Script, kind: str) -> None:
    searching(script).say("They do.")
    asked = {"tools": [{"type": kind}], "tool_choice": {"type": kind}}
    response = reaching.create(model=script.model, input="Hi", **asked)
    assert script.bodies[0]["tool_choice"] in ("required", {"type": "function", "function": {"name": "web_search"}})
    assert (response["status"], len(of(response, "web_search_call"))) == ("completed", 1)


def test_each_search_has_a_usage_record(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    script.call(open_page=arguments(url=search_engine.page))
    response = reaching.create(model=searching(script).say("They do.").model, **ASKED)
    with scope.team(reaching.caller.team.pk):
        lines = UsageRecord.objects.filter(object_id=response["id"], endpoint="web_search")
        assert [(line.outcome, line.upstream_model) for line in lines] == [("completed", "web_search")]


def test_a_search_has_the_price_set_for_the_model(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    entry = PriceEntry(dimension="tool_call", tool="web_search", amount=Decimal("0.01"), per=1)
    describe(script, prices=PriceList([entry])).call(open_page=arguments(url=search_engine.page))
    response = reaching.create(model=searching(script).say("They do.").model, **ASKED)
    with scope.team(reaching.caller.team.pk):
        (line,) = UsageRecord.objects.filter(object_id=response["id"], endpoint="web_search")
    assert (line.cost, line.prices and line.prices[0]["quantity"]) == (Decimal("0.01"), "1")


def test_a_search_counts_towards_the_budget(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    limit(reaching.caller, budget="1")
    searches = PriceEntry(dimension="tool_call", tool="web_search", amount=Decimal("0.01"), per=1)
    tokens = [PriceEntry(dimension=each, amount=Decimal(1), per=1_000_000) for each in ("input", "output")]
    describe(script, prices=PriceList([*tokens, searches]))
    response = reaching.create(model=searching(script).say("They do.").model, **ASKED)
    with scope.team(reaching.caller.team.pk):
        costs = [line.cost or 0 for line in UsageRecord.objects.filter(object_id=response["id"])]
    assert Decimal("0.01") in costs
    eventually(lambda: [one["spent"] for one in ok(reaching.get("/me"))["budgets"]] == [float(sum(costs))])


@pytest.mark.usefixtures("worker")
def test_a_background_response_can_search(reaching: Api, script: Script, search_engine: SearchServer) -> None:
    queued = reaching.create(model=searching(script).say("They do.").model, background=True, **ASKED)
    done = ended(reaching, queued["id"])
    assert [item["type"] for item in done["output"]] == ["web_search_call", "message"]
    assert len(search_engine.queries) == 1


def test_the_model_reads_an_error_about_invalid_arguments(
    reaching: Api, script: Script, search_engine: SearchServer
) -> None:
    script.call(web_search='{"queries":[]}').call(find_in_page='{"url":"x"}').call(open_page="{}").say("Oh.")
    response = reaching.create(model=script.model, **ASKED)
    assert [item["status"] for item in response["output"]] == ["failed", "failed", "failed", "completed"]
    assert search_engine.queries == []
