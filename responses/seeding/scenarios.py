"""The scenes of seeded data: what is asked, what the agent does, how it ends. Each is a generator of exchanges that is
sent back what was played, so that a client's next request can answer calls and name ids."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.errors import Failure
from kernel.ids import new_id
from responses.engine.calls.client_tools import upstream_name
from responses.seeding import texts
from responses.seeding.replay import Exchange, Played
from responses.seeding.scripted_run import SeedStep, Speech
from responses.seeding.texts import Voice

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
class Kind:
    """A scene that can be played, and how often it comes. `talks`: in a conversation."""

    play: "Callable[[Voice], Scene]"
    weight: int
    talks: bool = False


def chat(voice: Voice) -> Scene:
    """A question or several, and answers."""
    question, answer = voice.pick(texts.CHATS)
    yield _asks(voice, question, answer, instructions=voice.pick(texts.INSTRUCTIONS))
    for _ in range(voice.rng.choice((0, 0, 1, 2, 3))):
        question, answer = voice.pick(texts.FOLLOW_UPS)
        yield _asks(voice, question, answer)


def reasons(voice: Voice) -> Scene:
    """A model that thinks first."""
    question, answer = voice.pick(texts.CHATS)
    thought = voice.say(voice.pick(texts.THOUGHTS))
    yield _asks(voice, question, answer, thought=thought, model="orbit-reasoner", reasoning={"effort": "medium"})


def searches(voice: Voice) -> Scene:
    """A search in the web, a page, and an answer with citations."""
    query, pages = voice.pick(texts.QUERIES)
    found = [{"url": url, "title": title, "text": voice.say(text)} for url, title, text in pages]
    looked = SeedStep(
        name="web_search",
        kind="web_search",
        arguments={"queries": [voice.say(query)]},
        item={"type": "web_search_call", "action": {"type": "search", "query": voice.say(query)}},
        done={
            "action": {
                "type": "search",
                "query": voice.say(query),
                "queries": [voice.say(query)],
                "sources": [{"type": "url", "url": page["url"]} for page in found],
            },
            "results": found,
        },
        output="\n".join(page["url"] for page in found),
        seconds=voice.seconds(0.3, 2.5),
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
        seconds=voice.seconds(0.2, 3.5),
    )
    answer = voice.say(f"{pages[0][2]} {{1}}\n\nThat is what the primary source says; I found nothing against it.")
    speeches = [
        Speech(deeds=[looked], wait=voice.seconds(0.3, 1.2), read=900),
        Speech(deeds=[read], wait=voice.seconds(0.3, 1.2), read=2100, cached=880),
        Speech(text=answer, wait=voice.seconds(0.4, 2.0), read=5200, cached=2080),
    ]
    request = _request(voice, voice.say(f"Find out: {query}"), tools=[{"type": "web_search"}])
    yield Exchange(request=request, speeches=speeches, stream=True, pause=voice.seconds(5, 300))


def reads_files(voice: Voice) -> Scene:
    """A search in a vector store."""
    passages = [
        {"file_id": _file_id(name), "filename": name, "score": round(0.91 - index / 9, 3), "text": voice.say(text),
         "attributes": {"area": "handbook"}}
        for index, (name, text) in enumerate(texts.PASSAGES)
    ]  # fmt: skip
    query = voice.say("refund rules")
    deed = SeedStep(
        name="file_search",
        kind="file_search",
        arguments={"queries": [query]},
        item={"type": "file_search_call", "queries": [query], "results": None},
        done={"results": passages},
        output="\n".join(str(one["text"]) for one in passages),
        seconds=voice.seconds(0.1, 0.9),
        cost="file_search",
    )
    answer = voice.say(
        "Refunds over **500 €** need the word of a second person. {1} The form is in the finance folder."
    )
    speeches = [
        Speech(deeds=[deed], wait=voice.seconds(0.3, 1.1), read=700),
        Speech(text=answer, wait=voice.seconds(0.3, 1.5), read=2600, cached=640),
    ]
    tool = {"type": "file_search", "vector_store_ids": [new_id("vs")]}
    yield Exchange(
        request=_request(voice, voice.say("What are our rules for refunds?"), tools=[tool]), speeches=speeches
    )


def runs_code(voice: Voice) -> Scene:
    """A program that fails, and one that does not."""
    container = new_id("cntr")
    wrong = _program(
        voice, container, "print(statistics.median(latencies))", "NameError: name 'statistics' is not defined"
    )
    right = _program(voice, container, texts.PROGRAM, "median 192.5\np95    940")
    answer = voice.say("The median is **192.5 ms**; one request took 940 ms, which makes the mean useless here.")
    speeches = [
        Speech(reasoning=voice.say(texts.THOUGHTS[2]), deeds=[wrong], wait=voice.seconds(0.4, 2), read=800),
        Speech(deeds=[right], wait=voice.seconds(0.3, 1), read=1100, cached=800),
        Speech(text=answer, wait=voice.seconds(0.3, 1), read=1500, cached=1080),
    ]
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    request = _request(voice, voice.say("What is the median of these latencies?"), tools=[tool], model="orbit-reasoner")
    yield Exchange(request=request, speeches=speeches, stream=True)


def asks_a_server(voice: Voice) -> Scene:
    """Two tools of an MCP server at the same time, one of which fails now and then."""
    failed = voice.rng.random() < 0.3
    found = _mcp(
        voice, "find_issue", {"id": voice.say("PLAT-1204")}, output=_issue(voice), seconds=voice.seconds(0.2, 4)
    )
    other = _mcp(
        voice, "find_issue", {"id": "PLAT-1188"}, output=_issue(voice), seconds=voice.seconds(0.2, 2), failed=failed
    )
    speeches = [
        Speech(deeds=[found, other], wait=voice.seconds(0.3, 1.5), read=1300),
        Speech(text=voice.say("**PLAT-1204** is being worked on; `PLAT-1188` waits for it."), read=2000, cached=1290),
    ]
    tool = {**_MCP, "require_approval": "never"}
    request = _request(voice, voice.say("How far are PLAT-1204 and PLAT-1188?"), tools=[tool])
    yield Exchange(request=request, speeches=speeches, before=[_listing()], stream=voice.rng.random() < 0.5)


def asks_for_approval(voice: Voice) -> Scene:
    """A call of a server's tool that somebody has to approve of."""
    close = _mcp(voice, "close_issue", {"id": "PLAT-1204"}, output="closed", seconds=voice.seconds(0.3, 1), asks=True)
    tool = {**_MCP, "require_approval": "always"}
    first = yield Exchange(
        request=_request(voice, voice.say("Close PLAT-1204, it is done."), tools=[tool]),
        speeches=[Speech(deeds=[close], read=1200)],
        before=[_listing()],
        pause=voice.seconds(20, 900),
    )
    outcome = voice.rng.random()
    if outcome < 0.25:
        return
    word = {"type": "mcp_approval_response", "approval_request_id": first.asked, "approve": outcome < 0.8}
    told = "PLAT-1204 is closed." if word["approve"] else "All right, I leave PLAT-1204 open."
    yield Exchange(
        request=_request(voice, [word], tools=[tool]),
        speeches=[Speech(text=voice.say(told), read=1500, cached=1200)],
        approved=[close] if word["approve"] else [],
    )


