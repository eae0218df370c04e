"""`python -m benchmarks books`: random runs against an upstream that keeps its own books."""

import asyncio
import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.books.audit import Comparison, compare, is_settled
from benchmarks.books.driver import Plan, driven, until
from benchmarks.books.upstream import (
    EMBEDDING_PRICE,
    IMAGE_PRICES,
    LONG_CONTEXT,
    PRICES,
    SEARCH_PRICE,
    SPEECH_PRICE,
    TRANSCRIPTION_PRICES,
)
from benchmarks.stack import manage, tell

_DIMENSIONS = ("input", "cached_input", "cache_write", "output")
_SET_PRICES = """
import json
from decimal import Decimal
from tenants import services
from tenants.models import Model, Upstream
from tenants.prices import PriceEntry
for name, entries in json.loads('''{prices}''').items():
    model, _ = Model.objects.get_or_create(name=name, upstream=Upstream.objects.get(name="mock"))
    services.set_prices(model, [PriceEntry(**{**entry, "amount": Decimal(entry["amount"])}) for entry in entries])
"""
_ROLL_UP = """
from datetime import timedelta
from core.clock import now
from responses.rollups import aggregate
while aggregate.roll_up(at=now() + timedelta(hours=2)).more:
    pass
"""


def main(arguments: Sequence[str], *, directory: Path) -> int:
    """Run and compare. Return 1 with --check if there are faults."""
    parser = ArgumentParser(prog="python -m benchmarks books")
    parser.add_argument("--runs", type=int, default=10_000, help="random runs (default: 10,000)")
    parser.add_argument("--batch-lines", type=int, default=0, metavar="N", help="lines of a batch beside the runs")
    parser.add_argument("--clients", type=int, default=8, help="runs at a time (default: 8)")
    parser.add_argument("--kill-workers-every", type=float, metavar="S", help="seconds between killed workers")
    parser.add_argument("--kill-webs-every", type=float, metavar="S", help="seconds between killed web processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 if there are faults")
    options = parser.parse_args(arguments)
    plan = Plan(
        runs=options.runs,
        batch_lines=options.batch_lines,
        clients=options.clients,
        seed=options.seed,
        kill_workers_every=options.kill_workers_every,
        kill_webs_every=options.kill_webs_every,
    )
    result = asyncio.run(compared(plan, directory=directory, log=tell))
    print(result.text())
    return 1 if options.check and result.faults else 0


async def compared(plan: Plan, *, directory: Path, log: Callable[[str], None] = lambda _: None) -> Comparison:
    """Execute the plan, wait until nothing is open, and compare the books."""
    async with driven(
        plan, directory=directory, configure=lambda deployment: set_prices(deployment.servers.environment), log=log
    ) as books:
        admin, environment = books.deployment.servers.admin, books.deployment.servers.environment
        log("waiting for open runs and calls")
        await until(partial(is_settled, admin), seconds=900)
        await asyncio.to_thread(roll_up, environment)
        result = await asyncio.to_thread(
            compare, admin=admin, upstream=books.upstream, observed=books.runs, killed=books.deployment.killed
        )
    result.figures["lines of the batch"] = plan.batch_lines
    result.faults += books.batch_faults
    return result


def roll_up(environment: Mapping[str, str]) -> None:
    """Write the hourly sums of all usage records."""
    manage(environment, "shell", "-v", "0", "-c", _ROLL_UP)


def set_prices(environment: Mapping[str, str]) -> None:
    """Set the upstream's prices."""
    chat = [
        {
            "dimension": dimension,
            "amount": amount,
            "service_tier": "" if tier == "default" else tier,
            "above_tokens": LONG_CONTEXT if is_long else 0,
        }
        for tier, rows in PRICES.items()
        for is_long, amounts in enumerate(rows)
        for dimension, amount in zip(_DIMENSIONS, amounts, strict=True)
    ]
    drawn = [
        {"dimension": name, "amount": amount} for name, amount in zip(("input", "output"), IMAGE_PRICES, strict=True)
    ]
    chat.append({"dimension": "tool_call", "amount": SEARCH_PRICE, "per": 1, "tool": "web_search"})
    heard = [
        {"dimension": "input", "amount": TRANSCRIPTION_PRICES[0]},
        {"dimension": "output", "amount": TRANSCRIPTION_PRICES[1]},
        {"dimension": "audio_second", "amount": TRANSCRIPTION_PRICES[2], "per": 1},
    ]
    prices = {
        "m": chat,
        "e": [{"dimension": "input", "amount": EMBEDDING_PRICE}],
        "i": drawn,
        "s": [{"dimension": "character", "amount": SPEECH_PRICE}],
        "t": heard,
    }
    code = _SET_PRICES.replace("{prices}", json.dumps(prices))
    manage(environment, "shell", "-v", "0", "-c", code)
