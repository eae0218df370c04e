"""Scenarios of seeded data: the request, the actions of the agent and the outcome.

Each scenario is a generator of exchanges. It receives the result of each, so that the next request of the client can
answer calls and refer to ids.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine.calls.client_tools import upstream_name
from responses.seeding import texts
from responses.seeding.replay import Exchange, Played
from responses.seeding.scripted_run import SeedStep, TurnScript
from responses.seeding.texts import TextPicker

Scene = Generator[Exchange, Played, None]
_SERVER = "tracker"
_TOOL = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
_FUNCTIONS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "look_up_order",
        "description": "Finds an order.",
        "parameters": _TOOL,
        "strict": True,
    },
    {"type": "function", "name": "open_ticket", "description": "Opens a ticket.", "parameters": _TOOL, "strict": True},
]
_MCP = {"type": "mcp", "server_label": _SERVER, "server_url": "https://tracker.example.com/mcp"}
_OFFERED = [
    {"name": "find_issue", "input_schema": _TOOL, "description": "Finds issues by words.", "annotations": None},
    {"name": "close_issue", "input_schema": _TOOL, "description": "Closes an issue.", "annotations": None},
]
_FAILURES = (
    Failure(code="rate_limit_exceeded", message="The model's server has too many requests right now.", status=429),
    Failure(code="server_error", message="The model's server answered with status 502: upstream connect error."),
    Failure(code="server_error", message="The model's server ended its answer too early."),
    Failure(code="invalid_prompt", message="The model's server refused the request: image too large.", status=400),
)


@dataclass(frozen=True)
class Scenario:
    """A scenario with its relative frequency. `talks`: in a conversation."""

    play: "Callable[[TextPicker], Scene]"
    weight: int
    talks: bool = False


def chat(picker: TextPicker) -> Scene:
    """One or more questions with answers."""
    question, answer = picker.pick(texts.CHATS)
    yield _asks(picker, question, answer, instructions=picker.pick(texts.INSTRUCTIONS))
    for _ in range(picker.rng.choice((0, 0, 1, 2, 3))):
        question, answer = picker.pick(texts.FOLLOW_UPS)
        yield _asks(picker, question, answer)


def reasons(picker: TextPicker) -> Scene:
    """An answer with reasoning."""
    question, answer = picker.pick(texts.CHATS)
    thought = picker.marked(picker.pick(texts.THOUGHTS))
    yield _asks(picker, question, answer, thought=thought, model="orbit-reasoner", reasoning={"effort": "medium"})


def searches(picker: TextPicker) -> Scene:
    """A web search, a page, and an answer with citations."""
    query, pages = picker.pick(texts.QUERIES)
    found = [{"url": url, "title": title, "text": picker.marked(text)} for url, title, text in pages]
    looked = SeedStep(
        name="web_search",
        kind="web_search",
        arguments={"queries": [picker.marked(query)]},
        item={"type": "web_search_call", "action": {"type": "search", "query": picker.marked(query)}},
        done={
            "action": {
                "type": "search",
                "query": picker.marked(query),
                "queries": [picker.marked(query)],
                "sources": [{"type": "url", "url": page["url"]} for page in found],
            },
            "results": found,
        },
        output="\n".join(page["url"] for page in found),
        seconds=picker.seconds(0.3, 2.5),
        cost="web_search",
    )
    opened = {"type": "open_page", "url": found[0]["url"]}
    read = SeedStep(
        name="open_page",
        kind="web_search",
        arguments={"url": found[0]["url"]},
        item={"type": "web_search_call", "action": opened},
        done={"results": found[:1]},
        output=found[0]["text"],
        seconds=picker.seconds(0.2, 3.5),
    )
    answer = picker.marked(f"{pages[0][2]} {{1}}\n\nThat is what the primary source says; I found nothing against it.")
    turns = [
        TurnScript(steps=[looked], wait=picker.seconds(0.3, 1.2), read=900),
        TurnScript(steps=[read], wait=picker.seconds(0.3, 1.2), read=2100, cached=880),
        TurnScript(text=answer, wait=picker.seconds(0.4, 2.0), read=5200, cached=2080),
    ]
    request = _request(picker, picker.marked(f"Find out: {query}"), tools=[{"type": "web_search"}])
    yield Exchange(request=request, turns=turns, stream=True, pause=picker.seconds(5, 300))


def reads_files(picker: TextPicker) -> Scene:
    """A file search."""
    passages = [
        {"file_id": _file_id(name), "filename": name, "score": round(0.91 - index / 9, 3), "text": picker.marked(text),
         "attributes": {"area": "handbook"}}
        for index, (name, text) in enumerate(texts.PASSAGES)
    ]  # fmt: skip
    query = picker.marked("refund rules")
    step = SeedStep(
        name="file_search",
        kind="file_search",
        arguments={"queries": [query]},
        item={"type": "file_search_call", "queries": [query], "results": None},
        done={"results": passages},
        output="\n".join(str(one["text"]) for one in passages),
        seconds=picker.seconds(0.1, 0.9),
        cost="file_search",
    )
    answer = picker.marked(
        "Refunds over **500 €** need the word of a second person. {1} The form is in the finance folder."
    )
    turns = [
        TurnScript(steps=[step], wait=picker.seconds(0.3, 1.1), read=700),
        TurnScript(text=answer, wait=picker.seconds(0.3, 1.5), read=2600, cached=640),
    ]
    tool = {"type": "file_search", "vector_store_ids": [new_id("vs")]}
    yield Exchange(
        request=_request(picker, picker.marked("What are our rules for refunds?"), tools=[tool]), turns=turns
    )


def runs_code(picker: TextPicker) -> Scene:
    """A program that fails, and a corrected one."""
    container = new_id("cntr")
    wrong = _program(
        picker, container, "print(statistics.median(latencies))", "NameError: name 'statistics' is not defined"
    )
    right = _program(picker, container, texts.PROGRAM, "median 192.5\np95    940")
    answer = picker.marked("The median is **192.5 ms**; one request took 940 ms, which makes the mean useless here.")
    turns = [
        TurnScript(reasoning=picker.marked(texts.THOUGHTS[2]), steps=[wrong], wait=picker.seconds(0.4, 2), read=800),
        TurnScript(steps=[right], wait=picker.seconds(0.3, 1), read=1100, cached=800),
        TurnScript(text=answer, wait=picker.seconds(0.3, 1), read=1500, cached=1080),
    ]
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    request = _request(
        picker, picker.marked("What is the median of these latencies?"), tools=[tool], model="orbit-reasoner"
    )
    yield Exchange(request=request, turns=turns, stream=True)


def asks_a_server(picker: TextPicker) -> Scene:
    """Two parallel calls of an MCP server, of which one sometimes fails."""
    failed = picker.rng.random() < 0.3
    found = _mcp(
        picker, "find_issue", {"id": picker.marked("PLAT-1204")}, output=_issue(picker), seconds=picker.seconds(0.2, 4)
    )
    other = _mcp(
        picker, "find_issue", {"id": "PLAT-1188"}, output=_issue(picker), seconds=picker.seconds(0.2, 2), failed=failed
    )
    turns = [
        TurnScript(steps=[found, other], wait=picker.seconds(0.3, 1.5), read=1300),
        TurnScript(
            text=picker.marked("**PLAT-1204** is being worked on; `PLAT-1188` waits for it."), read=2000, cached=1290
        ),
    ]
    tool = {**_MCP, "require_approval": "never"}
    request = _request(picker, picker.marked("How far are PLAT-1204 and PLAT-1188?"), tools=[tool])
    yield Exchange(request=request, turns=turns, before=[_listing()], stream=picker.rng.random() < 0.5)


def asks_for_approval(picker: TextPicker) -> Scene:
    """An MCP call that requires an approval."""
    close = _mcp(picker, "close_issue", {"id": "PLAT-1204"}, output="closed", seconds=picker.seconds(0.3, 1), asks=True)
    tool = {**_MCP, "require_approval": "always"}
    first = yield Exchange(
        request=_request(picker, picker.marked("Close PLAT-1204, it is done."), tools=[tool]),
        turns=[TurnScript(steps=[close], read=1200)],
        before=[_listing()],
        pause=picker.seconds(20, 900),
    )
    outcome = picker.rng.random()
    if outcome < 0.25:
        return
    word = {"type": "mcp_approval_response", "approval_request_id": first.asked, "approve": outcome < 0.8}
    answer = "PLAT-1204 is closed." if word["approve"] else "All right, I leave PLAT-1204 open."
    yield Exchange(
        request=_request(picker, [word], tools=[tool]),
        turns=[TurnScript(text=picker.marked(answer), read=1500, cached=1200)],
        approved=[close] if word["approve"] else [],
    )


def calls_functions(picker: TextPicker) -> Scene:
    """Function calls that the client runs."""
    order = {"id": f"{picker.rng.randrange(10**6):06d}"}
    steps = [
        SeedStep(name="look_up_order", arguments={"id": picker.marked(order["id"])}),
        SeedStep(name="open_ticket", arguments=order),
    ]
    count = picker.rng.choice((1, 1, 2))
    first = yield Exchange(
        request=_request(picker, picker.marked(f"What happened to order {order['id']}?"), tools=_FUNCTIONS),
        turns=[TurnScript(steps=steps[:count], wait=picker.seconds(0.3, 1.5), read=650)],
        pause=picker.seconds(0.2, 6),
    )
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": picker.marked('{"state": "shipped", "days": 2}')}
        for call_id in first.calls
    ]
    yield Exchange(
        request=_request(picker, outputs, tools=_FUNCTIONS),
        turns=[
            TurnScript(text=picker.marked("It was shipped two days ago and arrives tomorrow."), read=900, cached=640)
        ],
        stream=picker.rng.random() < 0.5,
    )


def fills_a_form(picker: TextPicker) -> Scene:
    """A structured answer."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "trip", "schema": schema, "strict": True}
    answer = f'{{"city": "{picker.marked("Lisbon")}", "days": {picker.rng.randrange(2, 9)}}}'
    request = _request(picker, picker.marked("Plan a trip."), text={"format": form})
    yield Exchange(request=request, turns=[TurnScript(text=answer, wait=picker.seconds(0.3, 1), read=320)])


