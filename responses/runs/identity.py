"""Identities: the values shared by all rows of a run, the request that caused a run, and the account of its calls."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any

from core.records import record
from engine.turn import Target
from providers.targets.queue import target_of
from responses.models import Mode, Response
from tenants.directory import Route
from tenants.prices import UNKNOWN, PriceList
from tenants.principal import Principal

HAS_KEY = "has_key"
"""Option of a response whose request has an idempotency key: its answer is stored for repetitions as well."""


@record
class RequestInfo:
    """The HTTP request that caused a call: its id, the id that the client gave it, and the name of the endpoint.

    `batch` is true if the request is a line of a batch, `has_key` if it has an idempotency key.
    """

    request_id: str
    client_request_id: str = ""
    endpoint: str = "responses"
    batch: bool = False
    has_key: bool = False


@record
class RunIdentity:
    """The response, team, key and model of a run, and the lease token that guards its writes.

    `in_worker`: a worker executes the run and its clients read the event log; true for all background runs. `trace` are
    the headers with which the trace of the request is continued.

    `targets` are all targets of the model with their prices; empty if there is only one. `model`, `upstream_id`,
    `upstream_model` and `prices` then are those of the target that has answered, at first those of the first target.

    `waited_ms` is the time for which the run has waited for decisions of people. Its duration does not include it.
    """

    response_id: str
    team_id: str
    key_id: str
    model: str
    upstream_id: str
    upstream_model: str
    request_id: str
    stored: bool
    obfuscate: bool
    created_at: datetime
    lease_token: int = 1
    background: bool = False
    streamed: bool = False
    in_worker: bool = False
    conversation_id: str | None = None
    prices: PriceList = UNKNOWN
    endpoint: str = "responses"
    batch: bool = False
    end_user: str = ""
    bills_estimates: bool = True
    tool_prices: PriceList = UNKNOWN
    trace: Mapping[str, str] = field(default_factory=dict)
    targets: Sequence[tuple[Target, PriceList]] = ()
    waited_ms: int = 0

    @classmethod
    def of(cls, response: Response, *, lease_token: int) -> "RunIdentity":
        """Return the identity of a stored run, for a process with this lease token.

        Values without a column are read from the options: the values of `stored_options`, and `obfuscate`.
        """
        options = response.options
        targets = [(Target(*target), PriceList.restored(prices)) for *target, prices in options.get("targets", ())]
        current = Target(response.model, response.upstream_id, response.upstream_model)
        answering = (prices for target, prices in targets if target == current)
        return cls(
            response_id=response.pk,
            team_id=response.team_id,
            key_id=response.api_key_id,
            model=response.model,
            upstream_id=response.upstream_id,
            upstream_model=response.upstream_model,
            request_id=response.request_id,
            stored=response.stored,
            obfuscate=bool(options.get("obfuscate")),
            created_at=response.created_at,
            lease_token=lease_token,
            background=response.background,
            streamed=response.mode == Mode.STREAM,
            in_worker=response.background or response.handed_over_at is not None,
            conversation_id=response.conversation_id,
            prices=next(answering, None) or PriceList.restored(options.get("prices")),
            endpoint=response.endpoint,
            end_user=response.end_user or "",
            bills_estimates=not options.get("waives_estimates"),
            tool_prices=PriceList.restored(options.get("tool_prices")),
            trace=options.get("trace") or {},
            targets=targets,
            waited_ms=response.waited_ms or 0,
        )

    def stored_options(self) -> dict[str, Any]:
        """Return the options from which `of` restores prices, billing and trace.

        They are stored because an operator may change prices and billing before another process resumes the run.
        """
        options: dict[str, Any] = {"prices": self.prices.stored()}
        if self.tool_prices:
            options["tool_prices"] = self.tool_prices.stored()
        if not self.bills_estimates:
            options["waives_estimates"] = True
        if self.trace:
            options["trace"] = self.trace
        if self.targets:
            options["targets"] = [[*target, prices.stored()] for target, prices in self.targets]
        return options

    def at(self, target: Target | None) -> "RunIdentity":
        """Return the identity of the run with the model, upstream and prices of one of its targets."""
        if target is None or target == (self.model, self.upstream_id, self.upstream_model):
            return self
        prices = next((prices for candidate, prices in self.targets if candidate == target), self.prices)
        model, upstream_id, upstream_model = target
        return replace(self, model=model, upstream_id=upstream_id, upstream_model=upstream_model, prices=prices)

    def duration_ms(self, *, until: datetime) -> int:
        """Return the duration of the run in milliseconds, without the time for which it has waited for people."""
        return max(0, round((until - self.created_at).total_seconds() * 1000) - self.waited_ms)

    @property
    def channel(self) -> str:
        """The channel that notifies followers of the run."""
        return channel_of(self.response_id)

    @property
    def account(self) -> "UsageAccount":
        """The account to which additional upstream calls of the run are charged."""
        return UsageAccount(
            team_id=self.team_id,
            key_id=self.key_id,
            object_id=self.response_id,
            request_id=self.request_id,
            end_user=self.end_user,
        )


def target_prices(route: Route, *, at: datetime) -> Sequence[tuple[Target, PriceList]]:
    """Return the targets of a route with their prices at a moment."""
    return [(target_of(target), target.prices.at(at)) for target in route.targets]


def channel_of(response_id: str) -> str:
    """Return the channel that notifies followers of a run that its event log has grown."""
    return f"run:{response_id}"


def channel_of_process(process: str) -> str:
    """Return the channel of a process that executes runs.

    A notification without a message means that the process may have lost a run. A message is `OBSERVED`, or the id of a
    run that has a follower.
    """
    return f"process:{process}"


OBSERVED = b"observed"
"""Message to a process some of whose runs are shown on a page of the console, with the ends of their logs."""


@record
class UsageAccount:
    """The team, API key and object to which upstream calls are charged."""

    team_id: str
    key_id: str
    object_id: str
    request_id: str = ""
    end_user: str = ""

    def principal(self) -> Principal:
        """Return a principal of the team without the rights of the key.

        An operator has chosen the model for such calls, so the permissions of the key do not apply.
        """
        return Principal(
            team_id=self.team_id,
            key_id=self.key_id,
            scopes=frozenset(),
            allowed_models=None,
            tools=frozenset(),
            expires_at=None,
            grace_seconds=None,
        )
