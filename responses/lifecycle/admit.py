"""The third stage of creation: reserve the limits, then perform the steps that cost money or have side effects.

Invalid requests were already refused and do not count against the limits. All others reserve limits before they cost
anything.
"""

from core.records import record
from engine import spans, turn_request
from engine.calls.toolbox import Toolbox
from engine.state import RunContext, RunState
from engine.turn import TurnRequest
from responses.lifecycle.resolve import ResolvedRequest
from responses.moderation.checks import OutputChecks, start_checks
from responses.runs import cost_bounds
from responses.runs.reservations import RunReservation
from responses.tools.registry import RunTools, create_tools


@record
class AdmittedRequest:
    """A request that has passed its limits and the checks of its content, with the tools of its run.

    `reservation` is None if no limits apply. Otherwise it must be stored or released.
    """

    resolved: ResolvedRequest
    reservation: RunReservation | None
    checks: OutputChecks | None
    tools: RunTools

    def release(self) -> None:
        """Release the reservation of a response that is not stored."""
        if self.reservation is not None:
            self.reservation.release()


async def admit(resolved: ResolvedRequest) -> AdmittedRequest:
    """Reserve the limits, check the content and build the tools. Raises the API error of the first refusal."""
    reservation = await _reserve(resolved)
    request, prepared = resolved.request, resolved.prepared
    try:
        with spans.span(spans.Activity.GUARDRAIL, "Input"):
            checks = await start_checks(
                principal=request.principal,
                request=request.info,
                body=prepared.body,
                context=prepared.context,
                attachments=prepared.attachments,
                response_id=request.response_id,
            )
        with spans.span(spans.Activity.PREPARE, "Tools"):
            tools = await create_tools(
                principal=request.principal,
                body=prepared.body,
                items=prepared.context.items,
                response_id=request.response_id,
            )
    except BaseException:
        if reservation is not None:
            reservation.release()
        raise
    return AdmittedRequest(resolved=resolved, reservation=reservation, checks=checks, tools=tools)


async def _reserve(resolved: ResolvedRequest) -> RunReservation | None:
    request = resolved.request
    if not request.principal.is_limited:
        return None
    capabilities = cost_bounds.widest([target.capabilities for target in resolved.route.targets])
    reservation = RunReservation(request.principal, resolved.identity, capabilities)
    if resolved.identity.background:
        await reservation.reserve_queue_place()
    else:
        await reservation.reserve(_first_call(resolved.prepared.run_context), stream=request.is_open_stream)
    return reservation


def _first_call(context: RunContext) -> TurnRequest | None:
    return turn_request.build(context, RunState(), Toolbox()) if context.generates else None
