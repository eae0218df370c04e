"""Scenarios of seeded data: the requests of a client and the turns of the model.

A scenario is a generator of exchanges. It ends when the client sends no more requests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import orjson

from core.errors import Failure, InvalidPrompt, RateLimited, UpstreamError
from core.ids import new_id
from engine.calls.client_tools import upstream_name
from engine.citation_markers import mark
from engine.events.types import Body
from responses.models import DecisionState
from seeding.texts import TEXTS, TextPicker


@dataclass(frozen=True, kw_only=True)
class ScriptedCall:
    """A tool call of the model.

    The client runs it, unless it has an `item`. Then it is a hosted call: `item` is its output item at the begin, to
    which `done` adds the fields of its end. `output` is the text that the model reads. A call that `asks` waits for an
    approval.
    """

    name: str
    arguments: str
    item: Body = field(default_factory=dict)
    done: Body = field(default_factory=dict)
    output: str = ""
    seconds: float = 0
    asks: bool = False
    call_id: str = field(default_factory=lambda: new_id("call"))


@dataclass(frozen=True, kw_only=True)
class ScriptedTurn:
    """An answer of the model: its texts and calls, and its numbers of input tokens (`read`) and cached tokens.

    `wait` is the number of seconds before the first text. A `failure` follows the text.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: Sequence[ScriptedCall] = ()
    finish: str = "stop"
    failure: Failure | None = None
    wait: float = 0.7
    read: int = 400
    cached: int = 0


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request and the turns of its run. A request without a `model` gets a random one.

    `waits`: seconds that a background response is queued. `pieces`: the run stops after this many pieces of the answer,
    because it is `cancelled` or still running. `pause`: seconds until the next request. With a `decision`, which is its
    state, the run waits up to `decision_seconds` for a person, who decides after `decided_after` seconds.
    """

    request: Body
    turns: Sequence[ScriptedTurn] = ()
    stream: bool = False
    waits: float = 0.02
    pieces: int | None = None
    cancelled: bool = False
    pause: float = 30
    decision: DecisionState | None = None
    decision_seconds: int = 7 * 24 * 3600
    decided_after: float = 0
    decided_by: str = ""
    reason: str = ""


Script = Iterator[Exchange]

_SERVER = "tracker"
_PARAMETERS = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
_ISSUE_FIELDS = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "title": "Title", "description": "One line that names the problem."},
        "body": {"type": "string", "title": "Description"},
        "priority": {"type": "string", "enum": ["low", "normal", "high"]},
        "assignee": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "notify": {"type": "boolean", "title": "Send a mail"}},
        },
        "labels": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title"],
}
_FUNCTIONS = [
    {"type": "function", "name": name, "description": description, "parameters": _PARAMETERS, "strict": True}
    for name, description in (("look_up_order", "Finds an order."), ("open_ticket", "Opens a ticket."))
]
LISTED_TOOLS = {
    "type": "mcp_list_tools",
    "server_label": _SERVER,
    "tools": [
        {"name": "find_issue", "input_schema": _PARAMETERS, "description": "Finds issues by words."},
        {"name": "close_issue", "input_schema": _PARAMETERS, "description": "Closes an issue."},
        {"name": "create_issue", "input_schema": _ISSUE_FIELDS, "description": "Creates an issue."},
    ],
}
_ISSUE = '{"id": "PLAT-1204", "state": "in progress", "assignee": "grace", "title": "Queue is slow"}'
_DECISIONS = (DecisionState.GRANTED, DecisionState.DENIED, DecisionState.EXPIRED)
_BUSY = Failure.of(RateLimited("The model's server has too many requests right now."))
_ENDINGS: tuple[Body, ...] = (
    {"failure": _BUSY, "background": True},
    {"failure": _BUSY},
    {"failure": Failure.of(UpstreamError("The model's server ended its answer too early."))},
    {"failure": Failure.of(InvalidPrompt("The model's server refused the request: image too large."))},
    {"finish": "length"},
    {"finish": "content_filter"},
)


def _question(pick: TextPicker, question: str, answer: str, *, thought: str = "", **request: Any) -> Exchange:
    turn = ScriptedTurn(
        text=answer,
        reasoning=thought,
        wait=pick.seconds(0.2, 3),
        read=pick.rng.choice((140, 380, 720, 1500, 2300)),
        cached=pick.rng.choice((0, 0, 100)),
    )
    return Exchange(
        request={"input": question, **request}, turns=[turn], stream=pick.chance(0.5), pause=pick.seconds(8, 600)
    )


def _mcp(approval: str) -> list[Body]:
    server = {"type": "mcp", "server_label": _SERVER, "server_url": "https://tracker.example.com/mcp"}
    return [{**server, "require_approval": approval}]


def _mcp_call(pick: TextPicker, name: str, given: Body, *, fails: bool = False, asks: bool = False) -> ScriptedCall:
    arguments = orjson.dumps(given).decode()
    item = {"type": "mcp_call", "server_label": _SERVER, "name": name, "arguments": arguments}
    output = pick.marked("The tracker is away." if fails else _ISSUE)
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output}]}
    return ScriptedCall(
        name=upstream_name(_SERVER, name),
        arguments=arguments,
        item={"id": new_id("mcp"), **item, "approval_request_id": None, "output": None, "error": None},
        done={"error": error} if fails else {"output": output},
        output=output,
        seconds=pick.seconds(0.2, 3),
        asks=asks,
    )


def _chat(pick: TextPicker) -> Script:
    yield _question(pick, *pick.pair_of("chats"), instructions=pick.rng.choice(TEXTS["instructions"]))
    for _ in range(3):
        if pick.chance(0.4):
            return
        yield _question(pick, *pick.pair_of("follow_ups"))


def _reasoning(pick: TextPicker) -> Script:
    request: Body = {"model": "orbit-reasoner", "reasoning": {"effort": "medium"}}
    yield _question(pick, *pick.pair_of("chats"), thought=pick.one_of("thoughts"), **request)


def _web_search(pick: TextPicker) -> Script:
    query, listed = pick.rng.choice(TEXTS["queries"])
    query = pick.marked(query)
    pages = [{"url": url, "title": title, "text": pick.marked(text)} for url, title, text in listed]
    action = {"type": "search", "query": query}
    sources = [{"type": "url", "url": page["url"]} for page in pages]
    item_id = new_id("ws")
    search = ScriptedCall(
        name="web_search",
        arguments=orjson.dumps({"queries": [query]}).decode(),
        item={"id": item_id, "type": "web_search_call", "action": action},
        done={"action": {**action, "queries": [query], "sources": sources}, "results": pages},
        output=pages[0]["text"],
        seconds=pick.seconds(0.3, 2.5),
    )
    answer = f"{pages[0]['text']}{mark(item_id, 1)}\n\nThat is what the primary source says; nothing speaks against it."
    yield Exchange(
        request={"input": pick.marked(f"Find out: {query}"), "tools": [{"type": "web_search"}]},
        turns=[ScriptedTurn(calls=[search], read=900), ScriptedTurn(text=answer, read=5200, cached=2080)],
        stream=True,
    )


def _file_search(pick: TextPicker) -> Script:
    # The files do not exist: citations only need ids of the right form.
    passages = [
        {
            "file_id": new_id("file").replace("_", "-", 1),
            "filename": name,
            "score": round(0.91 - index / 9, 3),
            "text": pick.marked(text),
            "attributes": {"area": "handbook"},
        }
        for index, (name, text) in enumerate(TEXTS["passages"])
    ]
    queries, item_id = [pick.marked("refund rules")], new_id("fs")
    search = ScriptedCall(
        name="file_search",
        arguments=orjson.dumps({"queries": queries}).decode(),
        item={"id": item_id, "type": "file_search_call", "queries": queries, "results": None},
        done={"results": passages},
        output=passages[0]["text"],
        seconds=pick.seconds(0.1, 0.9),
    )
    answer = f"Refunds over **500 €** need the word of a second person.{mark(item_id, 1)} The form is in the folder."
    yield Exchange(
        request={
            "input": pick.marked("What are our rules for refunds?"),
            "tools": [{"type": "file_search", "vector_store_ids": [new_id("vs")]}],
        },
        turns=[
            ScriptedTurn(calls=[search], read=700),
            ScriptedTurn(text=pick.marked(answer), read=2600, cached=640),
        ],
    )


def _code_interpreter(pick: TextPicker) -> Script:
    code, logs = f"# {pick.marked('latencies')}\n{TEXTS['program']}", pick.marked("median 192.5\np95    940")
    item = {"id": new_id("ci"), "type": "code_interpreter_call", "code": code, "container_id": new_id("cntr")}
    call = ScriptedCall(
        name="code_interpreter",
        arguments=orjson.dumps({"code": code}).decode(),
        item={**item, "outputs": None},
        done={"outputs": [{"type": "logs", "logs": logs}], "files": []},
        output=logs,
        seconds=pick.seconds(0.2, 5),
    )
    answer = pick.marked("The median is **192.5 ms**; one request took 940 ms, which makes the mean useless here.")
    yield Exchange(
        request={
            "input": pick.marked("What is the median of these latencies?"),
            "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
            "model": "orbit-reasoner",
        },
        turns=[
            ScriptedTurn(reasoning=pick.one_of("thoughts"), calls=[call], read=800),
            ScriptedTurn(text=answer, read=1500, cached=1080),
        ],
        stream=True,
    )


def _parallel_calls(pick: TextPicker) -> Script:
    calls = [
        _mcp_call(pick, "find_issue", {"id": pick.marked("PLAT-1204")}),
        _mcp_call(pick, "find_issue", {"id": pick.marked("PLAT-1188")}, fails=pick.chance(1 / 3)),
    ]
    answer = pick.marked("**PLAT-1204** is being worked on; `PLAT-1188` waits for it.")
    yield Exchange(
        request={"input": pick.marked("How far are PLAT-1204 and PLAT-1188?"), "tools": _mcp("never")},
        turns=[ScriptedTurn(calls=calls, read=1300), ScriptedTurn(text=answer, read=2000, cached=1290)],
        stream=pick.chance(0.5),
    )


def _approval(pick: TextPicker) -> Script:
    call = _mcp_call(pick, "close_issue", {"id": pick.marked("PLAT-1204")}, asks=True)
    yield Exchange(
        request={"input": pick.marked("Close PLAT-1204, it is done."), "tools": _mcp("always")},
        turns=[ScriptedTurn(calls=[call], read=1200)],
    )


def waiting(pick: TextPicker) -> Script:
    """Yield a response that waits for a person."""
    return _decided(pick, DecisionState.ASKED)


def _decided(pick: TextPicker, decision: DecisionState) -> Script:
    given = {
        "title": pick.marked("Checkout is slow on Fridays"),
        "body": pick.marked(" ".join(answer for _, answer in TEXTS["chats"])),
        "priority": pick.rng.choice(("low", "normal", "high")),
        "assignee": {"name": pick.rng.choice(TEXTS["people"]), "notify": pick.chance(0.5)},
        "labels": ["checkout", "speed"],
    }
    # Half of the calls are short ones.
    name, arguments = ("create_issue", given) if pick.chance(0.5) else ("close_issue", {"id": pick.marked("PLAT-1204")})
    call = _mcp_call(pick, name, arguments, asks=True)
    is_granted = decision == DecisionState.GRANTED
    answer = pick.marked("The tracker is up to date." if is_granted else "I have not changed anything in the tracker.")
    yield Exchange(
        request={"input": pick.marked("Update the tracker."), "tools": _mcp("always"), "background": True},
        turns=[ScriptedTurn(calls=[call], read=1200), ScriptedTurn(text=answer, read=1500, cached=1190)],
        decision=decision,
        # Scenarios begin at least 20 minutes before now, and none may end in the future.
        decided_after=pick.seconds(40, 800),
        decision_seconds=600 if decision == DecisionState.EXPIRED else Exchange.decision_seconds,
        reason="" if is_granted else pick.marked("The customer has not agreed yet."),
    )


def _functions(pick: TextPicker) -> Script:
    order = f"{pick.rng.randrange(10**6):06d}"
    arguments = orjson.dumps({"id": pick.marked(order)}).decode()
    names = ["look_up_order", "open_ticket"][: pick.rng.choice((1, 1, 2))]
    calls = [ScriptedCall(name=name, arguments=arguments) for name in names]
    yield Exchange(
        request={"input": pick.marked(f"What happened to order {order}?"), "tools": _FUNCTIONS},
        turns=[ScriptedTurn(calls=calls, read=650)],
        pause=pick.seconds(0.2, 6),
    )
    state = {"type": "function_call_output", "output": pick.marked('{"state": "shipped", "days": 2}')}
    answer = pick.marked("It was shipped two days ago and arrives tomorrow.")
    yield Exchange(
        request={"input": [{**state, "call_id": call.call_id} for call in calls], "tools": _FUNCTIONS},
        turns=[ScriptedTurn(text=answer, read=900, cached=640)],
        stream=pick.chance(0.5),
    )


def _report(pick: TextPicker, *, task: str = "Write the quarterly report.", **stops: Any) -> Script:
    yield Exchange(
        request={"input": pick.marked(task), "background": True},
        turns=[ScriptedTurn(text=pick.report(), wait=pick.seconds(0.5, 9), read=9400)],
        waits=pick.seconds(0.2, 40),
        stream=pick.chance(0.5),
        **stops,
    )


def _cancelled(pick: TextPicker) -> Script:
    return _report(pick, task="Write a very long story.", pieces=pick.rng.randrange(3, 50), cancelled=True)


def running(pick: TextPicker) -> Script:
    """Yield a response that a worker seems to be running."""
    return _report(pick, task="Translate the manual, all of it.", pieces=pick.rng.randrange(3, 50))


def queued(pick: TextPicker) -> Script:
    """Yield a response that no worker has started yet."""
    yield Exchange(request={"input": pick.marked("Write the yearly report."), "background": True})


def _cut_short(pick: TextPicker, *, background: bool = False, **ending: Any) -> Script:
    question, answer = pick.pair_of("chats")
    yield Exchange(
        request={"input": question, "background": background, "max_output_tokens": 64},
        turns=[ScriptedTurn(text=answer[:40], **ending)],
        stream=not background,
    )


def _refused(pick: TextPicker) -> Script:
    refusal = pick.marked("I cannot help with forging a signature.")
    yield Exchange(
        request={"input": pick.marked("Forge my manager's signature.")}, turns=[ScriptedTurn(refusal=refusal, read=310)]
    )


def long_conversation(pick: TextPicker) -> Script:
    """Yield more exchanges than any team needs."""
    while True:
        yield _question(pick, *pick.pair_of("chats"))
        question, answer = pick.pair_of("follow_ups")
        call = _mcp_call(pick, "find_issue", {"id": pick.marked("PLAT-1204")})
        turns = [
            ScriptedTurn(reasoning=pick.one_of("thoughts"), calls=[call], read=3000, cached=2600),
            ScriptedTurn(text=answer, read=3800, cached=3000),
        ]
        yield Exchange(request={"input": question, "tools": _mcp("never")}, turns=turns, pause=240)


class Scenario(NamedTuple):
    """A scenario with its relative frequency. `in_conversation`: its exchanges continue a conversation."""

    script: Callable[[TextPicker], Script]
    weight: int = 0
    in_conversation: bool = False


SCENARIOS = (
    Scenario(_chat, 26),
    Scenario(_chat, 10, in_conversation=True),
    Scenario(_reasoning, 9),
    Scenario(_web_search, 9),
    Scenario(_file_search, 7),
    Scenario(_code_interpreter, 7),
    Scenario(_parallel_calls, 9),
    Scenario(_approval, 4),
    *(Scenario(partial(_decided, decision=state), 1) for state in _DECISIONS),
    Scenario(_functions, 14),
    Scenario(_report, 4),
    Scenario(_cancelled, 3),
    *(Scenario(partial(_cut_short, **ending), 2) for ending in _ENDINGS),
    Scenario(_refused, 1),
)
