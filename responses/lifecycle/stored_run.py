"""A run that was loaded from the database, so that this process can end it, or record its losses and continue it."""

from dataclasses import dataclass, field, replace

from engine.calls.toolbox import Toolbox
from engine.events.response_body import Ending
from engine.state import RunContext, RunState
from limits import Grant
from responses.lifecycle.losses import Losses, charge_reserved, settle_on_commit, stored_grants
from responses.lifecycle.run_factory import RunFactory
from responses.models import Response
from responses.runs import store
from responses.runs.identity import RunIdentity
from responses.runs.open_calls import added_usage
from responses.runs.recorder import Recorder
from responses.runs.reservations import deletions, is_for
from responses.runs.rows import Row
from responses.runs.runner import AssembledRun
from responses.runs.store import Change, LeaseGuard
from responses.tools import registry
from tenants import scope


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run in the state after its last committed step. Use `end`, or `settle_losses` and `build` to continue the run.

    `open_turn` is the row of a model call that is still open in the executing process. That process records the call
    when it notices that it has lost the run.
    """

    response: Response
    identity: RunIdentity
    context: RunContext
    state: RunState
    recorder: Recorder
    losses: Losses = field(default_factory=Losses)
    open_turn: Row | None = None

    def end(self, ending: Ending) -> Exception | None:
        """End a run that this process does not execute. Return the error if its end could not be written."""
        losses, grants = self.losses, self.losses.grants
        run = RunFactory().build(self.context, self.state, Toolbox())
        step = run.end_dead(ending, lost=losses.turn, has_open_call=self.open_turn is not None)
        _, change = self.recorder.plan(step)
        # The change that ends the run already contains the usage records of its unfinished calls.
        lost_calls = [] if self.identity.stored or step.unfinished else losses.call_records
        insert = [*change.insert, *lost_calls, *([self.open_turn] if self.open_turn else ())]
        charge_reserved(grants, insert)
        (error,) = store.apply([replace(change, insert=insert, extra=[*change.extra, *deletions(*grants)])])
        if error is None:
            settle_on_commit(grants, insert)
            if self.open_turn is not None:
                Response.objects.filter(pk=self.identity.response_id).update(has_open_call=True)
            self.recorder.metrics.count(step)
        return error

    def with_stored_grants(self) -> "StoredRun":
        """Return the run with its present reservations, so that it can be ended. Call it inside a scope of its team."""
        return replace(self, losses=replace(self.losses, grants=stored_grants(self.identity.response_id)))

    def settle_losses(self) -> "StoredRun | None":
        """Write the usage records of the lost calls. Return the run to continue, which will repeat these calls.

        Return None and write nothing if this process has lost the run in the meantime.
        """
        losses, response_id, turns = self.losses, self.identity.response_id, list[Row]()
        if losses == Losses():
            return self
        if losses.turn is not None:
            # The usage of the response includes lost calls, although their output is not part of the response.
            self.state.count_lost(losses.turn.total_usage)
            turns = self.recorder.count_lost(losses.turn)
        records, kept = [*losses.call_records, *turns], self._returned_calls().values()
        lost = [grant for grant in losses.grants if not grant.queued and grant not in kept]
        charge_reserved(lost, records)
        if records or lost:
            extra = [*(added_usage(response_id, record) for record in turns), *deletions(*lost)]
            # Guarded by the lease: if another process had already resumed the run and read the totals, it would not see
            # this usage.
            lease = LeaseGuard(response_id=response_id, lease_token=self.identity.lease_token)
            change = Change(team_id=self.identity.team_id, insert=records, extra=extra, lease=lease)
            (error,) = store.apply([change])
            if error is not None:
                return None
            settle_on_commit(lost, records)
        return replace(self, losses=Losses(grants=[grant for grant in losses.grants if grant not in lost]))

    def build(self, factory: RunFactory, tools: Toolbox | None = None) -> AssembledRun:
        """Return the run for execution by this process, by default with the tools of its request."""
        if tools is None:
            tools = self._restored_tools()
        if factory.reservation is not None:
            self.recorder.use(factory.reservation)
            factory.reservation.extend(self._returned_calls())
        run = factory.build(self.context, self.state, tools)
        return AssembledRun(run=run, recorder=self.recorder, identity=self.identity)

    def _restored_tools(self) -> Toolbox:
        # Most runs that no process has begun have no tools, so nothing must be read for them.
        if self.state.queued and not self.response.parameters["tools"]:
            return Toolbox()
        with scope.team(self.identity.team_id):
            return registry.restore_tools(self.response, self.context.items, output=self.state.context_items())

    def _returned_calls(self) -> dict[str, Grant]:
        """Return the reservations of hosted calls that have returned but whose cost is not recorded yet."""
        return {
            call_id: grant
            for call_id in self.state.returned_calls
            for grant in self.losses.grants
            if is_for(grant.id, call_id)
        }
