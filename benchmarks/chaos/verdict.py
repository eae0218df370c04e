"""What a play came to: each figure with what it has to be, and what is wrong by name."""

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
from benchmarks.chaos.partners import CALLS, LABEL, STEPS, WRITE, result_of, words_of
from benchmarks.chaos.play import Played

Event = dict[str, Any]
_CUT = f"The call of '{LABEL}__{WRITE}' was interrupted, and it is not known to be repeatable."
_ONCE = ("response.created", "response.queued", "response.in_progress")
_TERMINAL = {"response.completed", "response.failed"}
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Something that was counted. `faults` are the cases that must not be; None: it is just told."""

    name: str
    value: int
    faults: Sequence[str] | None = None

    def text(self) -> str:
        """A line of the table, and the first faults below it."""
        said = "" if self.faults is None else "   must be 0"
        faults = [f"    {fault}" for fault in (self.faults or ())[:_SHOWN]]
        return "\n".join([f"{self.name:<78}{self.value:>6}{said}", *faults])


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A response as it is stored. `events`: its log, batch by batch."""

    run: str
    id: str
    status: str
    error: str
    attempt: int
    turns: int
    batches: list[tuple[int, int, str]]

    @cached_property
    def events(self) -> list[Event]:
        """What the log says."""
        lines = "".join(frames for _, _, frames in self.batches).split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def final(self) -> Mapping[str, Any]:
        """The response as the last event tells it, if that is one which ends it."""
        bodies: list[Event] = [event["response"] for event in self.events[-1:] if event["type"] in _TERMINAL]
        return bodies[0] if bodies else {"output": []}


class Verdict:
    """Judges a play. Everything is read from PostgreSQL, from what the partners noted and from what clients heard."""

    def __init__(self, play: Played) -> None:
        self._play = play
        self._stored = list(_stored(play.stage.admin))
        self._by_id = {one.id: one for one in self._stored}
        self._calls = defaultdict[str, list[audit.Call]](list)
        for call in audit.calls(play.stage.admin):
            self._calls[call.response_id].append(call)

    def figures(self) -> list[Figure]:
        """All of them."""
        completed = [one for one in self._stored if one.status == "completed"]
        failed = [one for one in self._stored if one.status == "failed"]
        disasters = self._play.course.disasters
        return [
            Figure(name="responses", value=len(self._stored)),
            Figure(name="seconds", value=round(self._play.course.seconds)),
            Figure(name="workers killed", value=disasters["worker"]),
            Figure(name="Valkey restarts, all forgotten", value=disasters["valkey"]),
            Figure(name="PostgreSQL crashes", value=disasters["postgres"]),
            Figure(name="creations that were not answered, and repeated", value=self._play.course.unanswered),
            Figure(name="times a run was taken over", value=sum(one.attempt - 1 for one in self._stored)),
            Figure(name="completed", value=len(completed)),
            Figure(name="failed, as a call in flight must not be repeated", value=len(failed)),
            *self._faults(completed, failed),
        ]

    def _faults(self, completed: Sequence[Stored], failed: Sequence[Stored]) -> list[Figure]:
        repeated = sum(call.attempt > 1 for calls in self._calls.values() for call in calls)
        return [
            _faulty("lost, or not ended", self._unended()),
            _faulty("failed for any other reason", _each(failed, self._failed_wrongly)),
            _faulty("completed with something else than was said and done", _each(completed, self._completed_wrongly)),
            Figure(name="tool calls whose result was stored", value=self._results()),
            _faulty("... and that were made again after it", self._made_again()),
            Figure(name="tool calls in flight that were made again, as they may be", value=repeated),
            _faulty("tool calls made again that must not be", self._made_twice()),
            _faulty("what a model or a tool was asked wrongly", self._play.partners.wrong),
            _faulty("event logs with a gap or a duplicate", _each(self._stored, log_faults)),
            Figure(name="followers, through everything", value=len(self._play.course.heard)),
            _faulty("... that missed an event or got one twice", self._misheard()),
            *self._ledger(),
        ]

    def _unended(self) -> list[str]:
        lost = [f"{run} is not stored" for run, made in self._play.course.created.items() if made not in self._by_id]
        return lost + [
            f"{one.run} is {one.status}" for one in self._stored if one.status not in {"completed", "failed"}
        ]

    # -- what each run came to -----------------------------------------------------------------------------------------

    def _failed_wrongly(self, one: Stored) -> Iterator[str]:
        writes = [call for call in self._calls[one.id] if call.name == f"{LABEL}__{WRITE}"]
        if one.error != _CUT or one.attempt < 2:
            yield f"it failed at attempt {one.attempt}: {one.error}"
        elif [(call.status, call.stored_at) for call in writes] != [("abandoned", None)]:
            yield f"it was not in flight: {writes}"

    def _completed_wrongly(self, one: Stored) -> Iterator[str]:
        body = one.final
        whole = [item for item in body["output"] if item.get("status") == "completed"]
        said = [item["content"][0]["text"] for item in whole if item["type"] == "message"]
        done = [item["output"] for item in whole if item["type"] == "mcp_call"]
        # A message that was whole when its turn was cut stays, as clients have got it; the turn is asked for again.
        once = [words for words, _ in groupby(said)]
        if once != [words_of(one.run, turn) for turn in range(len(STEPS) + 1)] or len(said) - len(once) >= one.attempt:
            yield f"it said {said}"
        if done != [result_of(one.run, step) for step in range(CALLS)]:
            yield f"it did {done}"
        if _retrieved(self._play, one.id) != body:
            yield "what is retrieved is not what the log says"

    # -- tool calls ----------------------------------------------------------------------------------------------------

    def _results(self) -> int:
        return sum(call.stored_at is not None for calls in self._calls.values() for call in calls)

    def _arrivals(self, one: Stored, step: int) -> list[float]:
        return self._play.partners.arrivals.get((one.run, step), [])

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

    def _misheard(self) -> list[str]:
        return [
            f"{self._by_id[response_id].run}: {numbers}"
            for response_id, numbers in self._play.course.heard.items()
            if numbers != list(range(len(self._by_id[response_id].events)))
        ]

    def _ledger(self) -> Iterator[Figure]:
        """A turn that counts has one row of its own. What else a model was asked for a turn may have left one, too:
        whoever loses a run accounts for what it has spent; but never are there more rows than questions."""
        rows, turns = _counts(self._play.stage.admin, _LEDGER), _counts(self._play.stage.admin, _TURNS)
        asked, faults = self._play.partners.asked, []
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
        yield Figure(name="ledger rows beyond them, of turns that were cut", value=rows.total() - turns.total())
        yield _faulty("turns without their row, or rows without a question", faults)


