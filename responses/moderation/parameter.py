"""The parameter `moderation`: checks of the input and the output that a request asks for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conversations.items import plain_text
from core.errors import ApiError, ContentFlagged, Failure, ModelNotFound, ServerError, UnsupportedValue
from engine.events.types import Body
from engine.moderation import ModerationResult
from responses.moderation.model import error_result, for_categories, moderate, texts_and_images
from responses.requests import parameters
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext
from responses.runs.identity import RequestInfo
from responses.schema import CreateResponse
from responses.schema.options import ModerationParam
from tenants.models import Scope
from tenants.principal import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModerationCheck:
    """The `moderation` parameter of one response, with the result for its input."""

    principal: Principal
    policy: ModerationParam
    request: RequestInfo
    input_result: ModerationResult

    @property
    def holds_output_back(self) -> bool:
        """True if output is sent only after it was checked."""
        return self.policy.blocks("output")

    async def check_output(self, bodies: Sequence[Body]) -> ModerationResult:
        """Ask the moderation model about output items.

        Never raises, because the output exists already: errors become a result of type `error`.
        """
        # Reasoning is not part of the answer, so it is not checked.
        texts = [text for body in bodies if body["type"] != "reasoning" and (text := plain_text(body))]
        try:
            return await moderate(self.principal, self.policy.model, self.request, texts)
        except ApiError as error:
            return error_result(error.message, code=error.code)
        except asyncio.CancelledError:
            # The model's turn is over, so a cancellation can only skip this check. The run still ends with its output.
            return error_result("The moderation check was interrupted.")

    def stored_options(self) -> dict[str, Any]:
        """Return the options that a worker needs to resume the run, apart from the principal."""
        return {"policy": self.policy.model_dump(mode="json", exclude_unset=True), "of_input": self.input_result}

    def public_result(self, result: ModerationResult) -> dict[str, ModerationResult]:
        """Return `Response.moderation`."""
        return {"input": self.input_result, "output": result}

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return the failure of an output that was flagged or could not be checked, or None."""
        if not self.holds_output_back:
            return None
        if result["type"] == "error":
            # It is unknown whether an unchecked output would be flagged, so it is blocked as well.
            message = f"The output could not be moderated. {result['message']}"
            return Failure.of(ServerError(message))
        if result["flagged"]:
            message = f"The output was flagged by '{self.policy.model}'{for_categories(result)}."
            return Failure.of(ContentFlagged(message))
        return None


async def moderate_input(
    *,
    principal: Principal,
    policy: ModerationParam,
    request: RequestInfo,
    body: CreateResponse,
    context: RequestContext,
    attachments: TeamAttachments | None,
) -> ModerationCheck:
    """Moderate the request's own input. Raises `ContentFlagged` (400) if it is flagged and the policy blocks input.

    A model that does not exist, or does not moderate, is an error of the request. Any other failure of the model is
    raised only if the policy blocks input; otherwise it is reported as a result of type `error`.
    """
    principal.require(Scope.MODERATIONS_WRITE)
    # `input_items` may start with items of unstored responses, which were moderated with their own requests.
    own = context.input_items[len(context.input_items) - len(parameters.input_items(body)) :]
    texts, images = await texts_and_images([*context.preface, *own], attachments)
    blocks = policy.blocks("input")
    try:
        found = await moderate(principal, policy.model, request, texts, images=images)
    except (ModelNotFound, UnsupportedValue) as error:
        error.param = "moderation.model"
        raise
    except ApiError as error:
        if blocks:
            raise
        found = error_result(error.message, code=error.code)
    if blocks and found["flagged"]:
        raise ContentFlagged(f"The input was flagged by '{policy.model}'{for_categories(found)}.", param="input")
    return ModerationCheck(principal=principal, policy=policy, request=request, input_result=found)
