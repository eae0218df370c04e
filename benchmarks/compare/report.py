"""The tables of a comparison."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks import published
from benchmarks.compare.measurements import KINDS, LARGE, PER_CORE, PLATFORM, figure, rate_under

TITLES = {
    "proxy": "bare pass-through, nothing parsed or stored",
    PLATFORM: "**this platform**",
    PER_CORE: "**this platform**, a process per core",
}
P99_LIMITS_MS = (1, 5, 10, 50, 100)


def servers(content: Mapping[str, Any]) -> list[str]:
    """Return the names of the servers in the order of the tables."""
    return list(dict.fromkeys(result["server"] for result in content["results"]))


def _title(content: Mapping[str, Any], server: str) -> str:
    version = content["versions"].get(server.split(",", maxsplit=1)[0], "")
    return TITLES.get(server) or f"{server.replace(',', f' {version},') if ',' in server else f'{server} {version}'}"


def summary(content: Mapping[str, Any]) -> str:
    """Return the table of docs/concepts/comparison.md: rates at 64 connections and their cost."""
    cell, number = partial(figure, content), published.number
    rows = [
        [
            _title(content, server),
            number(cell("stream", 64, server, "per_second")),
            number(cell("stream", 64, server, "cpu_ms_per_request")),
            number(cell("stream", 1, server, "first_event_ms", "p50")),
            number(cell("json", 64, server, "per_second")),
            number(cell("json", 64, server, "cpu_ms_per_request")),
            number(cell("json", 64, server, "resident_mb")),
        ]
        for server in servers(content)
    ]
    head = ["", "streams/s", "CPU ms", "first event ms", "JSON/s", "CPU ms", "MB"]
    return published.table(head, rows) + "\n\n" + _conditions(content)


def _conditions(content: Mapping[str, Any]) -> str:
    at, rounds = content["conditions"], content["rounds"]
    measured = "one round" if rounds == 1 else f"medians of {rounds} interleaved rounds"
    processes = "one server process" + (", unless the row says otherwise" if PER_CORE in servers(content) else "")
    # Results of earlier versions name no build.
    text = (
        f"64 tokens per response, 64 connections (first event: one connection, p50), {processes}, {at['cores']} "
        f"cores shared with upstream, driver and database, {at.get('interpreter') or 'Python ' + at['python']}, "
        f"{at['date']}, {measured}. This platform stores everything in PostgreSQL."
    )
    others = "".join(f" {name} runs on {build}." for name, build in content.get("interpreters", {}).items())
    return text + others + "".join(f" Not measured: {reason}" for reason in content["missing"])


def detailed(content: Mapping[str, Any]) -> str:
    """Return tables of both kinds with all latencies, of the ladder and of large prompts."""
    parts = []
    for kind, title in (("stream", "Streams"), ("json", "JSON")):
        rows = []
        for connections in _connections(content, kind):
            for server in servers(content):
                cell = partial(figure, content, kind, connections, server)
                latencies = [published.number(cell("total_ms", quantile)) for quantile in ("p50", "p95", "p99")]
                first = [published.number(cell("first_event_ms", "p50"))] if kind == "stream" else []
                cost = [published.number(cell(name)) for name in ("cpu_ms_per_request", "resident_mb")]
                cost.append(f"{cell('failed') or 0:.0f}")
                rate = published.number(cell("per_second"))
                rows.append([str(connections), _title(content, server), rate, *latencies, *first, *cost])
        first = ["first event p50"] if kind == "stream" else []
        head = [
            "connections",
            f"{title}: server",
            "per second",
            "p50 ms",
            "p95",
            "p99",
            *first,
            "CPU ms",
            "MB",
            "failed",
        ]
        parts.append(published.table(head, rows))
    # Results of earlier versions have neither.
    if "ladder" in content:
        parts.append(_ladder(content))
    if _connections(content, LARGE):
        parts.append(_large_prompts(content))
    return "\n\n".join([*parts, _conditions(content)])


def _connections(content: Mapping[str, Any], kind: str) -> list[int]:
    return list(dict.fromkeys(result["connections"] for result in content["results"] if result["kind"] == kind))


def _ladder(content: Mapping[str, Any]) -> str:
    rows = [
        [_title(content, server)]
        + [
            published.number(rate_under(content, kind, server, p99_ms=limit))
            for kind in KINDS
            for limit in P99_LIMITS_MS
        ]
        for server in servers(content)
    ]
    limits = [f"{limit} ms" for limit in P99_LIMITS_MS]
    head = [
        "Requests per second while p99 is under",
        *(f"streams: {limits[0]}", *limits[1:]),
        *(f"JSON: {limits[0]}", *limits[1:]),
    ]
    return published.table(head, rows)


def _large_prompts(content: Mapping[str, Any]) -> str:
    rows = []
    for connections in _connections(content, LARGE):
        for server in servers(content):
            cell = partial(figure, content, LARGE, connections, server)
            cpu_ms = cell("cpu_ms_per_request")
            figures = (cell("per_second"), 1000 / cpu_ms if cpu_ms else None, cell("first_event_ms", "p50"))
            rows.append([str(connections), _title(content, server), *map(published.number, figures)])
    head = ["connections", "Prompts of 200 KB: server", "per second", "per second and core", "first event p50"]
    return published.table(head, rows)


VIEWS = {"summary": summary, "detailed": detailed}