def _faulty(name: str, faults: Sequence[str]) -> Figure:
    return Figure(name=name, value=len(faults), faults=faults)


def _each(runs: Sequence[Stored], judge: Callable[[Stored], Iterator[str]]) -> list[str]:
    return [f"{one.run} ({one.id}): {'; '.join(faults)}" for one in runs if (faults := list(judge(one)))]


def log_faults(one: Stored) -> Iterator[str]:
    """Numbers without gap or duplicate, in the rows and in the events; what is to be told once is told once."""
    ends = [0, *(last + 1 for _, last, _ in one.batches)]
    if [first for first, _, _ in one.batches] != ends[:-1]:
        yield f"its batches are {[(first, last) for first, last, _ in one.batches]}"
    if [event["sequence_number"] for event in one.events] != list(range(ends[-1])):
        yield f"its events are {[event['sequence_number'] for event in one.events]}"
    told = [event["type"] for event in one.events]
    if [kind for kind in told if kind in _ONCE] != list(_ONCE) or tuple(told[:2]) != _ONCE[:2]:
        yield f"it begins with {told[:4]}"
    if [kind for kind in told if kind in _TERMINAL] != told[-1:] or not told:
        yield f"it ends with {told[-3:]}"
    for kind in ("response.output_item.added", "response.output_item.done"):
        places = [event["output_index"] for event in one.events if event["type"] == kind]
        if places != list(range(len(one.final["output"]))):
            yield f"{kind} came for {places}"


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _retrieved(play: Played, response_id: str) -> Mapping[str, Any]:
    url = f"{play.stage.url}/v1/responses/{response_id}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {play.stage.key}"})
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
