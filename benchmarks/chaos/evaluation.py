"""Evaluation of a scenario: figures with their expected values, and faults by run."""

import json
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import groupby
from typing import Any

import psycopg

from benchmarks.chaos import audit
from benchmarks.chaos.mock_servers import CALLS, LABEL, STEPS, WRITE, result_of, words_of
from benchmarks.chaos.scenario import ChaosRun

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
    batches: list[tuple[int, int, str]]

    @cached_property
    def events(self) -> list[Event]:
        """Events of the log."""
        lines = "".join(frames for _, _, frames in self.batches).split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def final(self) -> Mapping[str, Any]:
        """The response of the terminal event, or an empty one."""
        bodies: list[Event] = [event["response"] for event in self.events[-1:] if event["type"] in _TERMINAL]
        return bodies[0] if bodies else {"output": []}


class Evaluation:
    """Evaluates a scenario by the database, the records of the mock servers and the observations of clients."""

    def __init__(self, chaos_run: ChaosRun) -> None:
        self._chaos_run = chaos_run
        self._stored = list(_stored(chaos_run.deployment.admin))
        self._by_id = {one.id: one for one in self._stored}
        self._calls = defaultdict[str, list[audit.Call]](list)
        for call in audit.calls(chaos_run.deployment.admin):
            self._calls[call.response_id].append(call)

    def figures(self) -> list[Figure]:
        """Return all figures."""
        completed = [one for one in self._stored if one.status == "completed"]
        failed = [one for one in self._stored if one.status == "failed"]
        disasters = self._chaos_run.observations.disasters
        return [
            Figure(name="responses", value=len(self._stored)),
            Figure(name="seconds", value=round(self._chaos_run.observations.seconds)),
            Figure(name="workers killed", value=disasters["worker"]),
            Figure(name="Valkey restarts with loss of data", value=disasters["valkey"]),
            Figure(name="PostgreSQL crashes", value=disasters["postgres"]),
            Figure(name="unanswered create requests, repeated", value=self._chaos_run.observations.unanswered),
            Figure(name="times a run was resumed", value=sum(one.attempt - 1 for one in self._stored)),
            Figure(name="completed", value=len(completed)),
            Figure(name="failed, because a call in flight must not be repeated", value=len(failed)),
            *self._faults(completed, failed),
        ]

    def _faults(self, completed: Sequence[Stored], failed: Sequence[Stored]) -> list[Figure]:
        repeated = sum(call.attempt > 1 for calls in self._calls.values() for call in calls)
        return [
            _faulty("lost or not ended", self._unended()),
            _faulty("failed for any other reason", _each(failed, self._failed_wrongly)),
            _faulty("completed with wrong output", _each(completed, self._completed_wrongly)),
            Figure(name="tool calls with a stored result", value=self._results()),
            _faulty("... that were repeated after it", self._made_again()),
            Figure(name="repeatable tool calls in flight that were repeated", value=repeated),
            _faulty("repeated tool calls that must not be repeated", self._made_twice()),
            _faulty("wrong requests to the model or a tool", self._chaos_run.mocks.wrong),
            _faulty("event logs with a gap or a duplicate", _each(self._stored, log_faults)),
            Figure(name="followers", value=len(self._chaos_run.observations.received)),
            _faulty("... that missed an event or received one twice", self._wrongly_received()),
            *self._ledger(),
        ]

    def _unended(self) -> list[str]:
        lost = [
            f"{run} is not stored"
            for run, made in self._chaos_run.observations.created.items()
            if made not in self._by_id
        ]
        return lost + [
            f"{one.run} is {one.status}" for one in self._stored if one.status not in {"completed", "failed"}
        ]

    # -- outcome of each run -------------------------------------------------------------------------------------------

    def _failed_wrongly(self, one: Stored) -> Iterator[str]:
        writes = [call for call in self._calls[one.id] if call.name == f"{LABEL}__{WRITE}"]
        if one.error != _CUT or one.attempt < 2:
            yield f"it failed at attempt {one.attempt}: {one.error}"
        elif [(call.status, call.stored_at) for call in writes] != [("abandoned", None)]:
            yield f"it was not in flight: {writes}"

    def _completed_wrongly(self, one: Stored) -> Iterator[str]:
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
        if _retrieved(self._chaos_run, one.id) != body:
            yield "the retrieved response differs from the log"

    # -- tool calls ----------------------------------------------------------------------------------------------------

    def _results(self) -> int:
        return sum(call.stored_at is not None for calls in self._calls.values() for call in calls)

    def _arrivals(self, one: Stored, step: int) -> list[float]:
        return self._chaos_run.mocks.arrivals.get((one.run, step), [])

    def _made_again(self) -> list[str]:
        return [
            f"{one.run}: step {call.step} was made {_at(arrival)}, its result was stored {call.stored_at}"
            for one in self._stored
            for call in self._calls[one.id]
            for arrival in self._arrivals(one, call.step)
            if call.stored_at is not None and _at(arrival) > call.stored_at
        ]

    def _made_twice(self) -> list[str]:
        return [
            f"{one.run}: step {call.step} was begun {call.attempt} times, came {len(self._arrivals(one, call.step))}"
            for one in self._stored
            for call in self._calls[one.id]
            if len(self._arrivals(one, call.step)) > (1 if call.name.endswith(WRITE) else call.attempt)
        ]

    # -- followers and the ledger --------------------------------------------------------------------------------------

    def _wrongly_received(self) -> list[str]:
        return [
            f"{self._by_id[response_id].run}: {numbers}"
            for response_id, numbers in self._chaos_run.observations.received.items()
            if numbers != list(range(len(self._by_id[response_id].events)))
        ]

    def _ledger(self) -> Iterator[Figure]:
        # Each turn has exactly one usage record. Interrupted requests to the model may have left further records,
        # because a worker that loses a run records its usage, but there must never be more records than requests.
        rows, turns = (
            _counts(self._chaos_run.deployment.admin, _LEDGER),
            _counts(self._chaos_run.deployment.admin, _TURNS),
        )
        asked, faults = self._chaos_run.mocks.asked, []
        for one in self._stored:
            if any(turns[one.id, number] != 1 for number in range(one.turns)):
                faults.append(f"{one.run} has {one.turns} turns, but not each of them once")
            for turn in range(len(STEPS) + 1):
                most = asked[one.run, turn] if turns[one.id, turn] else asked[one.run, turn] - 1
                if not turns[one.id, turn] <= rows[one.id, turn] <= max(0, most):
                    faults.append(
                        f"{one.run} has {rows[one.id, turn]} rows for turn {turn}, asked {asked[one.run, turn]}"
                    )
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


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _retrieved(chaos_run: ChaosRun, response_id: str) -> Mapping[str, Any]:
    url = f"{chaos_run.deployment.url}/v1/responses/{response_id}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {chaos_run.deployment.key}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        body: Mapping[str, Any] = json.load(answer)
    return body


