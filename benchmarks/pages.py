"""Deep pages of long lists compared with first ones: `python -m benchmarks pages [--rows N] [--check]`.

A team has a million responses, conversations, files, usage records and lines of its audit log, and a conversation of a
million items. Each list is requested alternately at its beginning and at its end, in both orders; lists of the console
are requested by time, as their users reach old rows. `input_items` of a chain of 1,000 turns is compared with that of a
chain of 100 turns. With `--check` the exit code is 1 if a deep page takes more than twice the time of the first.
"""

import json
import os
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import django
import psycopg

from benchmarks.console.command import LOADING
from benchmarks.console.measurement import Browser, Subject
from benchmarks.console.organization import sign_in
from benchmarks.console.population import Table, load
from benchmarks.load import Target
from benchmarks.stack import Client, manage, running_servers, tell

LIMIT = 2.0
AGE = timedelta(days=20)
PAGE = 100
SHORT_CHAIN, LONG_CHAIN = 100, 1_000
SAMPLES, CONSOLE_SAMPLES, WARM_UP = 25, 8, 4
# A few rows share each time, as in a burst of requests.
_ROWS = """(
    SELECT i, '{team}'::text AS team_id, '{key}'::text AS api_key_id, md5('{kind}' || i) || '0000' AS name,
        '{start}'::timestamptz + (i / 3) * interval '3 ms' AS at
    FROM generate_series(1, {rows}) AS i
) AS rows"""
_MESSAGE = """('{"id":"msg_' || name || '","type":"message","role":"user","status":"completed",'
    '"content":[{"type":"input_text","text":"Where is the parcel, and when will it be here?"}]}')::json"""
_KEY = "md5(name)::uuid"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Median milliseconds of the first page of a list and of a deep one."""

    name: str
    first: float
    deep: float

    @property
    def ratio(self) -> float:
        """Time of the deep page relative to the first."""
        return self.deep / self.first


class Data:
    """The rows of a team with an API key, which are written by SQL."""

    def __init__(self, *, admin: str, team: str, key: str, rows: int) -> None:
        self.rows, self._admin, self._team, self._key = rows, admin, team, key
        self.oldest = datetime.now(UTC).replace(microsecond=0) - AGE
        self.conversation = f"conv_{'1':0>36}"

    def _source(self, kind: str, rows: int | None = None) -> str:
        values = {"team": self._team, "key": self._key, "start": self.oldest, "kind": kind}
        return _ROWS.format(rows=self.rows if rows is None else rows, **values)

    def write(self) -> None:
        """Write all rows."""
        from conversations.models import Conversation, File, Item, Placement
        from responses.models import Response
        from tenants.models import AuditEvent, UsageRecord

        owner = {"team_id": "team_id", "api_key_id": "api_key_id", "created_at": "at"}
        response = {
            **owner,
            "status": "'completed'",
            "mode": "'json'",
            "model": "'mock'",
            "upstream_model": "'mock'",
            "completed_at": "at",
            "ended_at": "at",
            "parameters": """'{"object": "response", "metadata": {}}'::json""",
            "options": """'{"include": []}'::json""",
        }
        item = {**owner, "key": _KEY, "id": "'msg_' || name", "type": "'message'", "body": _MESSAGE}
        place = {"team_id": "team_id", "item_id": _KEY}
        file = {
            **owner,
            "id": "'file-' || name",
            "filename": "'a.txt'",
            "purpose": "'user_data'",
            "content_type": "'text/plain'",
            "size": "1",
            "sha256": "'0'",
            "state": "'ready'",
        }
        usage = {
            "team_id": "team_id",
            "api_key_id": "api_key_id",
            "occurred_at": "at",
            "endpoint": "'responses'",
            "object_id": "'resp_' || name",
            "model": "'mock'",
            "outcome": "'completed'",
        }
        audit = {
            "team_id": "team_id",
            "occurred_at": "at",
            "actor": "'key:' || api_key_id",
            "action": "'response.deleted'",
            "target": "'resp_' || name",
        }
        conversation = {"id": f"'{self.conversation}'", **owner, "next_position": str(self.rows)}
        in_conversation = {"owner": f"'{self.conversation}'", "section": "'items'", "position": "i - 1"}
        groups = [
            [
                Table(model=Response, columns={"id": "'resp_' || name", **response}, source=self._source("r")),
                Table(model=AuditEvent, columns=audit, source=self._source("r")),
            ],
            [
                Table(model=Conversation, columns={"id": "'conv_' || name", **owner}, source=self._source("c")),
                Table(model=Conversation, columns=conversation, source=self._source("c", 1)),
                Table(model=Item, columns=item, source=self._source("i")),
                Table(model=Placement, columns={**place, **in_conversation}, source=self._source("i")),
                Table(model=File, columns=file, source=self._source("f")),
                Table(model=UsageRecord, columns=usage, source=self._source("u")),
            ],
        ]
        for turns in (SHORT_CHAIN, LONG_CHAIN):
            chain, parts = self._source(f"chain {turns}", turns), self._source(f"parts {turns}", 2 * turns)
            links = {
                "id": self._turn(turns, "i"),
                "previous_response_id": f"CASE WHEN i > 1 THEN {self._turn(turns, 'i - 1')} END",
            }
            sides = {
                "owner": self._turn(turns, "(i + 1) / 2"),
                "section": "CASE i % 2 WHEN 1 THEN 'input' ELSE 'output' END",
                "position": "0",
            }
            groups[0].append(Table(model=Response, columns={**response, **links}, source=chain))
            groups[1].append(Table(model=Item, columns=item, source=parts))
            groups[1].append(Table(model=Placement, columns={**place, **sides}, source=parts))
        load(admin=self._admin, groups=groups)

    @staticmethod
    def _turn(turns: int, number: str) -> str:
        return f"'resp_{turns:010}' || lpad(({number})::text, 26, '0')"

    def last_of_chain(self, turns: int) -> str:
        """Return the id of the last response of a chain."""
        return f"resp_{turns:010}{turns:026}"

    def cursor(self, table: str, *, order: str) -> str:
        """Return the id of the row that precedes the last page of a list."""
        listed = f"FROM {table} ORDER BY created_at {order}, id {order} OFFSET {self.rows - PAGE - 1} LIMIT 1"
        return self._value(f"SELECT id {listed}")

    def item(self, *, order: str) -> str:
        """Return the id of the item that precedes the last page of the conversation."""
        position = PAGE if order == "desc" else self.rows - PAGE - 1
        places = f"conversations_placement WHERE owner = '{self.conversation}' AND position = {position}"
        return self._value(f"SELECT id FROM conversations_item WHERE key = (SELECT item_id FROM {places})")

    def _value(self, query: str) -> str:
        with psycopg.connect(self._admin) as connection:
            (value,) = connection.execute(query.encode()).fetchone() or ("",)
        return str(value)


def lists(data: Data) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each list of the API, with the paths of its first page and of a deep one."""
    tables = {
        "responses": "responses_response",
        "conversations": "conversations_conversation",
        "files": "conversations_file",
    }
    for order in ("desc", "asc"):
        for name, table in tables.items():
            path = f"/{name}?limit={PAGE}&order={order}"
            yield f"{name}, {order}", path, f"{path}&after={data.cursor(table, order=order)}"
        path = f"/conversations/{data.conversation}/items?limit={PAGE}&order={order}"
        yield f"items of a conversation, {order}", path, f"{path}&after={data.item(order=order)}"
        short, long = (
            f"/responses/{data.last_of_chain(turns)}/input_items?limit={PAGE}&order={order}"
            for turns in (SHORT_CHAIN, LONG_CHAIN)
        )
        yield f"input items of turn {LONG_CHAIN:,}, {order}", short, long


