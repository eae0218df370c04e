"""The `moderation` parameter: a moderation model checks the input and the output of a response.

For each side the policy says whether a result is only reported, or blocks the response when content is flagged. If it
can block the output, no part of a turn is sent before the turn was checked. Results have the shapes of
`Response.moderation` in the API.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conversations.items import StoredItem, plain_text
from kernel.errors import ApiError, ContentFlagged, Failure, ModelNotFound, UnsupportedValue, UpstreamError
from responses.engine.attachments import AttachmentImage, AttachmentText, all_parts, attachment_key
from responses.engine.events.types import Body
from responses.engine.moderation import ModerationResult
from responses.passthrough.embeddings_moderations import forward, parse_moderation
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
            return _error_result(error.message, code=error.code)
        except asyncio.CancelledError:
            # The model's turn is over, so a cancellation that comes now can only skip this check: the run still ends
            # with what it has.
            return _error_result("The moderation check was interrupted.")

    def stored_options(self) -> dict[str, Any]:
        """Return what a worker that resumes the run needs, apart from the principal."""
        return {"policy": self.policy.model_dump(mode="json", exclude_unset=True), "of_input": self.input_result}

    def public_result(self, result: ModerationResult) -> dict[str, ModerationResult]:
        """Return `Response.moderation`."""
        return {"input": self.input_result, "output": result}

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return the failure of a blocked output: it was flagged, or could not be checked."""
        if not self.holds_output_back:
            return None
        if result["type"] == "error":
            # It is unknown whether an unchecked output would be flagged, so it is blocked as well.
            message = f"The output could not be moderated. {result['message']}"
            return Failure(code="server_error", message=message)
        if result["flagged"]:
            message = f"The output was flagged by '{self.policy.model}'{_for_categories(result)}."
            return Failure(code=ContentFlagged.default_code, message=message, status=ContentFlagged.status)
        return None


def restore_moderation_check(options: dict[str, Any], *, principal: Principal, request_id: str) -> ModerationCheck:
    """Rebuild the check of a resumed run from its `stored_options`."""
    return ModerationCheck(
        principal=principal,
        policy=ModerationParam.model_validate(options["policy"]),
        request=RequestInfo(request_id=request_id),
        input_result=options["of_input"],
    )


async def check_input(
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
    # `input_items` may start with items of unstored responses: these were moderated with their own request.
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
        found = _error_result(error.message, code=error.code)
    if blocks and found["flagged"]:
        raise ContentFlagged(f"The input was flagged by '{policy.model}'{_for_categories(found)}.", param="input")
    return ModerationCheck(principal=principal, policy=policy, request=request, input_result=found)


async def texts_and_images(
    items: Sequence[StoredItem], attachments: TeamAttachments | None
) -> tuple[list[str], list[str]]:
    """Return the texts of some items, including those of their files, and the URLs of their images."""
    texts = [text for item in items if (text := plain_text(item.wire()))]
    files, images = await _attached(items, attachments)
    return [*texts, *files], images


async def _attached(items: Sequence[StoredItem], attachments: TeamAttachments | None) -> tuple[list[str], list[str]]:
    if attachments is None:
        return [], []
    # Moderation models read no files: `files=False` has documents extracted as text.
    found = await attachments.load(items, files=False, inline_images=False)
    texts, images = [], []
    for part in all_parts(items):
        match found.get(attachment_key(part) or ""):
            case AttachmentText(text=text):
                texts.append(text)
            case AttachmentImage(url=url):
                images.append(url)
            case _ if given := getattr(part, "image_url", None):
                images.append(given)
    return texts, images


async def moderate(
    principal: Principal, model: str, request: RequestInfo, texts: Sequence[str], *, images: Sequence[str] = ()
) -> ModerationResult:
    """Return a moderation model's result for some texts and image URLs.

    Writes a usage record. Raises `ApiError` if the upstream fails or its answer has no result.
    """
    text = "\n\n".join(texts)
    image_parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    # Text alone is sent as a plain string: many moderation models accept nothing else.
    given: Any = [*([{"type": "text", "text": text}] if text else []), *image_parts] if images else text
    passed = parse_moderation({"model": model, "input": given})
    answer = await forward(principal=principal, passed=passed, request=request)
    match answer.get("results"):
        case [{"flagged": bool() as flagged} as result, *_]:
            return {
                "type": "moderation_result",
                "model": str(answer.get("model") or model),
                "flagged": flagged,
                "categories": result.get("categories") or {},
                "category_scores": result.get("category_scores") or {},
                "category_applied_input_types": result.get("category_applied_input_types") or {},
            }
    message = "The moderation model returned no result."
    raise UpstreamError(message)


def _error_result(message: str, *, code: str | None = None) -> ModerationResult:
    return {"type": "error", "code": code or "server_error", "message": message}


def flagged_categories(result: ModerationResult) -> list[str]:
    """Return the names of the categories that apply; empty if the model names none."""
    return [str(name) for name, applies in result["categories"].items() if applies is True]


def _for_categories(result: ModerationResult) -> str:
    names = flagged_categories(result)
    return f" for {', '.join(names)}" if names else ""