def writes_much(picker: TextPicker) -> Scene:
    """A very long report in the background."""
    turn = TurnScript(
        text=picker.report(picker.rng.choice((8, 20, 90))), wait=picker.seconds(1, 9), pace=140, read=9400
    )
    request = _request(picker, picker.marked("Write the quarterly report."), background=True)
    yield Exchange(request=request, turns=[turn], waits=picker.seconds(0.2, 40), stream=picker.rng.random() < 0.3)


def fails(picker: TextPicker) -> Scene:
    """A failure of the upstream, before or after its first text."""
    question, answer = picker.pick(texts.CHATS)
    text = picker.marked(answer[:40]) if picker.rng.random() < 0.4 else ""
    turn = TurnScript(text=text, failure=picker.pick(_FAILURES), wait=picker.seconds(0.5, 20), read=500)
    background = picker.rng.random() < 0.4
    request = _request(picker, picker.marked(question), **({"background": True} if background else {}))
    yield Exchange(request=request, turns=[turn], stream=not background)


def is_cut(picker: TextPicker) -> Scene:
    """An incomplete answer: token limit reached, or stopped by a content filter."""
    question, answer = picker.pick(texts.CHATS)
    finish = picker.rng.choice(("length", "length", "content_filter"))
    turn = TurnScript(text=picker.marked(answer[:60]), finish=finish, wait=picker.seconds(0.3, 1.5), read=400)
    yield Exchange(request=_request(picker, picker.marked(question), max_output_tokens=64), turns=[turn], stream=True)


