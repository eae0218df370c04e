"""Answers of the demo upstream: one test per rule, over a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from tests.support.demo_upstream import Demo, talking
from tests.support.machine_clock import machine_time


@pytest.fixture
async def demo() -> AsyncIterator[Demo]:
    async with talking() as demo:
        yield demo


def turns(*texts: str) -> list[dict[str, Any]]:
    """Return a history in which user and assistant alternate."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def instructed(instructions: str, asked: str, *, role: str = "system") -> list[dict[str, Any]]:
    """Return instructions and a question."""
    return [{"role": role, "content": instructions}, {"role": "user", "content": asked}]


@pytest.mark.parametrize("asked", ["Hello!", "hi there", "Good morning", "Who are you?", "What can you do?", "help"])
async def test_the_demo_introduces_itself_as_a_demo(demo: Demo, asked: str) -> None:
    assert "I am the demo model of this platform" in await demo.ask(asked)


async def test_the_demo_says_how_to_add_a_real_upstream_when_asked_who_it_is(demo: Demo) -> None:
    assert "UPSTREAM_BASE_URL" in await demo.ask("What are you?")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("echo: A  b\n c ", "A  b\n c "),
        ("say hello world", "hello world"),
        ("Please say this is a test", "this is a test"),
        ('Say "hi, you"', "hi, you"),
        ("repeat after me: 1, 2, 3", "1, 2, 3"),
        ("Reply with exactly: pong", "pong"),
    ],
)
async def test_the_demo_echoes_exactly(demo: Demo, asked: str, answer: str) -> None:
    assert await demo.ask(asked) == answer


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        ("What is 12*7?", "12*7 = 84"),
        ("My name is Ada. What's 7 - 10?", "7-10 = -3"),
        ("what is 999999999999999 + 1", "999999999999999+1 = 1000000000000000"),
    ],
)
async def test_the_demo_adds_subtracts_and_multiplies(demo: Demo, asked: str, result: str) -> None:
    assert await demo.ask(asked) == f"{result}, says the demo model."


@pytest.mark.parametrize("asked", ["What is 42?", "What is 5 apples + 3?", "What is 1+2+3?", "What is 1.5 * 2.5?"])
async def test_other_texts_with_digits_are_not_computed(demo: Demo, asked: str) -> None:
    assert "without an answer" in await demo.ask(asked)


async def test_the_demo_remembers_a_name_from_the_history(demo: Demo) -> None:
    history = turns("Hello, my name is Ada and I like tea.", "Noted.", "What's my name?")
    assert await demo.ask(history) == "Your name is Ada, as you told this demo earlier."


async def test_the_demo_remembers_the_latest_of_several_names(demo: Demo) -> None:
    history = turns("my name is Ada", "Noted.", "Sorry, my name is Grace.", "Noted.", "Do you know my name?")
    assert "Grace" in await demo.ask(history)


async def test_the_demo_remembers_other_facts_from_the_history(demo: Demo) -> None:
    history = turns("My favourite colour is dark green.", "Noted.", "what is my favourite colour again?")
    assert "dark green" in await demo.ask(history)


async def test_the_demo_admits_not_knowing_missing_facts(demo: Demo) -> None:
    assert "have not told this demo your name" in await demo.ask("What is my name?")


async def test_the_demo_acknowledges_a_name(demo: Demo) -> None:
    assert (await demo.ask("My name is Ada.")).startswith("Noted: your name is Ada.")


async def test_the_demo_admits_being_a_demo_when_no_rule_matches(demo: Demo) -> None:
    answer = await demo.ask("Tell me a joke about whales.")
    assert answer.startswith("This is a demo model without an answer to this.")
    assert "“Tell me a joke about whales.”" in answer
    assert "UPSTREAM_BASE_URL and UPSTREAM_API_KEY" in answer


async def test_the_demo_quotes_a_long_message_abbreviated(demo: Demo) -> None:
    answer = await demo.ask("word " * 1000)
    assert len(answer) < 400
    assert "…”" in answer


async def test_the_demo_answers_a_history_without_a_user(demo: Demo) -> None:
    answer = await demo.ask([{"role": "developer", "content": "Be brief."}])
    assert "My instructions are: “Be brief.”" in answer


async def test_the_demo_names_the_tools_that_it_could_call(demo: Demo) -> None:
    tool = {"type": "function", "function": {"name": "get_weather"}}
    assert "when you name it: get_weather." in await demo.ask("Is it warm outside?", tools=[tool])


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize(
    ("instructions", "answer"),
    [
        ('Always end with "over and out".', "hello over and out"),
        ("End every answer with the word Amen.", "hello Amen"),
    ],
)
async def test_the_demo_ends_an_answer_as_instructed(demo: Demo, role: str, instructions: str, answer: str) -> None:
    assert await demo.ask(instructed(instructions, "say hello", role=role)) == answer


async def test_the_demo_counts_images_that_it_cannot_see(demo: Demo) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png", "detail": "low"}}
    parts = [{"type": "text", "text": "What is this?"}, image, image]
    answer = await demo.ask([{"role": "user", "content": parts}])
    assert "2 images" in answer
    assert "cannot see" in answer
    assert "“What is this?”" in answer


async def test_the_demo_counts_recordings_and_files(demo: Demo) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    file = {"type": "file", "file": {"file_id": "file_1"}}
    assert "1 recording and 1 file, but" in await demo.ask([{"role": "user", "content": [sound, file]}])


async def test_the_demo_reads_text_in_parts(demo: Demo) -> None:
    parts = [{"type": "text", "text": "say one"}, {"type": "text", "text": "two"}]
    assert await demo.ask([{"role": "user", "content": parts}]) == "one\ntwo"


async def test_the_demo_wraps_its_answer_in_a_json_object(demo: Demo) -> None:
    answer = await demo.ask("say hi", response_format={"type": "json_object"})
    assert orjson.loads(answer) == {"answer": "hi"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "filler", ["“", "“a'", ' x="', "my name is ", "   and", " ", "in A ", "what is 1+", "(1", "my "]
)
@pytest.mark.slow
async def test_the_time_of_an_answer_grows_linearly(demo: Demo, filler: str) -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"city": {}}, "required": ["city"]}},
    }

    async def seconds(count: int) -> float:
        begun = machine_time()
        await demo.ask("a f " + filler * count + "b", tools=[tool])
        await demo.ask("a" + filler * count + "b")
        return machine_time() - begun

    short = min([await seconds(5_000) for _ in range(3)])
    # Ten times the length: linear work takes ten times as long, quadratic work a hundred times.
    assert await seconds(50_000) < 50 * short + 5


async def test_the_demo_gives_the_same_answer_to_the_same_request(demo: Demo) -> None:
    first, second = [await demo.complete("Tell me a joke.") for _ in range(2)]
    assert {**first, "created": 0} == {**second, "created": 0}
