"""Measurement of the cells in rounds. Targets alternate, so that a drift of the machine affects all of them equally."""

import json
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from benchmarks.cells import PROMPT, SHORT, Cell
from benchmarks.load import Measurement, Target, measure
from benchmarks.rows import Asked
from benchmarks.stack import Stack
from benchmarks.statements import Statements


class Result(BaseModel):
    """Results of a cell for a target: medians and individual rounds."""

    model_config = ConfigDict(frozen=True)

    cell: str
    target: str
    median: Measurement
    rounds: list[Measurement]


Results = dict[tuple[str, str], Result]
"""Results by names of cell and target."""


@dataclass(kw_only=True)
class Session:
    """Measurements on one stack, with the total number of requests to the platform."""

    stack: Stack
    tell: Callable[[str], None]
    asked: Asked = field(default_factory=Asked)
    _chains: dict[int, str] = field(default_factory=dict)

    def measure_all(self, cells: Sequence[Cell], *, rounds: int) -> Results:
        measured: defaultdict[tuple[str, str], list[Measurement]] = defaultdict(list)
        for number in range(1, rounds + 1):
            for cell in cells:
                self.tell(f"round {number} of {rounds}: {cell.name}")
                for target in self.stack.targets:
                    if target.name in cell.targets:
                        measured[cell.name, target.name].append(self.measure(cell, target))
        return {
            (cell, target): Result(cell=cell, target=target, median=Measurement.of_rounds(each), rounds=each)
            for (cell, target), each in measured.items()
        }

    def measure(self, cell: Cell, target: Target) -> Measurement:
        if target is not self.stack.platform:
            body = cell.body(api=target.api, previous=None)
            return measure(target, body=body, pace=cell.pace, bystanders=self._bystanders(target))
        previous = self._chain(cell.history) if cell.history and not cell.inline else None
        before = Statements.so_far(admin=self.stack.admin)
        body = cell.body(api=target.api, previous=previous)
        measurement = measure(target, body=body, pace=cell.pace, bystanders=self._bystanders(target))
        self.asked = self.asked.plus(cell, measurement)
        return _with_statements(measurement, Statements.so_far(admin=self.stack.admin).since(before))

    def _bystanders(self, target: Target) -> list[int]:
        return [other.pid for other in self.stack.targets if other is not target]

    def _chain(self, turns: int) -> str:
        """Return the id of the last response of a chain with a number of turns, created at its first use."""
        if turns not in self._chains:
            self.tell(f"making a chain of {turns} turns")
            last = None
            for _ in range(turns):
                last = _respond(self.stack.platform, previous=last)
            self._chains[turns] = last or ""
            self.asked = Asked(stored=self.asked.stored + turns, unstored=self.asked.unstored, failed=self.asked.failed)
        return self._chains[turns]


def _with_statements(measurement: Measurement, statements: Statements) -> Measurement:
    requests = max(1, measurement.started)
    return measurement.model_copy(
        update={
            "statements_per_request": statements.calls / requests,
            "rows_per_request": statements.rows / requests,
        }
    )


def _respond(platform: Target, *, previous: str | None) -> str:
    """Create a stored response after another one and return its id."""
    body = {"model": SHORT, "input": PROMPT, **({"previous_response_id": previous} if previous else {})}
    headers = dict(header.split(": ", 1) for header in platform.headers)
    request = urllib.request.Request(
        f"{platform.url}/v1/responses",
        data=json.dumps(body).encode(),
        headers={**headers, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["id"])
