"""All checks of one response: the checks that its request asks for, and the checks of its team's guardrail."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import ContentFlagged, Failure, UpstreamError
from engine.events.types import Body
from engine.moderation import ModerationResult
from responses.models import Response
from responses.moderation.guardrail import GuardrailCheck
from responses.moderation.model import texts_and_images
from responses.moderation.parameter import ModerationCheck, moderate_input
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext
from responses.runs.identity import RequestInfo, UsageAccount
from responses.schema import CreateResponse
from responses.schema.options import ModerationParam
from tenants import directory
from tenants.directory import GuardrailSettings
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChecks:
    """All checks of a response's output: the request's `moderation` parameter and the team's guardrail."""

    moderation: ModerationCheck | None
    guardrail: GuardrailCheck | None

    @property
    def holds_output_back(self) -> bool:
        """True if output is sent only after it was checked."""
        return any(check.holds_output_back for check in (self.moderation, self.guardrail) if check is not None)

    async def check_output(self, bodies: Sequence[Body]) -> ModerationResult:
        """Run each check on output items. Never raises."""
        moderation = await self.moderation.check_output(bodies) if self.moderation else None
        guardrail = await self.guardrail.check_output(bodies) if self.guardrail else None
        return {"moderation": moderation, "guardrail": guardrail}

    def stored_options(self) -> dict[str, Any]:
        """Return the response options that a worker needs to resume the run.

        The guardrail is left out, because it is looked up again: its settings may have changed in the meantime.
        """
        return {"moderation": self.moderation.stored_options()} if self.moderation else {}

    def public_result(self, result: ModerationResult) -> dict[str, ModerationResult] | None:
        """Return `Response.moderation`, or None if the request did not ask for it."""
        return self.moderation.public_result(result["moderation"]) if self.moderation else None

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return the failure of an output that must not be sent, or None if the output may be sent."""
        failure = self.moderation.failure_for(result["moderation"]) if self.moderation else None
        if failure is None and self.guardrail is not None:
            return self.guardrail.failure_for(result["guardrail"])
        return failure


async def start_checks(
    *,
    principal: Principal,
    request: RequestInfo,
    body: CreateResponse,
    context: RequestContext,
    attachments: TeamAttachments | None,
    response_id: str,
) -> OutputChecks | None:
    """Check the input of a request. Return the checks for its output, or None if there are none.

    Raises an API error if the input is blocked.
    """
    moderation = None
    if body.moderation is not None:
        moderation = await moderate_input(
            principal=principal,
            policy=body.moderation,
            request=request,
            body=body,
            context=context,
            attachments=attachments,
        )
    guard = await directory.guardrails.aget(principal.team_id)
    guardrail = _guardrail_check(guard, principal, body.model, response_id, request, is_stored=body.store is not False)
    if guardrail is not None and guardrail.guard.input_checker:
        # Clients can add items to a conversation without a check, so the whole context of a conversation is checked.
        items = context.items if context.conversation_id else [*context.preface, *context.input_items]
        texts, images = await texts_and_images(items, attachments)
        texts = [body.instructions, *texts] if body.instructions else texts
        checker, action = guardrail.guard.input_checker, guardrail.guard.input_action
        found = await guardrail.decide("input", checker, action, texts, images)
        if found["blocked"]:
            if found["outcome"] == "failed":
                raise UpstreamError(found["message"])
            raise ContentFlagged(found["message"], param="input")
    return _output_checks(moderation, guardrail)


def restore_checks(response: Response, principal: Principal) -> OutputChecks | None:
    """Return the output checks of a resumed run, with the team's present guardrail."""
    options, request = response.options.get("moderation"), RequestInfo(request_id=response.request_id)
    moderation = None
    if options:
        moderation = ModerationCheck(
            principal=principal,
            policy=ModerationParam.model_validate(options["policy"]),
            request=request,
            input_result=options["of_input"],
        )
    guard = directory.guardrails(principal.team_id)
    guardrail = _guardrail_check(guard, principal, response.model, response.pk, request, is_stored=response.stored)
    return _output_checks(moderation, guardrail)


def _guardrail_check(
    guard: GuardrailSettings | None,
    principal: Principal,
    model: str,
    response_id: str,
    request: RequestInfo,
    *,
    is_stored: bool,
) -> GuardrailCheck | None:
    if guard is None or not (guard.input_checker or guard.output_checker):
        return None
    account = UsageAccount(
        team_id=principal.team_id, key_id=principal.key_id, object_id=response_id, request_id=request.request_id
    )
    return GuardrailCheck(guard=guard, account=account, model=model, is_stored=is_stored)


def _output_checks(moderation: ModerationCheck | None, guardrail: GuardrailCheck | None) -> OutputChecks | None:
    # A guardrail without an output checker does not check the output.
    if guardrail is not None and not guardrail.guard.output_checker:
        guardrail = None
    return OutputChecks(moderation=moderation, guardrail=guardrail) if moderation or guardrail else None
