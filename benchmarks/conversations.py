"""Cost of long conversations compared with short ones: `python -m benchmarks conversations [--check]`.

The same requests go alternately to compacted conversations of 10 and 10,000 items: a page of items, adding an item, and
a response, whose model reads only the compaction. The time of the mock upstream is subtracted.
"""

import itertools
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import Target
from benchmarks.matrix import PROMPT, SHORT
from benchmarks.stack import Client, running, tell

LIMIT = 3.0
SMALL, LARGE = 10, 10_000
# Requests add items, so they are spread over several small conversations, each of which stays small.
SMALL_ONES = 40
QUESTIONS = 4
AT_ONCE = 20
WARM_UP = 10

Call = Callable[[str], float]
"""Sends a request for a conversation and returns its duration in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kind of request with its median milliseconds. `apart` is the time of the mock, which is subtracted."""

    name: str
    small: float
    large: float
    apart: float = 0.0

    @property
    def ratio(self) -> float:
        """Time for the large conversation relative to the small one."""
        return (self.large - self.apart) / max(self.small - self.apart, 0.001)

    @property
    def holds(self) -> bool:
        """True if the ratio is below the limit."""
        return self.ratio < LIMIT


def items(count: int) -> Iterator[dict[str, Any]]:
    """Yield a few questions and many tool calls of an agent."""
    for _ in range(min(QUESTIONS, count)):
        yield {"type": "message", "role": "user", "content": PROMPT}
    for number in range((count - QUESTIONS) // 2):
        name = f"call_{number}"
        yield {"type": "function_call", "call_id": name, "name": "look", "arguments": '{"where": "everywhere"}'}
        yield {"type": "function_call_output", "call_id": name, "output": "There is nothing of interest here."}


def made(client: Client, count: int, *, compacts: bool = True) -> str:
    """Create a conversation with a number of items, and with a compaction item if `compacts`. Return its id."""
    conversation = str(client.ask("POST", "/conversations", {})[0]["id"])
    rest = items(count)
    while some := list(itertools.islice(rest, AT_ONCE)):
        client.ask("POST", f"/conversations/{conversation}/items", {"items": some})
    if compacts:
        body = {"model": SHORT, "conversation": conversation, "input": [{"type": "compaction_trigger"}]}
        client.ask("POST", "/responses", body)
    return conversation


def compared(name: str, call: Call, *, small: list[str], large: str, samples: int, apart: float = 0.0) -> Row:
    """Measure a request alternately on small and large conversations, after a warm-up."""
    times: dict[str, list[float]] = {"small": [], "large": []}
    for number in range(samples + WARM_UP):
        times["small"].append(call(small[number % len(small)]))
        times["large"].append(call(large))
    found = {size: median(each[WARM_UP:]) for size, each in times.items()}
    return Row(name=name, small=found["small"], large=found["large"], apart=apart)


def measured(platform: Target, mock: Target, *, samples: int) -> Iterator[Row]:
    """Measure all kinds of requests."""
    client, upstream = Client(platform), Client(mock)
    tell(f"making {SMALL_ONES} conversations of {SMALL} items and one of {LARGE:,}")
    small, large = [made(client, SMALL) for _ in range(SMALL_ONES)], made(client, LARGE)
    message = {"items": [{"type": "message", "role": "user", "content": PROMPT}]}
    chat = {"model": SHORT, "messages": [{"role": "user", "content": PROMPT}] * (QUESTIONS + 2)}
    apart = median(upstream.ask("POST", "/chat/completions", chat)[1] for _ in range(samples))
    compare = partial(compared, small=small, large=large, samples=samples)
    items_of = "/conversations/{}/items".format
    page = "/conversations/{}/items?limit=100&order={}".format
    yield compare("a page of 100, newest first", lambda one: client.ask("GET", page(one, "desc"))[1])
    yield compare("a page of 100, oldest first", lambda one: client.ask("GET", page(one, "asc"))[1])
    yield compare("adding an item", lambda one: client.ask("POST", items_of(one), message)[1])
    body = {"model": SHORT, "input": PROMPT}
    yield compare(
        "a response", lambda one: client.ask("POST", "/responses", {**body, "conversation": one})[1], apart=apart
    )


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Measure and print the table. With `--check`, return 1 if a ratio exceeds its limit."""
    parser = ArgumentParser(prog="python -m benchmarks conversations", description=__doc__)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a ratio is not below {LIMIT:g}")
    parser.add_argument("--samples", type=int, default=100, help="requests of each kind (default 100)")
    options = parser.parse_args(arguments)
    with running(directory=directory) as stack:
        rows = list(measured(stack.platform, stack.mock, samples=options.samples))
    print(f"{'':32}{f'{SMALL} items, ms':>16}{f'{LARGE:,} items, ms':>18}{'ratio':>8}")
    for row in rows:
        outcome = "holds" if row.holds else "MISSED"
        print(f"{row.name:32}{row.small:16.2f}{row.large:18.2f}{row.ratio:8.2f}  {outcome}")
    print(f"The ratio of responses is without the {rows[-1].apart:.2f} ms of the mock.")
    return 1 if options.check and not all(row.holds for row in rows) else 0