def refuses(picker: TextPicker) -> Scene:
    """A refusal."""
    turn = TurnScript(refusal=picker.marked("I cannot help with forging a signature."), read=310)
    yield Exchange(request=_request(picker, picker.marked("Forge my manager's signature.")), turns=[turn])


def is_cancelled(picker: TextPicker) -> Scene:
    """A cancelled background run."""
    turn = TurnScript(text=picker.report(6), wait=picker.seconds(0.5, 3), read=800)
    request = _request(picker, picker.marked("Write a very long story."), background=True)
    yield Exchange(request=request, turns=[turn], ends="cancelled", steps=picker.rng.randrange(4, 50))


def is_running(picker: TextPicker) -> Scene:
    """A run in progress."""
    turn = TurnScript(text=picker.report(30), wait=picker.seconds(0.5, 3), read=800)
    request = _request(picker, picker.marked("Translate the manual, all of it."), background=True)
    yield Exchange(request=request, turns=[turn], ends="running", steps=picker.rng.randrange(3, 60))


def is_queued(picker: TextPicker) -> Scene:
    """A queued run."""
    yield Exchange(request=_request(picker, picker.marked("Write the yearly report."), background=True), ends="queued")


def works_long(picker: TextPicker) -> Scene:
    """A conversation without end; the caller stops it."""
    while True:
        question, answer = picker.pick([*texts.CHATS, *texts.FOLLOW_UPS])
        if picker.rng.random() < 0.45:
            step = _mcp(
                picker, "find_issue", {"id": question[:24]}, output=_issue(picker), seconds=picker.seconds(0.2, 2)
            )
            turns = [
                TurnScript(reasoning=picker.marked(picker.pick(texts.THOUGHTS)), steps=[step], read=3000, cached=2600),
                TurnScript(text=picker.marked(answer), read=3800, cached=3000),
            ]
            tools = [{**_MCP, "require_approval": "never"}]
            yield Exchange(request=_request(picker, picker.marked(question), tools=tools), turns=turns, pause=240)
        else:
            yield _asks(picker, question, answer, pause=picker.seconds(20, 900))