def console_lists(data: Data) -> Iterator[tuple[str, str, str]]:
    """Yield the same for the lists of the console: the newest rows of 30 days, and the oldest."""
    for name, path, column in (
        ("responses", "responses/response", "created_at"),
        ("conversations", "conversations/conversation", "created_at"),
        ("usage", "tenants/usagerecord", "occurred_at"),
        ("audit log", "tenants/auditevent", "occurred_at"),
    ):
        # The first second, which has a thousand rows.
        ends = {"from": data.oldest, "to": data.oldest + timedelta(seconds=1)}
        query = {f"{column}_{end}_0": f"{at:%Y-%m-%d}" for end, at in ends.items()}
        query |= {f"{column}_{end}_1": f"{at:%H:%M:%S}" for end, at in ends.items()}
        yield f"console: {name}", f"/admin/{path}/?period=30d", f"/admin/{path}/?{urlencode(query)}"


def measured(platform: Target, browser: Browser, data: Data) -> Iterator[Row]:
    """Measure all lists, first and deep pages alternately, after a warm-up."""
    client = Client(platform)
    for name, first, deep in lists(data):
        times = [[client.ask("GET", path)[1] for path in (first, deep)] for _ in range(WARM_UP + SAMPLES)]
        yield _row(name, times)
    for name, first, deep in console_lists(data):
        times = [[browser.get(path)[1] for path in (first, deep)] for _ in range(WARM_UP + CONSOLE_SAMPLES)]
        yield _row(name, times)


def _row(name: str, times: Sequence[Sequence[float]]) -> Row:
    first, deep = (median(side) for side in zip(*times[WARM_UP:], strict=True))
    return Row(name=name, first=first, deep=deep)


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the table. With `--check`, return 1 if a deep page exceeds the limit."""
    parser = ArgumentParser(prog="python -m benchmarks pages", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of each list (default 1,000,000)")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a ratio is above {LIMIT:g}")
    options = parser.parse_args(arguments)
    with running_servers(directory, settings=LOADING) as servers:
        made = json.loads(manage(servers.environment, "create_key", "--team", "bench", "--json"))
        os.environ.update(servers.environment, DJANGO_SETTINGS_MODULE="server.settings")
        django.setup()
        data = Data(admin=servers.admin, team=made["team"], key=made["key_id"], rows=options.rows)
        tell(f"writing {options.rows:,} rows of each list")
        data.write()
        platform = servers.start_web(key=made["key"])
        headers = {"Cookie": sign_in("administrator")["administrator"]}
        browser = Browser(Subject(web=platform, admin=servers.admin), headers=headers, who="administrator")
        rows = list(measured(platform, browser, data))
    deepest = f"at row {options.rows:,}, ms"
    print(f"{'':36}{'first page, ms':>16}{deepest:>24}{'ratio':>8}")
    for row in rows:
        outcome = "holds" if row.ratio <= LIMIT else "MISSED"
        print(f"{row.name:36}{row.first:16.2f}{row.deep:24.2f}{row.ratio:8.2f}  {outcome}")
    return 1 if options.check and any(row.ratio > LIMIT for row in rows) else 0