# -- rows, read as a superuser -----------------------------------------------------------------------------------------

_RESPONSES = """
SELECT metadata ->> 'run', id, status, coalesce(error ->> 'message', ''), attempt, turns, array(
    SELECT json_build_array(first_sequence, last_sequence, frames) FROM responses_eventbatch
    WHERE response_id = response.id ORDER BY first_sequence
) FROM responses_response AS response ORDER BY created_at
"""
_TURNS = "SELECT response_id, number, count(*) FROM responses_turn GROUP BY 1, 2"
_LEDGER = "SELECT object_id, turn, count(*) FROM tenants_usagerecord WHERE endpoint = 'responses' GROUP BY 1, 2"


def _stored(admin: str) -> Iterator[Stored]:
    with psycopg.connect(admin) as connection:
        for run, response_id, status, error, attempt, turns, batches in connection.execute(_RESPONSES).fetchall():
            yield Stored(
                run=run,
                id=response_id,
                status=status,
                error=error,
                attempt=attempt,
                turns=turns,
                batches=[(first, last, frames) for first, last, frames in batches],
            )


def _counts(admin: str, query: str) -> Counter[tuple[str, int]]:
    with psycopg.connect(admin) as connection:
        return Counter({(owner, number): count for owner, number, count in connection.execute(query.encode())})
