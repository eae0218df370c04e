"""Named values of two responses: request parameters, figures and the times of the kinds of work."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console.widgets import duration
from core.clock import now
from core.errors import ApiError
from responses.admin import cells
from responses.admin.compare.excerpts import Excerpt, beginning, differences
from responses.admin.response.documents import request_parameters
from responses.admin.response.timeline import overview, waterfall_of, work_totals
from responses.models import Response
from tenants.prices import amount

MAX_PARAMETERS = 200
_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """A value of both responses. `difference` is its change in words; empty for equal values."""

    name: str
    left: Excerpt
    right: Excerpt
    difference: str = ""


def _row(name: str, left: str, right: str, difference: str = "different") -> ValueRow:
    if left == right:
        return ValueRow(name=name, left=beginning(left), right=beginning(right))
    first, second = differences(left, right)
    return ValueRow(name=name, left=first, right=second, difference=difference)


# -- request parameters ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of both requests. `problem` says why they are not available."""

    different: Sequence[ValueRow] = ()
    same: Sequence[ValueRow] = ()
    left_out: int = 0
    problem: str = ""


def compare_parameters(left: Response, right: Response) -> Parameters:
    """Return the parameters of both requests without the input, secrets redacted."""
    try:
        flat = [dict(_flat("", request_parameters(response), _DEPTH)) for response in (left, right)]
    except ApiError as failed:
        return Parameters(problem=failed.message)
    names = list(dict.fromkeys([*flat[0], *flat[1]]))
    rows = []
    for name in names:
        values = flat[0].get(name), flat[1].get(name)
        texts = ["not set" if value is None else value for value in values]
        only = "only in B" if values[0] is None else "only in A" if values[1] is None else "different"
        rows.append(_row(name, texts[0], texts[1], only))
    different = [row for row in rows if row.difference]
    same = [row for row in rows if not row.difference]
    left_out = max(0, len(different) - MAX_PARAMETERS) + max(0, len(same) - MAX_PARAMETERS)
    return Parameters(different=different[:MAX_PARAMETERS], same=same[:MAX_PARAMETERS], left_out=left_out)


def _flat(path: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of values; objects are taken apart, tools are named by type and name."""
    match value:
        # The parameters themselves have no path, also if there are none.
        case dict() if (value or not path) and depth:
            for name, inner in value.items():
                yield from _flat(f"{path}.{name}" if path else str(name), inner, depth - 1)
        case [*entries] if entries and depth and all(isinstance(entry, dict) for entry in entries):
            for number, entry in enumerate(entries, 1):
                name = entry.get("name") or entry.get("server_label") or entry.get("type") or number
                yield f"{path}[{name}]", _json(entry)
        case str():
            yield path, value
        case _:
            yield path, _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# -- figures -----------------------------------------------------------------------------------------------------------

_FACTS: Sequence[tuple[str, Callable[[Response], str]]] = (
    ("Status", lambda row: cells.status_and_tone(row)[0]),
    ("Error", lambda row: cells.error_or_reason(row) or "–"),
    ("Model", lambda row: row.model),
    ("Upstream model", lambda row: row.upstream_model),
    ("Upstream", lambda row: row.upstream_id),
    ("Mode", cells.mode),
    ("Service tier", lambda row: row.service_tier or "–"),
    ("API key", lambda row: row.api_key.name),
    ("End user", lambda row: row.end_user or "–"),
)
_TIMES = (("Duration", "duration_ms"), ("Time to first token", "first_token_ms"))
_COUNTS = (
    ("Turns", "turns"),
    ("Tool calls", "tool_calls"),
    ("Input tokens", "input_tokens"),
    ("Cached tokens", "cached_tokens"),
    ("Output tokens", "output_tokens"),
    ("Reasoning tokens", "reasoning_tokens"),
)


def compare_facts(left: Response, right: Response) -> list[ValueRow]:
    """Return the values that name the run: status, error, model, mode, key."""
    return [_row(name, read(left), read(right)) for name, read in _FACTS]


def compare_figures(left: Response, right: Response) -> list[ValueRow]:
    """Return time, tokens and cost of both runs, with their change from A to B."""
    rows = [_number(name, getattr(left, field), getattr(right, field), duration) for name, field in _TIMES]
    rows += [_number(name, getattr(left, field), getattr(right, field), "{:,}".format) for name, field in _COUNTS]
    costs = [None if row.cost is None else float(row.cost) for row in (left, right)]
    shown = [cells.cost(row) if row.cost is None else amount(row.cost) for row in (left, right)]
    return [*rows, _row("Cost", shown[0], shown[1], _change(*costs) or "different")]


def _number(name: str, left: float | None, right: float | None, form: Callable[[Any], str]) -> ValueRow:
    texts = ["–" if value is None else form(value) for value in (left, right)]
    first, second = map(beginning, texts)
    difference = "" if left == right else _change(left, right) or "different"
    return ValueRow(name=name, left=first, right=second, difference=difference)


def _change(left: float | None, right: float | None) -> str:
    """Return the change in percent; as a factor if it is large; empty if it has none."""
    if not left or right is None:
        return ""
    factor = right / left
    if factor >= 10:
        return f"{factor:,.0f} times"
    # Without the decimal, a change to almost nothing would be -100 %.
    return f"{100 * (factor - 1):+.{1 if factor < 0.05 else 0}f} %"


# -- timeline ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Small drawing of a run. `width` is its share of the longer run."""

    name: str
    length: str
    width: str
    drawing: dict[str, Any]


def compare_timelines(left: Response, right: Response) -> tuple[list[Lane], list[ValueRow]]:
    """Return the drawings of both runs on a common scale, and the times of each kind of work."""
    present: datetime = now()
    charts = [waterfall_of(response, present=present) for response in (left, right)]
    longest = max(chart.scale for chart in charts)
    lanes = [
        Lane(
            name=name,
            length=duration(round(chart.run)),
            width=f"{100 * chart.scale / longest:.2f}%",
            drawing=overview(chart),
        )
        for name, chart in zip("AB", charts, strict=True)
    ]
    totals = [{total.label: round(total.length) for total in work_totals(chart)} for chart in charts]
    for total, chart in zip(totals, charts, strict=True):
        total["Overhead"] = round(chart.overhead)
    names = dict.fromkeys([*totals[0], *totals[1]])
    return lanes, [_number(name, totals[0].get(name, 0), totals[1].get(name, 0), duration) for name in names]