def calls_functions(voice: Voice) -> Scene:
    """Functions that the client runs."""
    order = {"id": f"{voice.rng.randrange(10**6):06d}"}
    deeds = [
        SeedStep(name="look_up_order", arguments={"id": voice.say(order["id"])}),
        SeedStep(name="open_ticket", arguments=order),
    ]
    count = voice.rng.choice((1, 1, 2))
    first = yield Exchange(
        request=_request(voice, voice.say(f"What happened to order {order['id']}?"), tools=_FUNCTIONS),
        speeches=[Speech(deeds=deeds[:count], wait=voice.seconds(0.3, 1.5), read=650)],
        pause=voice.seconds(0.2, 6),
    )
    outputs = [
        {"type": "function_call_output", "call_id": call_id, "output": voice.say('{"state": "shipped", "days": 2}')}
        for call_id in first.calls
    ]
    yield Exchange(
        request=_request(voice, outputs, tools=_FUNCTIONS),
        speeches=[Speech(text=voice.say("It was shipped two days ago and arrives tomorrow."), read=900, cached=640)],
        stream=voice.rng.random() < 0.5,
    )


def fills_a_form(voice: Voice) -> Scene:
    """An answer in JSON."""
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "trip", "schema": schema, "strict": True}
    answer = f'{{"city": "{voice.say("Lisbon")}", "days": {voice.rng.randrange(2, 9)}}}'
    request = _request(voice, voice.say("Plan a trip."), text={"format": form})
    yield Exchange(request=request, speeches=[Speech(text=answer, wait=voice.seconds(0.3, 1), read=320)])


