"""Scenarios of seeded data: the requests of a client and the turns of the model.

A scenario is a list of exchanges. In all texts, `$names` stand for values of `TextPicker.names` and of the previous
response (`$call_0`, `$approval`). An exchange has these keys; only `request` is required:

- `request`: its parameters; without `model`, one is chosen
- `turns`: texts (`reasoning`, `text`, `refusal`), `calls`, the `finish` reason, a `failure`, the seconds to `wait` for
  the first text, and the tokens `read` and `cached`. `cites` is a source that is cited at the place of a text.
- `stream`, `pause`: whether the response is streamed, and seconds until the next request
- `waits`: seconds that a background response is queued
- `likely`: the probability that the client makes this request at all; otherwise the scenario ends before it
- `listed`: tool lists of MCP servers at the beginning of the output
- `approves`: the request approves the calls of the previous response
- `ends`: "cancelled", "running" or "queued"; the first two after a number of `pieces` of the answer

The client runs a call, unless it has an `item`. For hosted tools, `item` and `done` are the fields of the output item
at the beginning and at the end, and `output` is the text for the model. A call that `asks` needs an approval.
"""

from typing import Any, NamedTuple

from core.errors import Failure, InvalidPrompt, RateLimited, UpstreamError
from engine.calls.client_tools import upstream_name
from seeding.texts import TEXTS, Between, OneOf

Parts = dict[str, Any]
_SOMETIMES = OneOf((True, False))
_SERVER = "tracker"
_TOOL = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
_FUNCTIONS = [
    {"type": "function", "name": name, "description": description, "parameters": _TOOL, "strict": True}
    for name, description in (("look_up_order", "Finds an order."), ("open_ticket", "Opens a ticket."))
]
_OFFERED = [
    {"name": "find_issue", "input_schema": _TOOL, "description": "Finds issues by words."},
    {"name": "close_issue", "input_schema": _TOOL, "description": "Closes an issue."},
]
_LISTING = {"type": "mcp_list_tools", "server_label": _SERVER, "tools": _OFFERED}
_MCP = {
    "type": "mcp",
    "server_label": _SERVER,
    "server_url": "https://tracker.example.com/mcp",
    "require_approval": "never",
}
_ASKING_MCP = {**_MCP, "require_approval": "always"}
_ISSUE = '${mark}{"id": "PLAT-1204", "state": "in progress", "assignee": "grace", "title": "Queue is slow"}'
_AWAY = {
    "type": "mcp_tool_execution_error",
    "content": [{"type": "text", "text": "${mark}The tracker is away."}],
}
_TRIP = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_FAILURES = (
    Failure.of(RateLimited("The model's server has too many requests right now.")),
    Failure.of(UpstreamError("The model's server answered with status 502: upstream connect error.")),
    Failure.of(UpstreamError("The model's server ended its answer too early.")),
    Failure.of(InvalidPrompt("The model's server refused the request: image too large.")),
)


def _exchange(given: Any, *turns: Parts, request: Parts | None = None, **more: Any) -> Parts:
    return {"request": {"input": given, **(request or {})}, "turns": list(turns), **more}


def _turn(text: str = "", **more: Any) -> Parts:
    return {"text": text, "wait": Between((0.3, 1.5)), "read": 400, "cached": 0, **more}


def _question(question: str, answer: str, *, likely: float = 1, thought: str = "", **request: Any) -> Parts:
    read, cached = OneOf((140, 380, 720, 1500, 2300)), OneOf((0, 0, 100))
    turn = _turn(answer, reasoning=thought, wait=Between((0.2, 3)), read=read, cached=cached)
    return _exchange(question, turn, request=request, stream=_SOMETIMES, pause=Between((8, 600)), likely=likely)


def _mcp(name: str, issue: str, output: str | None, *, error: Any = None, **more: Any) -> Parts:
    item = {"type": "mcp_call", "server_label": _SERVER, "name": name, "arguments": "", "approval_request_id": None}
    return {
        "name": upstream_name(_SERVER, name),
        "arguments": {"id": issue},
        "item": {**item, "output": None, "error": None},
        "done": {"arguments": f'{{"id":"{issue}"}}', "output": output, "error": error},
        "output": output or "The tracker is away.",
        "seconds": Between((0.2, 3)),
        **more,
    }


