"""Tool calls of the demo upstream and their arguments."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tests.support.demo_upstream import Demo, talking


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


def function(name: str, required: list[str] | None = None, **properties: object) -> dict[str, Any]:
    """Return a tool whose properties are all required unless `required` names some."""
    needed = list(properties) if required is None else required
    parameters = {"type": "object", "properties": properties, "required": needed}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
WEATHER = function("get_weather", city=TEXT, unit={"type": "string", "enum": ["celsius", "fahrenheit"]})
TIME = function("get_time", city=TEXT)
SEARCH = function("search", query=TEXT)
ADD = function("add", a={"type": "number"}, b={"type": "number"})


async def calls(demo: Demo, asked: str | list[dict[str, Any]], *tools: Any, **parameters: Any) -> list[tuple[str, Any]]:
    """Return name and arguments of the calls that the demo makes."""
    completion = await demo.complete(asked, tools=tools, **parameters)
    message = completion["choices"][0]["message"]
    made = [call["function"] for call in message.get("tool_calls", [])]
    return [(call["name"], orjson.loads(call["arguments"])) for call in made]


@pytest.mark.parametrize(
    "asked",
    [
        "call get_weather in Paris",
        "Use the get_weather tool for Paris, please.",
        "In Paris, what does get_weather say?",
        "call get_weather Paris",
        "call get_weather with city=Paris",
        'call get_weather "Paris"',
        "CALL GET_WEATHER for Paris!",
    ],
)
async def test_the_demo_calls_a_tool_that_the_text_names(demo: Demo, asked: str) -> None:
    assert await calls(demo, asked, WEATHER) == [("get_weather", {"city": "Paris", "unit": "celsius"})]


@pytest.mark.parametrize("asked", ["What is the weather?", "call get_weather_now", "my-get_weather is broken"])
async def test_the_demo_calls_no_tool_that_the_text_does_not_name(demo: Demo, asked: str) -> None:
    assert await calls(demo, asked, WEATHER) == []


async def test_the_last_part_of_a_name_is_enough_for_tools_of_mcp_servers(demo: Demo) -> None:
    route = function("maps__get_route", city=TEXT)
    assert await calls(demo, "call get_route to Paris", route) == [("maps__get_route", {"city": "Paris"})]
    assert await calls(demo, "call maps__get_route to Paris", route) == [("maps__get_route", {"city": "Paris"})]


async def test_a_full_name_takes_precedence_over_the_last_part_of_another(demo: Demo) -> None:
    tools = [function("maps__get_time", city=TEXT), TIME]
    assert await calls(demo, "call get_time in Rome", *tools) == [("get_time", {"city": "Rome"})]


async def test_an_ambiguous_last_part_calls_nothing(demo: Demo) -> None:
    tools = [function("maps__search", query=TEXT), function("wiki__search", query=TEXT)]
    assert await calls(demo, "search for harbours", *tools) == []
    assert await calls(demo, "wiki__search for harbours", *tools) == [("wiki__search", {"query": "harbours"})]


async def test_a_message_with_calls_has_no_content(demo: Demo) -> None:
    choice = (await demo.complete("call get_time", tools=[TIME]))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["type"] == "function"


async def test_the_demo_calls_several_tools_in_one_turn(demo: Demo) -> None:
    asked = "call get_weather in New York in fahrenheit and get_time for Rome"
    assert await calls(demo, asked, TIME, WEATHER) == [
        ("get_weather", {"city": "New York", "unit": "fahrenheit"}),
        ("get_time", {"city": "Rome"}),
    ]


async def test_the_demo_calls_one_tool_twice_with_different_arguments(demo: Demo) -> None:
    asked = "call get_time in Rome, then get_time in Oslo, and get_time in Rome"
    assert await calls(demo, asked, TIME) == [("get_time", {"city": "Rome"}), ("get_time", {"city": "Oslo"})]


async def test_call_ids_are_unique(demo: Demo) -> None:
    completion = await demo.complete("get_time in Rome, get_time in Oslo", tools=[TIME])
    ids = {call["id"] for call in completion["choices"][0]["message"]["tool_calls"]}
    assert len(ids) == 2


async def test_the_demo_calls_one_tool_where_parallel_calls_are_off(demo: Demo) -> None:
    asked = "call get_time in Rome and search for cats"
    assert await calls(demo, asked, TIME, SEARCH, parallel_tool_calls=False) == [("get_time", {"city": "Rome"})]


async def test_the_demo_calls_nothing_with_tool_choice_none(demo: Demo) -> None:
    assert await calls(demo, "call get_time in Rome", TIME, tool_choice="none") == []


async def test_the_demo_calls_the_first_tool_with_tool_choice_required(demo: Demo) -> None:
    made = await calls(demo, "How warm is it in Paris?", WEATHER, TIME, tool_choice="required")
    assert made == [("get_weather", {"city": "Paris", "unit": "celsius"})]


async def test_the_demo_calls_the_tool_of_the_text_with_tool_choice_required(demo: Demo) -> None:
    made = await calls(demo, "call get_time in Paris", WEATHER, TIME, tool_choice="required")
    assert made == [("get_time", {"city": "Paris"})]


async def test_the_demo_calls_only_the_tool_named_by_the_choice(demo: Demo) -> None:
    choice = {"type": "function", "function": {"name": "search"}}
    made = await calls(demo, "call get_time, tell me about whales", TIME, SEARCH, tool_choice=choice)
    assert made == [("search", {"query": "whales"})]


@pytest.mark.parametrize(
    ("asked", "query"),
    [
        ("search for cheap flights to Rome.", "cheap flights to Rome"),
        ("please use the search tool about old cats", "old cats"),
        ("search kittens", "kittens"),
        ("use search: “blue whales” please", "blue whales"),
        ("search query='a b c' now", "a b c"),
        ("search", "demo"),
    ],
)
async def test_the_demo_finds_a_text_argument(demo: Demo, asked: str, query: str) -> None:
    assert await calls(demo, asked, SEARCH) == [("search", {"query": query})]


@pytest.mark.parametrize(
    ("asked", "arguments"),
    [
        ("add 2 and 3.5", {"a": 2, "b": 3.5}),
        ("add -7 to 12", {"a": -7, "b": 12}),
        ("add b=1 a=2", {"a": 2, "b": 1}),
        ("4: add 5", {"a": 5, "b": 4}),
        ("add b=1 and 9", {"a": 9, "b": 1}),
        ("add", {"a": 0, "b": 0}),
        (f"add {'9' * 5000} and a={'9' * 5000}", {"a": 0, "b": 0}),
        ("add a=nan b=inf", {"a": 0, "b": 0}),
    ],
)
async def test_the_demo_finds_numbers(demo: Demo, asked: str, arguments: dict[str, float]) -> None:
    assert await calls(demo, asked, ADD) == [("add", arguments)]


async def test_fractions_are_not_used_for_integer_parameters(demo: Demo) -> None:
    tool = function("order", count={"type": "integer"}, price={"type": "number"})
    assert await calls(demo, "order at 2.5 each 4", tool) == [("order", {"count": 4, "price": 2.5})]


async def test_the_demo_takes_lists_from_the_text(demo: Demo) -> None:
    tool = function("total", numbers={"type": "array", "items": {"type": "integer"}})
    assert await calls(demo, "total of 1, 2 and 3; add 4 and 5", tool, ADD) == [
        ("total", {"numbers": [1, 2, 3]}),
        ("add", {"a": 4, "b": 5}),
    ]


@pytest.mark.parametrize(("kind", "expected"), [("string", ["a b", "c"]), ("number", [1, 2.5]), ("integer", [1])])
async def test_list_parameters_take_all_values_of_their_type(demo: Demo, kind: str, expected: list[object]) -> None:
    tool = function("keep", items={"type": "array", "items": {"type": kind}})
    assert await calls(demo, "'a b', 'c', 1 and 2.5 are to keep", tool) == [("keep", {"items": expected})]


async def test_the_demo_takes_the_nearest_choice_in_the_text(demo: Demo) -> None:
    asked = "get_weather in Oslo in fahrenheit and get_weather in Rome in celsius"
    assert [made["unit"] for _, made in await calls(demo, asked, WEATHER)] == ["fahrenheit", "celsius"]


async def test_the_demo_takes_a_json_object_unchanged(demo: Demo) -> None:
    completion = await demo.complete('call add {"a":  "wrong", "c": [1]} now', tools=[ADD])
    call = completion["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["arguments"] == '{"a":  "wrong", "c": [1]}'


@pytest.mark.parametrize("broken", ["{not json", '{"a": ' * 5000])
async def test_the_demo_ignores_an_invalid_json_object(demo: Demo, broken: str) -> None:
    assert await calls(demo, f"call add with 1 and 2 {broken}", ADD) == [("add", {"a": 1, "b": 2})]


async def test_the_demo_fills_optional_arguments_only_by_name(demo: Demo) -> None:
    tool = function("book", ["city"], city=TEXT, nights={"type": "integer"}, quiet={"type": "boolean"})
    assert await calls(demo, "book in Paris for 3", tool) == [("book", {"city": "Paris"})]
    assert await calls(demo, "book in Paris quiet=yes", tool) == [("book", {"city": "Paris", "quiet": True})]


async def test_the_demo_fills_nullable_arguments_only_by_name(demo: Demo) -> None:
    nullable = {"type": ["integer", "null"]}
    tool = function("book", nights=nullable, rooms={"anyOf": [{"type": "integer"}, {"type": "null"}]})
    assert await calls(demo, "book 3", tool) == [("book", {"nights": None, "rooms": None})]
    assert await calls(demo, "book nights=3 rooms=2", tool) == [("book", {"nights": 3, "rooms": 2})]


async def test_the_demo_takes_choices_by_name_and_ignores_non_numbers(demo: Demo) -> None:
    tool = function("book", level={"enum": [1, 2]}, nights={"type": "integer"})
    assert await calls(demo, "book level=2 nights=three", tool) == [("book", {"level": 2, "nights": 0})]


async def test_the_demo_prefers_a_default_to_a_guess(demo: Demo) -> None:
    tool = function("get_weather", unit={"type": "string", "default": "kelvin"}, city=TEXT)
    assert await calls(demo, "get_weather in Oslo", tool) == [("get_weather", {"unit": "kelvin", "city": "Oslo"})]


async def test_the_demo_calls_a_tool_without_parameters(demo: Demo) -> None:
    tool = {"type": "function", "function": {"name": "ping"}}
    assert await calls(demo, "ping!", tool) == [("ping", {})]


async def test_the_demo_rejects_a_tool_whose_arguments_it_cannot_generate(demo: Demo) -> None:
    tool = function("pay", iban={"type": "string", "pattern": "^[A-Z]{2}"})
    answer = await demo.refusal("call pay", tools=[tool])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")
    assert "'pattern'" in answer.json["error"]["message"]


def answered(*results: str) -> list[dict[str, Any]]:
    """Return a history in which get_time was called once per result."""
    made = [
        {"id": f"call_{place}", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
        for place in range(len(results))
    ]
    return [
        {"role": "user", "content": "call get_time"},
        {"role": "assistant", "content": None, "tool_calls": made},
        *({"role": "tool", "tool_call_id": f"call_{place}", "content": text} for place, text in enumerate(results)),
    ]


async def test_the_demo_quotes_the_results_of_tools(demo: Demo) -> None:
    answer = await demo.ask(answered("noon", "midnight"), tools=[TIME])
    assert answer == "The demo model asked your tools: get_time answered “noon”; get_time answered “midnight”."


async def test_the_demo_reads_results_in_parts(demo: Demo) -> None:
    history = answered("x")
    history[-1]["content"] = [{"type": "text", "text": "half past"}, {"type": "text", "text": "six"}]
    assert "“half past six”" in await demo.ask(history)


async def test_the_demo_answers_a_new_question_after_the_results(demo: Demo) -> None:
    history = [*answered("noon"), {"role": "assistant", "content": "At noon."}, {"role": "user", "content": "say ok"}]
    assert await demo.ask(history, tools=[TIME]) == "ok"


async def test_the_demo_calls_again_when_tool_choice_requires_it(demo: Demo) -> None:
    assert await calls(demo, answered("noon"), TIME, tool_choice="required") == [("get_time", {"city": "demo"})]


async def test_the_demo_writes_the_results_into_a_schema(demo: Demo) -> None:
    wanted = {"name": "time", "schema": {"type": "object", "properties": {"hour": {"type": "integer"}, "said": TEXT}}}
    text = await demo.ask(answered("it is 12"), response_format={"type": "json_schema", "json_schema": wanted})
    assert orjson.loads(text) == {"hour": 12, "said": "it is 12"}
