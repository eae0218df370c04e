"""What runs right now, for people who watch: the rows, and what the logs have told since somebody looked last.

Every look is a handful of statements over the partial indexes of running responses and the last pieces of their logs,
however many responses there are. A run's turns and calls are read again only when its log tells of more than deltas.
Runs inside of a scope: whose responses are read is row-level security's business.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any

import orjson
from django.db import connection

from kernel.row_security import EVERY_TEAM
from responses.models import RUNNING, Response, ToolCall, Turn

MOST_EXECUTED = 200
MOST_WAITING = 100
_MOST_COUNTED = 1000
_MOST_STEPS = 24
_MOST_STEPS_READ = 2000
_TAIL_BATCHES = 6
_TAIL_CHARACTERS = 6000
_PREVIEW = 160

_COLUMNS = (
    "id",
    "team_id",
    "created_at",
    "status",
    "mode",
    "background",
    "stored",
    "model",
    "turns",
    "tool_calls",
    "input_tokens",
    "output_tokens",
    "lease_owner",
    "lease_token",
    "lease_until",
    "attempt",
)
_IS_RUNNING = "status IN ('queued', 'in_progress')"
# The teams are found by stepping from one to the next in the index, as workers do that claim.
_TEAMS = f"""
    (SELECT team_id AS id FROM responses_response WHERE background AND {_IS_RUNNING} ORDER BY team_id LIMIT 1)
    UNION ALL
    SELECT (SELECT team_id FROM responses_response
            WHERE background AND {_IS_RUNNING} AND team_id > team.id ORDER BY team_id LIMIT 1)
    FROM team WHERE team.id IS NOT NULL