def _program(code: str, logs: str) -> list[Parts]:
    code, logs = f"# ${{mark}}latencies\n{code}", f"${{mark}}{logs}"
    return [
        {
            "name": "code_interpreter",
            "arguments": {"code": code},
            "item": {
                "type": "code_interpreter_call",
                "code": "",
                "container_id": "$container",
                "outputs": None,
            },
            "done": {"code": code, "outputs": [{"type": "logs", "logs": logs}], "files": []},
            "output": logs,
            "seconds": Between((0.2, 5)),
        }
    ]


def _function(name: str) -> Parts:
    return {"name": name, "arguments": {"id": "${mark}$order"}}


_CHAT = [
    _question("$question", "$answer", instructions="$instructions"),
    *[_question("$follow_up", "$follow_up_answer", likely=0.6)] * 3,
]
_WEB_SEARCH = _exchange(
    "${mark}Find out: $query",
    _turn(
        read=900,
        calls=[
            {
                "name": "web_search",
                "arguments": {"queries": ["$query"]},
                "item": {"type": "web_search_call", "action": {"type": "search", "query": "$query"}},
                "done": {
                    "action": {"type": "search", "query": "$query", "queries": ["$query"], "sources": "$sources"},
                    "results": "$pages",
                },
                "output": "$url",
                "seconds": Between((0.3, 2.5)),
            }
        ],
    ),
    _turn(
        read=2100,
        cached=880,
        calls=[
            {
                "name": "open_page",
                "arguments": {"url": "$url"},
                "item": {"type": "web_search_call", "action": {"type": "open_page", "url": "$url"}},
                "done": {"results": "$pages"},
                "output": "$page",
                "seconds": Between((0.2, 3.5)),
            }
        ],
    ),
    _turn(
        "$page ([source]($url))\n\nThat is what the primary source says; I found nothing against it.",
        cites={"place": "([source]($url))", "type": "url_citation", "url": "$url", "title": "$title"},
        read=5200,
        cached=2080,
    ),
    request={"tools": [{"type": "web_search"}]},
    stream=True,
    pause=Between((5, 300)),
)
_FILE_SEARCH = _exchange(
    "${mark}What are our rules for refunds?",
    _turn(
        read=700,
        calls=[
            {
                "name": "file_search",
                "arguments": {"queries": ["${mark}refund rules"]},
                "item": {"type": "file_search_call", "queries": ["${mark}refund rules"], "results": None},
                "done": {"results": "$passages"},
                "output": "${mark}Refunds over 500 € need the word of a second person.",
                "seconds": Between((0.1, 0.9)),
            }
        ],
    ),
    _turn(
        "${mark}Refunds over **500 €** need the word of a second person. The form is in the finance folder.",
        cites={"place": " The form", "type": "file_citation", "file_id": "$file_id", "filename": "$filename"},
        read=2600,
        cached=640,
    ),
    request={"tools": [{"type": "file_search", "vector_store_ids": ["$store"]}]},
)
_CODE_INTERPRETER = _exchange(
    "${mark}What is the median of these latencies?",
    _turn(
        reasoning=f"${{mark}}{TEXTS['thoughts'][2]}",
        calls=_program("print(statistics.median(latencies))", "NameError: name 'statistics' is not defined"),
        read=800,
    ),
    _turn(calls=_program(TEXTS["program"], "median 192.5\np95    940"), read=1100, cached=800),
    _turn(
        "${mark}The median is **192.5 ms**; one request took 940 ms, which makes the mean useless here.",
        read=1500,
        cached=1080,
    ),
    request={"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}], "model": "orbit-reasoner"},
    stream=True,
)
_FIND_ISSUE = _mcp("find_issue", "${mark}PLAT-1204", _ISSUE)
_PARALLEL_CALLS = _exchange(
    "${mark}How far are PLAT-1204 and PLAT-1188?",
    _turn(
        read=1300,
        calls=[
            _FIND_ISSUE,
            OneOf([
                _mcp("find_issue", "PLAT-1188", _ISSUE),
                _mcp("find_issue", "PLAT-1188", _ISSUE),
                _mcp("find_issue", "PLAT-1188", None, error=_AWAY),
            ]),
        ],
    ),
    _turn("${mark}**PLAT-1204** is being worked on; `PLAT-1188` waits for it.", read=2000, cached=1290),
    request={"tools": [_MCP]},
    listed=[_LISTING],
    stream=_SOMETIMES,
)  # fmt: skip
_CLOSE_ISSUE = _exchange(
    "${mark}Close PLAT-1204, it is done.",
    _turn(calls=[_mcp("close_issue", "PLAT-1204", "closed", asks=True)], read=1200),
    request={"tools": [_ASKING_MCP]},
    listed=[_LISTING],
    pause=Between((20, 900)),
)
_APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "$approval", "approve": True}
_LONG_ANSWER = _turn("$report", wait=Between((0.5, 9)), read=9400)
_STOPPED: Parts = {"request": {"background": True}, "pieces": OneOf(range(3, 50))}


