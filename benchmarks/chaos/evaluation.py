"""`python -m benchmarks chaos`: figures of a scenario with their expected values, and faults by run."""

import asyncio
import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import published
from benchmarks.chaos import availability
from benchmarks.chaos.mock_servers import CALLS, LABEL, STEPS, WRITE, result_of, words_of
from benchmarks.chaos.scenario import Plan, Scenario, running_chaos
from benchmarks.stack import ask, tell
from engine.events.compression import decompress

Event = dict[str, Any]
_CUT = f"The call of '{LABEL}__{WRITE}' was interrupted, and its tool is not known to be repeatable."
_ONCE = ("response.created", "response.queued", "response.in_progress")
_TERMINAL = {"response.completed", "response.failed"}
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A count. `faults` are the cases that must not occur, or None for information only."""

    name: str
    value: int
    faults: Sequence[str] | None = None

    def text(self) -> str:
        """Return a line of the table with the first faults."""
        expected = "" if self.faults is None else "   must be 0"
        faults = [f"    {fault}" for fault in (self.faults or ())[:_SHOWN]]
        return "\n".join([f"{self.name:<78}{self.value:>6}{expected}", *faults])


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A stored response with the batches of its event log."""

    run: str
    id: str
    status: str
    error: str
    attempt: int
    turns: int
    batches: list[tuple[int, int, bytes]]

    @cached_property
    def events(self) -> list[Event]:
        """Events of the log."""
        lines = b"".join(frames for _, _, frames in self.batches).split(b"\n")
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    @property
    def final(self) -> Mapping[str, Any]:
        """The response of the terminal event, or an empty one."""
        bodies: list[Event] = [event["response"] for event in self.events[-1:] if event["type"] in _TERMINAL]
        return bodies[0] if bodies else {"output": []}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A stored tool call. `stored_at` is the time at which its result was first written."""

    name: str
    step: int
    status: str
    attempt: int
    stored_at: datetime | None


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run the scenario and print the figures. Return 1 if there are faults."""
    parser = published.parser("chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="background responses of three turns with tools")
    parser.add_argument("--kill-every", type=float, default=4.0, help="seconds between killed processes")
    parser.add_argument("--minutes", type=float, help="instead: random faults under mixed load for so many minutes")
    parser.add_argument("--load", type=float, default=0.5, help="then: share of the capacity (default %(default)s)")
    parser.add_argument("--rate", type=float, help="actions per second that count as the capacity, not measured then")
    parser.add_argument("--capacity-seconds", type=float, default=40.0, help="to find it (default %(default)s)")
    parser.add_argument("--pause", type=float, default=12.0, help="mean seconds without fault (default %(default)s)")
    parser.add_argument("--only", action="append", metavar="FAULT", help="cause only this kind of fault; repeatable")
    parser.add_argument("--teams", type=int, default=40, help="number of teams (default %(default)s)")
    parser.add_argument("--batch-lines", type=int, default=0, metavar="N", help="lines of a batch beside the load")
    parser.add_argument("--seed", type=int, default=1, help="of everything random in the mixed load and its faults")
    options = parser.parse_args(arguments)
    if options.minutes:
        return availability.run(options, directory=directory)
    rounds = max(1, options.runs // 1000)
    plan = Plan(
        runs=options.runs,
        kill_every=options.kill_every,
        valkey_restarts=[(number + share) / rounds for number in range(rounds) for share in (0.3, 0.7)],
        postgres_restarts=[(number + 0.5) / rounds for number in range(rounds)],
    )
    figures = asyncio.run(evaluated(plan, directory=directory, log=tell))
    print("\n".join(figure.text() for figure in figures))
    if options.publish:
        rows = [
            {"name": figure.name, "value": figure.value, "must_be_zero": figure.faults is not None}
            for figure in figures
        ]
        published.publish("chaos-runs", {"conditions": published.conditions(), "figures": rows})
    return 1 if any(figure.faults for figure in figures) else 0


async def evaluated(plan: Plan, *, directory: Path, log: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """Run the scenario and return its figures.

    They compare the database with the records of the mock servers and of the clients.
    """
    async with running_chaos(plan, directory=directory, log=log) as scenario:
        return await asyncio.to_thread(_figures, scenario)


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the documentation."""
    rows = [
        [figure["name"], f"{figure['value']:,}", "must be 0" if figure["must_be_zero"] else ""]
        for figure in content["figures"]
    ]
    at = content["conditions"]
    return f"{published.table(['figure', 'count', ''], rows)}\n\n{at['cores']} cores, {at['date']}."


VIEWS = {"table": table}


def _figures(scenario: Scenario) -> list[Figure]:
    mocks, admin = scenario.mocks, scenario.deployment.admin
    stored, calls = list(_stored(admin)), defaultdict[str, list[Call]](list)
    for response_id, name, step, status, attempt, stored_at in _rows(admin, _CALLS):
        calls[response_id].append(Call(name=name, step=step, status=status, attempt=attempt, stored_at=stored_at))
    by_id = {one.id: one for one in stored}
    completed, failed = ([one for one in stored if one.status == status] for status in ("completed", "failed"))
    # Each call with the times at which the tool received it.
    made = [(one, call, mocks.arrivals.get((one.run, call.step), [])) for one in stored for call in calls[one.id]]
    unended = [f"{run} is not stored" for run, response_id in scenario.created.items() if response_id not in by_id]
    unended += [f"{one.run} is {one.status}" for one in stored if one.status not in {"completed", "failed"}]
    again = [
        f"{one.run}: step {call.step} was made {at}, its result was stored {call.stored_at}"
        for one, call, arrivals in made
        for at in (datetime.fromtimestamp(arrival, UTC) for arrival in arrivals)
        if call.stored_at is not None and at > call.stored_at
    ]
    twice = [
        f"{one.run}: step {call.step} was begun {call.attempt} times, came {len(arrivals)}"
        for one, call, arrivals in made
        if len(arrivals) > (1 if call.name.endswith(WRITE) else call.attempt)
    ]

    def silent(one: Stored) -> Iterator[str]:
        unknown = [
            call
            for call in calls[one.id]
            if call.name == f"{LABEL}__{WRITE}" and call.stored_at is None and call.attempt
        ]
        if unknown and (one.status, one.error) != ("failed", _CUT):
            yield f"it is {one.status} with the error {one.error!r}, but has {unknown}"

    wrongly_received = [
        f"{by_id[response_id].run}: {numbers}"
        for response_id, numbers in scenario.received.items()
        if numbers != list(range(len(by_id[response_id].events)))
    ]
    return [
        Figure(name="responses", value=len(stored)),
        Figure(name="seconds", value=round(scenario.seconds)),
        Figure(name="workers killed", value=scenario.disasters["worker"]),
        Figure(name="web processes killed", value=scenario.disasters["web"]),
        Figure(name="Valkey restarts with loss of data", value=scenario.disasters["valkey"]),
        Figure(name="PostgreSQL crashes", value=scenario.disasters["postgres"]),
        Figure(name="unanswered create requests, repeated", value=scenario.unanswered),
        _faulty("... that were not answered in time", scenario.silent),
        Figure(name="times a run was resumed", value=sum(one.attempt - 1 for one in stored)),
        Figure(name="completed", value=len(completed)),
        Figure(name="failed, because the outcome of a call is unknown and it must not be repeated", value=len(failed)),
        _faulty("runs with an unknown outcome of a call that do not say so", _each(stored, silent)),
        _faulty("lost or not ended", unended),
        _faulty("failed for any other reason", _each(failed, lambda one: _failed_wrongly(one, calls[one.id]))),
        _faulty("completed with wrong output", _each(completed, lambda one: _completed_wrongly(one, scenario))),
        Figure(name="tool calls with a stored result", value=sum(call.stored_at is not None for _, call, _ in made)),
        _faulty("... that were repeated after it", again),
        Figure(name="repeatable tool calls in flight that were repeated", value=sum(c.attempt > 1 for _, c, _ in made)),
        _faulty("repeated tool calls that must not be repeated", twice),
        _faulty("wrong requests to the model or a tool", mocks.wrong),
        _faulty("event logs with a gap or a duplicate", _each(stored, log_faults)),
        Figure(name="followers", value=len(scenario.received)),
        _faulty("... that missed an event or received one twice", wrongly_received),
        *_ledger(scenario, stored),
    ]


def _failed_wrongly(one: Stored, calls: Sequence[Call]) -> Iterator[str]:
    writes = [call for call in calls if call.name == f"{LABEL}__{WRITE}"]
    if one.error != _CUT or one.attempt < 2:
        yield f"it failed at attempt {one.attempt}: {one.error}"
    elif [(call.status, call.stored_at) for call in writes] != [("abandoned", None)]:
        yield f"it was not in flight: {writes}"


def _completed_wrongly(one: Stored, scenario: Scenario) -> Iterator[str]:
    body = one.final
    whole = [item for item in body["output"] if item.get("status") == "completed"]
    texts = [item["content"][0]["text"] for item in whole if item["type"] == "message"]
    done = [item["output"] for item in whole if item["type"] == "mcp_call"]
    # A message that was complete when its turn was interrupted stays, because clients received it; the turn is
    # repeated.
    distinct = [text for text, _ in groupby(texts)]
    expected = [words_of(one.run, turn) for turn in range(len(STEPS) + 1)]
    if distinct != expected or len(texts) - len(distinct) >= one.attempt:
        yield f"its messages are {texts}"
    if done != [result_of(one.run, step) for step in range(CALLS)]:
        yield f"its tool outputs are {done}"
    if ask(scenario.deployment.platform, "GET", f"/responses/{one.id}") != body:
        yield "the retrieved response differs from the log"


def _ledger(scenario: Scenario, stored: Sequence[Stored]) -> Iterator[Figure]:
    # Each turn has one usage record. An interrupted request may have left another one: an estimate if its worker died.
    # If a worker died at about the time of its request, it is unknown whether the request was sent, so there is at most
    # one estimate for each lost attempt. The other records never exceed the number of requests.
    rows, reported, turns = (
        Counter({(owner, number): count for owner, number, count in _rows(scenario.deployment.admin, query)})
        for query in (_LEDGER, _REPORTED, _TURNS)
    )
    asked, faults = scenario.mocks.asked, []
    for one in stored:
        if any(turns[one.id, number] != 1 for number in range(one.turns)):
            faults.append(f"{one.run} has {one.turns} turns, but not each of them once")
        for turn in range(len(STEPS) + 1):
            if rows[one.id, turn] < turns[one.id, turn] or reported[one.id, turn] > asked[one.run, turn]:
                faults.append(f"{one.run} has {rows[one.id, turn]} rows for turn {turn}, asked {asked[one.run, turn]}")
        estimates = sum(rows[one.id, turn] - reported[one.id, turn] for turn in range(len(STEPS) + 1))
        if estimates > one.attempt - 1:
            faults.append(f"{one.run} has {estimates} estimates, but {one.attempt} attempts")
    yield Figure(name="turns", value=turns.total())
    yield Figure(name="additional usage records, of interrupted turns", value=rows.total() - turns.total())
    yield _faulty("turns without a usage record, or records without a request", faults)


def _faulty(name: str, faults: Sequence[str]) -> Figure:
    return Figure(name=name, value=len(faults), faults=faults)


def _each(runs: Sequence[Stored], judge: Callable[[Stored], Iterator[str]]) -> list[str]:
    return [f"{one.run} ({one.id}): {'; '.join(faults)}" for one in runs if (faults := list(judge(one)))]


def log_faults(one: Stored) -> Iterator[str]:
    """Yield faults of an event log: gaps, duplicates, repeated or missing events."""
    ends = [0, *(last + 1 for _, last, _ in one.batches)]
    if [first for first, _, _ in one.batches] != ends[:-1]:
        yield f"its batches are {[(first, last) for first, last, _ in one.batches]}"
    if [event["sequence_number"] for event in one.events] != list(range(ends[-1])):
        yield f"its events are {[event['sequence_number'] for event in one.events]}"
    types = [event["type"] for event in one.events]
    if [kind for kind in types if kind in _ONCE] != list(_ONCE) or tuple(types[:2]) != _ONCE[:2]:
        yield f"it begins with {types[:4]}"
    if [kind for kind in types if kind in _TERMINAL] != types[-1:] or not types:
        yield f"it ends with {types[-3:]}"
    for kind in ("response.output_item.added", "response.output_item.done"):
        places = [event["output_index"] for event in one.events if event["type"] == kind]
        if places != list(range(len(one.final["output"]))):
            yield f"{kind} came for {places}"


# -- rows, read as a superuser -----------------------------------------------------------------------------------------

_RESPONSES = """
SELECT metadata ->> 'run', id, status, coalesce(error ->> 'message', ''), attempt, turns, array(
    SELECT json_build_array(first_sequence, last_sequence, encode(compressed, 'base64')) FROM responses_eventbatch
    WHERE response_id = response.id ORDER BY first_sequence
) FROM responses_response AS response ORDER BY created_at
"""
_TURNS = "SELECT response_id, number, count(*) FROM responses_turn GROUP BY 1, 2"
_LEDGER = "SELECT object_id, turn, count(*) FROM tenants_usagerecord WHERE endpoint = 'responses' GROUP BY 1, 2"
_REPORTED = _LEDGER.replace("GROUP", "AND NOT estimated GROUP")
_CALLS = """
SELECT call.response_id, call.name, (call.arguments::json ->> 'step')::integer, call.status, call.attempt, (
    SELECT min(note.at) FROM chaos.note
    WHERE note.response_id = call.response_id AND note.call_id = call.call_id
      AND note.status IN ('returned', 'completed', 'failed')
)
FROM responses_toolcall AS call
"""


def _stored(admin: str) -> Iterator[Stored]:
    for run, response_id, status, error, attempt, turns, batches in _rows(admin, _RESPONSES):
        logged = [(first, last, decompress(base64.b64decode(data))) for first, last, data in batches]
        yield Stored(run=run, id=response_id, status=status, error=error, attempt=attempt, turns=turns, batches=logged)


def _rows(admin: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(admin) as connection:
        return connection.execute(query.encode()).fetchall()