def writes_much(voice: Voice) -> Scene:
    """A report in the background that is longer than anybody reads."""
    speech = Speech(text=voice.report(voice.rng.choice((8, 20, 90))), wait=voice.seconds(1, 9), pace=140, read=9400)
    request = _request(voice, voice.say("Write the quarterly report."), background=True)
    yield Exchange(request=request, speeches=[speech], waits=voice.seconds(0.2, 40), stream=voice.rng.random() < 0.3)


def fails(voice: Voice) -> Scene:
    """The upstream breaks, before its first word or behind it."""
    question, answer = voice.pick(texts.CHATS)
    said = voice.say(answer[:40]) if voice.rng.random() < 0.4 else ""
    speech = Speech(text=said, failure=voice.pick(_FAILURES), wait=voice.seconds(0.5, 20), read=500)
    background = voice.rng.random() < 0.4
    request = _request(voice, voice.say(question), **({"background": True} if background else {}))
    yield Exchange(request=request, speeches=[speech], stream=not background)


def is_cut(voice: Voice) -> Scene:
    """The answer is incomplete: out of tokens, or stopped by a filter."""
    question, answer = voice.pick(texts.CHATS)
    finish = voice.rng.choice(("length", "length", "content_filter"))
    speech = Speech(text=voice.say(answer[:60]), finish=finish, wait=voice.seconds(0.3, 1.5), read=400)
    yield Exchange(request=_request(voice, voice.say(question), max_output_tokens=64), speeches=[speech], stream=True)


def refuses(voice: Voice) -> Scene:
    """The model declines."""
    speech = Speech(refusal=voice.say("I cannot help with forging a signature."), read=310)
    yield Exchange(request=_request(voice, voice.say("Forge my manager's signature.")), speeches=[speech])


def is_cancelled(voice: Voice) -> Scene:
    """Somebody stops a run in the background."""
    speech = Speech(text=voice.report(6), wait=voice.seconds(0.5, 3), read=800)
    request = _request(voice, voice.say("Write a very long story."), background=True)
    yield Exchange(request=request, speeches=[speech], ends="cancelled", steps=voice.rng.randrange(4, 50))


def is_running(voice: Voice) -> Scene:
    """A run that has not ended."""
    speech = Speech(text=voice.report(30), wait=voice.seconds(0.5, 3), read=800)
    request = _request(voice, voice.say("Translate the manual, all of it."), background=True)
    yield Exchange(request=request, speeches=[speech], ends="running", steps=voice.rng.randrange(3, 60))


def is_queued(voice: Voice) -> Scene:
    """A run that nobody has begun."""
    yield Exchange(request=_request(voice, voice.say("Write the yearly report."), background=True), ends="queued")