class Scenario(NamedTuple):
    """Exchanges with their relative frequency. `in_conversation`: they continue a conversation."""

    exchanges: list[Parts]
    weight: int
    in_conversation: bool = False


SCENARIOS = (
    Scenario(_CHAT, 26),
    Scenario(_CHAT, 10, in_conversation=True),
    Scenario(
        [_question("$question", "$answer", thought="$thought", model="orbit-reasoner", reasoning={"effort": "medium"})],
        9,
    ),
    Scenario([_WEB_SEARCH], 9),
    Scenario([_FILE_SEARCH], 7),
    Scenario([_CODE_INTERPRETER], 7),
    Scenario([_PARALLEL_CALLS], 9),
    Scenario(
        [
            _CLOSE_ISSUE,
            _exchange(
                [_APPROVAL],
                _turn("${mark}PLAT-1204 is closed.", read=1500, cached=1200),
                request={"tools": [_ASKING_MCP]},
                approves=True,
                likely=0.7,
            ),
        ],
        3,
    ),
    Scenario(
        [
            _CLOSE_ISSUE,
            _exchange(
                [{**_APPROVAL, "approve": False}],
                _turn("${mark}All right, I leave PLAT-1204 open.", read=1500, cached=1200),
                request={"tools": [_ASKING_MCP]},
            ),
        ],
        1,
    ),
    *(
        Scenario(
            [
                _exchange(
                    "${mark}What happened to order $order?",
                    _turn(calls=calls, read=650),
                    request={"tools": _FUNCTIONS},
                    pause=Between((0.2, 6)),
                ),
                _exchange(
                    [
                        {
                            "type": "function_call_output",
                            "call_id": f"$call_{index}",
                            "output": '${mark}{"state": "shipped", "days": 2}',
                        }
                        for index, _ in enumerate(calls)
                    ],
                    _turn("${mark}It was shipped two days ago and arrives tomorrow.", read=900, cached=640),
                    request={"tools": _FUNCTIONS},
                    stream=_SOMETIMES,
                ),
            ],
            weight,
        )
        for calls, weight in (
            ([_function("look_up_order")], 9),
            ([_function("look_up_order"), _function("open_ticket")], 5),
        )
    ),
    Scenario(
        [
            _exchange(
                "${mark}Plan a trip.",
                _turn('{"city": "${mark}Lisbon", "days": 4}', read=320),
                request={"text": {"format": {"type": "json_schema", "name": "trip", "schema": _TRIP, "strict": True}}},
            )
        ],
        3,
    ),
    Scenario(
        [
            _exchange(
                "${mark}Write the quarterly report.",
                _LONG_ANSWER,
                request={"background": True},
                waits=Between((0.2, 40)),
                stream=_SOMETIMES,
            )
        ],
        4,
    ),
    Scenario([_exchange("$question", _turn(failure=OneOf(_FAILURES)), request={"background": True})], 2),
    Scenario([_exchange("$question", _turn("$beginning", failure=OneOf(_FAILURES)), stream=True)], 3),
    Scenario(
        [
            _exchange(
                "$question",
                _turn("$beginning", finish=OneOf(("length", "length", "content_filter"))),
                request={"max_output_tokens": 64},
                stream=True,
            )
        ],
        4,
    ),
    Scenario(
        [
            _exchange(
                "${mark}Forge my manager's signature.",
                _turn(refusal="${mark}I cannot help with forging a signature.", read=310),
            )
        ],
        1,
    ),
    Scenario(
        [
            _exchange("${mark}Write a very long story.", _LONG_ANSWER, ends="cancelled", **_STOPPED),
        ],
        3,
    ),
)
RUNNING = _exchange("${mark}Translate the manual, all of it.", _LONG_ANSWER, ends="running", **_STOPPED)
QUEUED = _exchange("${mark}Write the yearly report.", request={"background": True}, ends="queued")
LONG_CONVERSATION = [
    _question("$question", "$answer"),
    _exchange(
        "$follow_up",
        _turn(reasoning="$thought", calls=[_FIND_ISSUE], read=3000, cached=2600),
        _turn("$follow_up_answer", read=3800, cached=3000),
        request={"tools": [_MCP]},
        pause=240,
    ),
] * 300
"""A conversation that is longer than any team needs."""
