"""Stored histories compared with the same histories in a request: `python -m benchmarks long-histories [--check]`.

Responses that continue a chain of 1,000 turns, or a conversation of 5,000 items, alternate with responses that get the
same items in their input with `store: false`, one request at a time.
"""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conversations import items, made
from benchmarks.load import Target, cpu_seconds
from benchmarks.matrix import MOCK_ANSWER_OF_FOUR_TOKENS, PROMPT, SHORT
from benchmarks.stack import Client, running, tell

MOST_MORE_MS = 5.0
WARM_UP = 5
QUESTION = {"role": "user", "content": PROMPT}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Median milliseconds of a request, and mean milliseconds of CPU of the web process."""

    wall: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """Cost of a response that continues a stored history, and of one that gets the history in its input."""

    name: str
    stored: Cost
    inline: Cost

    @property
    def more(self) -> float:
        """Additional milliseconds of the stored history."""
        return self.stored.wall - self.inline.wall


def measured(platform: Target, *, turns: int, count: int, samples: int) -> Iterator[Row]:
    """Create and measure both histories."""
    client = Client(platform)
    tell(f"making a chain of {turns:,} turns")
    last: dict[str, Any] = {}
    for _ in range(turns):
        made_response, _ = client.ask("POST", "/responses", {"model": SHORT, "input": PROMPT, **last})
        last = {"previous_response_id": made_response["id"]}
    turn = [QUESTION, {"role": "assistant", "content": MOCK_ANSWER_OF_FOUR_TOKENS}]
    yield _row(platform, f"a chain of {turns:,} turns", last, [*turn * turns, QUESTION], samples)
    tell(f"making a conversation of {count:,} items")
    # A new client, because the connection of the first one has been idle for too long by now.
    conversation = {"conversation": made(Client(platform), count, compacts=False)}
    yield _row(platform, f"a conversation of {count:,} items", conversation, [*items(count), QUESTION], samples)


def _row(platform: Target, name: str, continued: dict[str, Any], inline: list[dict[str, Any]], samples: int) -> Row:
    client = Client(platform)
    bodies = [{"input": PROMPT, **continued}, {"input": inline, "store": False}]
    wall: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    for _ in range(WARM_UP + samples):
        for side, body in enumerate(bodies):
            before = cpu_seconds(platform.pid)
            wall[side].append(client.ask("POST", "/responses", {"model": SHORT, **body})[1])
            cpu[side].append(1000 * (cpu_seconds(platform.pid) - before))
    # The CPU time of a process has a resolution of 10 ms, so only the mean of many requests is meaningful.
    stored, sent = (
        Cost(wall=median(wall[side][WARM_UP:]), cpu=sum(cpu[side][WARM_UP:]) / samples) for side in range(2)
    )
    return Row(name=name, stored=stored, inline=sent)


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the table. With `--check`, return 1 if a stored history exceeds the limit."""
    parser = ArgumentParser(prog="python -m benchmarks long-histories", description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if it takes {MOST_MORE_MS:g} ms more")
    parser.add_argument("--turns", type=int, default=1_000, help="turns of the chain (default 1,000)")
    parser.add_argument("--items", type=int, default=5_000, help="items of the conversation (default 5,000)")
    parser.add_argument("--samples", type=int, default=40, help="requests of each kind (default 40)")
    options = parser.parse_args(arguments)
    with running(directory=directory) as stack:
        rows = list(measured(stack.platform, turns=options.turns, count=options.items, samples=options.samples))
    print(f"{'':34}{'stored, ms':>12}{'CPU ms':>9}{'inline, ms':>12}{'CPU ms':>9}{'more, ms':>10}")
    for row in rows:
        figures = f"{row.stored.wall:12.1f}{row.stored.cpu:9.1f}{row.inline.wall:12.1f}{row.inline.cpu:9.1f}"
        print(f"{row.name:34}{figures}{row.more:10.1f}  {'holds' if row.more <= MOST_MORE_MS else 'MISSED'}")
    return 1 if options.check and any(row.more > MOST_MORE_MS for row in rows) else 0