def works_long(voice: Voice) -> Scene:
    """A conversation that never ends: the caller says when it is enough."""
    while True:
        question, answer = voice.pick([*texts.CHATS, *texts.FOLLOW_UPS])
        if voice.rng.random() < 0.45:
            deed = _mcp(voice, "find_issue", {"id": question[:24]}, output=_issue(voice), seconds=voice.seconds(0.2, 2))
            speeches = [
                Speech(reasoning=voice.say(voice.pick(texts.THOUGHTS)), deeds=[deed], read=3000, cached=2600),
                Speech(text=voice.say(answer), read=3800, cached=3000),
            ]
            tools = [{**_MCP, "require_approval": "never"}]
            yield Exchange(request=_request(voice, voice.say(question), tools=tools), speeches=speeches, pause=240)
        else:
            yield _asks(voice, question, answer, pause=voice.seconds(20, 900))


KINDS: Sequence[Kind] = (
    Kind(chat, 26),
    Kind(chat, 10, talks=True),
    Kind(reasons, 9),
    Kind(searches, 9),
    Kind(reads_files, 7),
    Kind(runs_code, 7),
    Kind(asks_a_server, 9),
    Kind(asks_for_approval, 4),
    Kind(calls_functions, 11),
    Kind(calls_functions, 3, talks=False),
    Kind(fills_a_form, 3),
    Kind(writes_much, 4),
    Kind(fails, 5),
    Kind(is_cut, 4),
    Kind(refuses, 1),
    Kind(is_cancelled, 3),
)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _asks(voice: Voice, question: str, answer: str, *, thought: str = "", pause: float = 0, **more: Any) -> Exchange:
    speech = Speech(
        text=voice.say(answer),
        reasoning=thought,
        wait=voice.seconds(0.2, 3),
        pace=voice.seconds(40, 160),
        read=voice.rng.randrange(120, 2400),
        cached=voice.rng.choice((0, 0, 100)),
    )
    request = _request(voice, voice.say(question), **more)
    stream = voice.rng.random() < 0.6
    return Exchange(request=request, speeches=[speech], stream=stream, pause=pause or voice.seconds(8, 600))


def _request(voice: Voice, given: Any, **more: Any) -> dict[str, Any]:
    request = {"model": voice.rng.choice(("atlas-large", "atlas-large", "atlas-mini")), "input": given, **more}
    if voice.rng.random() < 0.6:
        request["safety_identifier"] = f"user-{voice.pick(texts.PEOPLE)}"
    if voice.rng.random() < 0.7:
        ticket = f"T-{voice.rng.randrange(1000, 9999)}"
        request["metadata"] = {"environment": voice.pick(("production", "production", "staging")), "ticket": ticket}
        if voice.mark:
            request["metadata"]["note"] = voice.mark
    return request


def _program(voice: Voice, container: str, code: str, logs: str) -> SeedStep:
    opening = {"type": "code_interpreter_call", "code": "", "container_id": container, "outputs": None}
    code, logs = f"# {voice.say('latencies')}\n{code}", voice.say(logs)
    return SeedStep(
        name="code_interpreter",
        kind="code_interpreter",
        arguments={"code": code},
        item=opening,
        done={"code": code, "outputs": [{"type": "logs", "logs": logs}], "files": []},
        output=logs,
        seconds=voice.seconds(0.2, 5),
    )


def _mcp(
    voice: Voice,
    name: str,
    arguments: dict[str, Any],
    *,
    output: str,
    seconds: float,
    asks: bool = False,
    failed: bool = False,
) -> SeedStep:
    why = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": voice.say("The tracker is away.")}]}
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


def _issue(voice: Voice) -> str:
    return voice.say('{"id": "PLAT-1204", "state": "in progress", "assignee": "grace", "title": "Queue is slow"}')


def _listing() -> dict[str, Any]:
    return {"id": new_id("mcpl"), "type": "mcp_list_tools", "server_label": _SERVER, "tools": _OFFERED, "error": None}


def _file_id(name: str) -> str:
    """The same for each seeded team: a citation names it, and nobody follows it there."""
    return new_id("file").replace("_", "-", 1)
