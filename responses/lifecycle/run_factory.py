"""The factory of runs, for processes that create a run, continue a stored run, or end a dead run."""

from dataclasses import field, replace

from core.clock import now
from core.records import record
from engine.calls.toolbox import Toolbox
from engine.loop import Run
from engine.moderation import OutputCheck
from engine.state import RunContext, RunState
from engine.turn import LanguageModel, TurnRequest, TurnStream
from providers.first_answer import FirstAnswer
from providers.target_headers import add_target_headers
from providers.targets.turn import FailoverModel
from providers.upstream import UpstreamModel
from responses.lifecycle.limited_model import LimitedModel
from responses.passthrough.reasoning_summaries import TeamSummarizer
from responses.runs.identity import RunIdentity
from responses.runs.reservations import RunReservation
from tenants.directory import Route


class _NoModel:
    """Placeholder model of a run that was loaded only to end it."""

    def open(self, request: TurnRequest) -> TurnStream:
        raise RuntimeError("this run was loaded to be ended")


@record
class RunFactory:
    """Builds runs with the parts that belong to the executing process. To end a run, the default factory suffices."""

    model: LanguageModel = field(default_factory=_NoModel)
    checks: OutputCheck | None = None
    reservation: RunReservation | None = None

    @classmethod
    def for_route(
        cls,
        route: Route,
        identity: RunIdentity,
        *,
        checks: OutputCheck | None,
        reservation: RunReservation | None,
        first_answer: FirstAnswer | None = None,
        patience: float | None = None,
    ) -> "RunFactory":
        """Return the factory of a run that calls the upstreams of a route, with a reservation if limits apply."""
        upstream = UpstreamModel(
            route,
            summarizer=TeamSummarizer(identity.account),
            first_answer=first_answer,
            on_answer=add_target_headers,
            patience=patience,
        )
        # Also if the other targets of a resumed run no longer exist: its requests name the first target's model.
        model: LanguageModel = FailoverModel(upstream) if identity.targets else upstream
        if reservation is not None:
            model = LimitedModel(model, reservation)
        return cls(model=model, checks=checks, reservation=reservation)

    def build(self, context: RunContext, state: RunState, tools: Toolbox) -> Run:
        """Return a run that continues from a state."""
        tools = replace(tools, budget=self.reservation)
        return Run(context, state, model=self.model, tools=tools, now=now, checks=self.checks)