SCENARIOS: Sequence[Scenario] = (
    Scenario(chat, 26),
    Scenario(chat, 10, talks=True),
    Scenario(reasons, 9),
    Scenario(searches, 9),
    Scenario(reads_files, 7),
    Scenario(runs_code, 7),
    Scenario(asks_a_server, 9),
    Scenario(asks_for_approval, 4),
    Scenario(calls_functions, 11),
    Scenario(calls_functions, 3, talks=False),
    Scenario(fills_a_form, 3),
    Scenario(writes_much, 4),
    Scenario(fails, 5),
    Scenario(is_cut, 4),
    Scenario(refuses, 1),
    Scenario(is_cancelled, 3),
)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _asks(
    picker: TextPicker, question: str, answer: str, *, thought: str = "", pause: float = 0, **more: Any
) -> Exchange:
    turn = TurnScript(
        text=picker.marked(answer),
        reasoning=thought,
        wait=picker.seconds(0.2, 3),
        pace=picker.seconds(40, 160),
        read=picker.rng.randrange(120, 2400),
        cached=picker.rng.choice((0, 0, 100)),
    )
    request = _request(picker, picker.marked(question), **more)
    stream = picker.rng.random() < 0.6
    return Exchange(request=request, turns=[turn], stream=stream, pause=pause or picker.seconds(8, 600))


def _request(picker: TextPicker, given: Any, **more: Any) -> dict[str, Any]:
    request = {"model": picker.rng.choice(("atlas-large", "atlas-large", "atlas-mini")), "input": given, **more}
    if picker.rng.random() < 0.6:
        request["safety_identifier"] = f"user-{picker.pick(texts.PEOPLE)}"
    if picker.rng.random() < 0.7:
        ticket = f"T-{picker.rng.randrange(1000, 9999)}"
        request["metadata"] = {"environment": picker.pick(("production", "production", "staging")), "ticket": ticket}
        if picker.mark:
            request["metadata"]["note"] = picker.mark
    return request


def _program(picker: TextPicker, container: str, code: str, logs: str) -> SeedStep:
    opening = {"type": "code_interpreter_call", "code": "", "container_id": container, "outputs": None}
    code, logs = f"# {picker.marked('latencies')}\n{code}", picker.marked(logs)
    return SeedStep(
        name="code_interpreter",
        kind="code_interpreter",
        arguments={"code": code},
        item=opening,
        done={"code": code, "outputs": [{"type": "logs", "logs": logs}], "files": []},
        output=logs,
        seconds=picker.seconds(0.2, 5),
    )


def _mcp(
    picker: TextPicker,
    name: str,
    arguments: dict[str, Any],
    *,
    output: str,
    seconds: float,
    asks: bool = False,
    failed: bool = False,
) -> SeedStep:
    why = {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": picker.marked("The tracker is away.")}],
    }
    return SeedStep(
        name=upstream_name(_SERVER, name),
        kind="mcp",
        arguments=arguments,
        item={"type": "mcp_call", "server_label": _SERVER, "name": name, "arguments": "", "approval_request_id": None,
              "output": None, "error": None},
        done={"output": None, "error": why} if failed else {"output": output},
        output=output,
        seconds=seconds,
        error="failed" if failed else None,
        asks=asks,
    )  # fmt: skip


def _issue(picker: TextPicker) -> str:
    return picker.marked('{"id": "PLAT-1204", "state": "in progress", "assignee": "grace", "title": "Queue is slow"}')


def _listing() -> dict[str, Any]:
    return {"id": new_id("mcpl"), "type": "mcp_list_tools", "server_label": _SERVER, "tools": _OFFERED, "error": None}


def _file_id(name: str) -> str:
    # The file does not exist: citations only need an id of the right form.
    return new_id("file").replace("_", "-", 1)