"""  # noqa: S608 - constants of ours
_WAITING = """
WITH RECURSIVE team(id) AS ({teams}),
waiting AS (
    SELECT next.id, next.created_at
    FROM team CROSS JOIN LATERAL (
        SELECT id, created_at FROM responses_response
        WHERE team_id = team.id AND background AND {is_running} AND lease_until IS NULL
        ORDER BY created_at LIMIT %(counted)s
    ) AS next
)
SELECT count(*) OVER (), id FROM waiting ORDER BY created_at LIMIT %(most)s
"""
_TAILS = """
SELECT run.id, batch.first_sequence, batch.last_sequence, batch.frames
FROM unnest(%s::text[], %s::integer[]) AS run(id, after)
CROSS JOIN LATERAL (
    SELECT first_sequence, last_sequence, right(frames, %s) AS frames FROM responses_eventbatch
    WHERE response_id = run.id AND first_sequence > run.after
    ORDER BY first_sequence DESC LIMIT %s
) AS batch
ORDER BY run.id, batch.first_sequence
"""
# What follows the first batch was written when a worker had begun.
_BEGUN = """
SELECT run.id, batch.created_at
FROM unnest(%s::text[]) AS run(id)
CROSS JOIN LATERAL (
    SELECT created_at FROM responses_eventbatch
    WHERE response_id = run.id AND first_sequence > 0
    ORDER BY first_sequence LIMIT 1
) AS batch
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A turn that has ended, or a tool call: what a run did. `ended_at` None: it is under way."""

    kind: str
    turn: int
    name: str
    state: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the log of a run has told so far."""

    last_event: int = -1
    words: str = ""
    has_news: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as it stands. `begun_at` is when a worker began with it; of one in the foreground, when it was made."""

    response: Response
    heard: Heard = field(default_factory=Heard)
    steps: Sequence[Step] = ()
    begun_at: datetime | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether nobody executes it: it has not begun, or was handed on."""
        return self.response.lease_until is None

    @property
    def calls_under_way(self) -> list[str]:
        """The tools that are being called."""
        return [step.name for step in self.steps if step.kind == "call" and step.state == "in_progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All that runs. `executed` and `waiting` are counted as far as a thousand, `rows` holds the first hundreds."""

    rows: Mapping[str, RunRow] = field(default_factory=dict)
    executed: int = 0
    waiting: int = 0
    oldest_waiting: datetime | None = None


def look(*, teams: Collection[str], before: Look | None = None) -> Look:
    """What runs now in these teams, or in every team; `before` is what the same reader saw last."""
    known = before.rows if before is not None else {}
    executed = _executed()
    counted, waiting = _waiting(teams)
    responses = {row.pk: row for row in [*executed[:MOST_EXECUTED], *waiting]}
    heard = _heard(responses.values(), known)
    begun = _begun(responses.values(), known)
    rows = {
        key: RunRow(
            response=response,
            heard=heard[key],
            steps=known[key].steps if key in known else (),
            begun_at=begun.get(key),
        )
        for key, response in responses.items()
    }
    stale = [key for key, row in rows.items() if _is_stale(row, known.get(key))]
    steps = _steps(stale)
    rows |= {key: replace(rows[key], steps=steps.get(key, ())) for key in stale}
    oldest = min((row.created_at for row in waiting), default=None)
    return Look(rows=rows, executed=len(executed), waiting=counted, oldest_waiting=oldest)


def queue() -> tuple[int, datetime | None]:
    """How many responses of every team wait for a worker, a thousand at most, and since when the first one does."""
    counted, waiting = _waiting([EVERY_TEAM])
    return counted, min((row.created_at for row in waiting), default=None)


def holders() -> list[str]:
    """The processes that hold leases, once for each run; a thousand at most."""
    rows = Response.objects.filter(status__in=RUNNING, lease_until__isnull=False, lease_owner__isnull=False)
    return [
        owner for owner in rows.order_by("lease_until").values_list("lease_owner", flat=True)[:_MOST_COUNTED] if owner
    ]


def endings(*, response_ids: Iterable[str]) -> dict[str, str]:
    """The states in which runs ended; those that were deleted are left out."""
    rows = Response.objects.filter(pk__in=[*response_ids], ended_at__isnull=False)
    return dict(rows.values_list("pk", "status"))


def _executed() -> list[Response]:
    """Those with a lease, beginning with the one that ran out first; a few columns of a thousand of them at most."""
    rows = Response.objects.only(*_COLUMNS).filter(status__in=RUNNING, lease_until__isnull=False)
    return list(rows.order_by("lease_until")[:_MOST_COUNTED])


def _waiting(teams: Collection[str]) -> tuple[int, list[Response]]:
    """How many wait for a worker, and those that have waited longest."""
    is_everybody = EVERY_TEAM in teams
    sql = _WAITING.format(teams=_TEAMS if is_everybody else "SELECT unnest(%(teams)s::text[])", is_running=_IS_RUNNING)
    parameters: dict[str, Any] = {"teams": [*teams], "most": MOST_WAITING, "counted": _MOST_COUNTED}
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        found = cursor.fetchall()
    if not found:
        return 0, []
    rows = Response.objects.only(*_COLUMNS).filter(pk__in=[key for _, key in found], status__in=RUNNING)
    return min(int(found[0][0]), _MOST_COUNTED), list(rows.order_by("created_at"))


# -- the logs ----------------------------------------------------------------------------------------------------------


def _heard(responses: Iterable[Response], known: Mapping[str, RunRow]) -> dict[str, Heard]:
    before = {row.pk: known[row.pk].heard if row.pk in known else Heard() for row in responses}
    found: dict[str, Heard] = {key: replace(heard, has_news=False) for key, heard in before.items()}
    with connection.cursor() as cursor:
        after = [heard.last_event for heard in before.values()]
        cursor.execute(_TAILS, [[*before], after, _TAIL_CHARACTERS, _TAIL_BATCHES])
        for key, batches in groupby(cursor.fetchall(), key=lambda batch: str(batch[0])):
            found[key] = _after(before[key], [(last, frames) for _, _, last, frames in batches])
    return found


def _after(heard: Heard, batches: Sequence[tuple[int, str]]) -> Heard:
    """What was heard with these pieces of the log behind it."""
    words, has_news = heard.words, False
    for _, frames in batches:
        for event in _events(frames):
            kind = event.get("type", "")
            if kind.endswith("output_text.delta"):
                words = (words + event["delta"])[-_PREVIEW:]
            elif not kind.endswith(".delta"):
                has_news = True
                words = "" if kind == "response.content_part.added" else words
    return Heard(last_event=batches[-1][0], words=words, has_news=has_news)


def _events(frames: str) -> Iterable[dict[str, Any]]:
    """The events of a piece of the log, whose beginning may be cut off."""
    for frame in frames.split("\n\n"):
        head, found, data = frame.partition("\ndata: ")
        if found and head.startswith("event: "):
            yield orjson.loads(data)


def _begun(responses: Iterable[Response], known: Mapping[str, RunRow]) -> dict[str, datetime]:
    found = {key: row.begun_at for key, row in known.items() if row.begun_at is not None}
    unknown = []
    for row in responses:
        if not row.background:
            found[row.pk] = row.created_at
        elif row.pk not in found and row.status == "in_progress":
            unknown.append(row.pk)
    if unknown:
        with connection.cursor() as cursor:
            cursor.execute(_BEGUN, [unknown])
            found |= dict(cursor.fetchall())
    return found


# -- turns and calls ---------------------------------------------------------------------------------------------------


def _is_stale(row: RunRow, before: RunRow | None) -> bool:
    """Whether its turns or calls may have changed."""
    if before is None or row.heard.has_news:
        return True
    new, old = row.response, before.response
    return (new.turns, new.tool_calls, new.lease_token) != (old.turns, old.tool_calls, old.lease_token)


def _steps(response_ids: Collection[str]) -> dict[str, list[Step]]:
    """The last turns and calls of each of these, in the order in which they began."""
    if not response_ids:
        return {}
    turns = Turn.objects.filter(response_id__in=response_ids).order_by("-number")[:_MOST_STEPS_READ]
    calls = ToolCall.objects.filter(response_id__in=response_ids).order_by("-turn", "-id")[:_MOST_STEPS_READ]
    found: dict[str, list[Step]] = {}
    for turn in turns.only("response_id", "number", "state", "started_at", "ended_at"):
        found.setdefault(turn.response_id, []).append(
            Step(
                kind="turn",
                turn=turn.number,
                name=f"turn {turn.number + 1}",
                state=turn.state,
                started_at=turn.started_at,
                ended_at=turn.ended_at,
            )
        )
    for call in calls.only("response_id", "turn", "name", "status", "started_at", "ended_at"):
        found.setdefault(call.response_id, []).append(
            Step(
                kind="call",
                turn=call.turn,
                name=call.name,
                state=call.status,
                started_at=call.started_at,
                ended_at=call.ended_at,
            )
        )
    return {
        key: sorted(steps, key=lambda step: (step.turn, step.kind == "call", step.started_at))[-_MOST_STEPS:]
        for key, steps in found.items()
    }
