"""Calls of every kind under one hard budget, for `limit-races`: chats, images, audio, embeddings and the others.

The upstream bills the most that each request allows. The sum of its bills, at the list prices, must stay within the
budget.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import aiohttp
import django_stubs_ext
import psycopg

# Classes of model fields have type parameters in the source, which need this patch. Benchmarks do not load the
# settings, which apply it otherwise.
django_stubs_ext.monkeypatch()

from tests.support.maximum_bills import PNG, Bill, Call, random_call  # noqa: E402 - see above

CLIENTS = 12
# Adds the model of a run, with declared maxima and all prices.
_PREPARE = """
from tenants import scope, services
from tenants.models import Model
from tests.support.maximum_bills import DECLARED, PRICES
with scope.every_team():
    services.add_upstream(name="{model}", base_url="{url}", models=["{model}"])
    Model.objects.filter(name="{model}").update(inline_images=False, **DECLARED)
    services.set_prices(Model.objects.get(name="{model}"), PRICES)
"""
_ANSWER_SECONDS = 150.0
_RELEASE_SECONDS = 240.0
# Statuses of calls that were served, refused for the budget, or refused while the limits are unknown; the Messages API
# uses 529 for this.
_EXPECTED = {200, 429, 503, 529}


@dataclass(kw_only=True)
class Kinds:
    """The budget of one run, the bills of its upstream, and the answers to its calls."""

    seed: int
    budget: Decimal
    billed: list[Bill]
    answers: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def model(self) -> str:
        """Return the name of the model of this run."""
        return f"every-kind-{self.seed}"

    @property
    def cost(self) -> Decimal:
        """Return the sum of all bills in dollars."""
        return sum((bill.cost for bill in self.billed), Decimal(0))

    def summary(self) -> dict[str, Any]:
        """Return the figures for the report."""
        return {
            "every kind": f"${self.cost:.4f} of ${self.budget}, {len(self.billed)} bills",
            "answers of every kind": dict(self.answers),
        }

    def check(self) -> None:
        """Compare the bills of the upstream with the budget."""
        if self.cost > self.budget:
            self.violations.append(f"bills of ${self.cost} for every kind of call, the budget is ${self.budget}")


def prepare(kinds: Kinds, url: str) -> str:
    """Return the code that adds the model of a run, whose upstream has this URL, for `manage.py shell`."""
    return _PREPARE.format(model=kinds.model, url=url)


def _choices(chosen: random.Random, model: str) -> Call:
    """Many choices without a maximum of output."""
    message = {"role": "user", "content": "word " * chosen.randint(1, 60)}
    return Call(path="/chat/completions", body={"model": model, "messages": [message], "n": chosen.choice([2, 8, 128])})


def _embeddings(chosen: random.Random, model: str) -> Call:
    inputs: list[Any] = [
        "word",
        ["word", "é" * chosen.randint(1, 90)],
        [1, 2, 3],
        [[1, 2], [3] * chosen.randint(1, 90)],
    ]
    return Call(path="/embeddings", body={"model": model, "input": chosen.choice(inputs)})


def _images(chosen: random.Random, model: str) -> Call:
    return Call(path="/images/generations", body={"model": model, "prompt": "A cat", "n": chosen.randint(1, 4)})


def _edits(chosen: random.Random, model: str) -> Call:
    body = {"model": model, "prompt": "A cat", "n": str(chosen.randint(1, 4))}
    return Call(path="/images/edits", body=body, files=(("image", PNG),))


def _grammar(chosen: random.Random, model: str) -> Call:
    form = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    tool = {"type": "custom", "name": "spell", "format": form}
    body = {"model": model, "input": "word " * chosen.randint(1, 60), "tools": [tool]}
    return Call(path="/responses", body=body)


def _any(chosen: random.Random, model: str) -> Call:
    return random_call(chosen, model)


KINDS: Sequence[Callable[[random.Random, str], Call]] = (
    _any,
    _any,
    _any,
    _choices,
    _embeddings,
    _images,
    _edits,
    _grammar,
)


async def _send(session: aiohttp.ClientSession, call: Call, kinds: Kinds) -> bool:
    """Send a call and return whether it was served."""
    sent: dict[str, Any] = {"json": call.body}
    if call.files:
        form = aiohttp.FormData({name: str(value) for name, value in call.body.items()})
        for name, content in call.files:
            form.add_field(name, content, filename="a.bin", content_type="image/png")
        sent = {"data": form}
    try:
        async with session.post(f"/v1{call.path}", **sent) as answer:
            content = await answer.read()
    except TimeoutError:
        kinds.violations.append(f"{call.path} without an answer after {_ANSWER_SECONDS} s")
        return False
    except (aiohttp.ClientError, OSError):
        # Its process was killed.
        kinds.answers["no answer"] += 1
        await asyncio.sleep(0.1)
        return False
    kinds.answers[f"{call.path} {answer.status}"] += 1
    if answer.status not in _EXPECTED:
        kinds.violations.append(f"{call.path} was answered {answer.status}: {content[:300]!r}")
    return answer.status == 200


async def send_every_kind(kinds: Kinds, url: str, key: str, *, until: float) -> None:
    """Send calls of every kind from several clients until the time is over, then check the bills."""

    async def client(number: int) -> None:
        chosen = random.Random(f"{kinds.seed}/{number}")
        while time.monotonic() < until:
            if not await _send(session, chosen.choice(KINDS)(chosen, kinds.model), kinds):
                await asyncio.sleep(chosen.uniform(0.02, 0.3))

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout, headers=headers) as session:
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    kinds.check()


async def reservations_left(admin: str, sweep: Callable[[], object]) -> int:
    """Wait until the calls of killed processes are settled, and return the number of reservations that are left.

    `sweep` does the work of the scheduler's periodic task, because no scheduler runs during these races.
    """
    until = time.monotonic() + _RELEASE_SECONDS
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        while True:
            await asyncio.to_thread(sweep)
            cursor = await connection.execute("SELECT count(*) FROM tenants_reservation")
            [count] = await cursor.fetchone() or (0,)
            if not count or time.monotonic() > until:
                return int(count)
            await asyncio.sleep(5)
