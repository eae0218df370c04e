"""`moderation`: a model that judges what goes into a response and what comes out of it.

The policy says for each side whether a judgement is only shown, or stops the response where it flags something. Where
answers may be stopped, nothing of a turn is sent before it was judged. Source: section 1.1.1 of the API surface
specification; the shapes are those of `Response.moderation`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conversations.items import StoredItem, plain_text
from kernel.errors import ApiError, ContentFlagged, Failure, ModelNotFound, UnsupportedValue, UpstreamError
from responses.engine.attachments import AttachmentImage, AttachmentText, all_parts, attachment_key
from responses.engine.events.types import Body
from responses.passthrough.embeddings_moderations import forward, parse_moderation
from responses.requests import parameters
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext
from responses.runs.ledger import RequestInfo
from responses.schema import CreateResponse
from responses.schema.options import ModerationParam
from tenants.models import Scope
from tenants.principal import Principal

Judgement = dict[str, Any]


class Judging(Protocol):
    """Whoever judges a run's answers."""

    @property
    def holds_answers_back(self) -> bool:
        """Whether an answer is sent only after it was judged."""
        ...

    async def of_output(self, bodies: Sequence[Body]) -> Judgement:
        """What is found in an answer; never raises."""
        ...

    def shown(self, of_output: Judgement) -> dict[str, Judgement] | None:
        """`Response.moderation`; None: nobody asked for it."""
        ...

    def objection(self, of_output: Judgement) -> Failure | None:
        """Why an answer is not to be sent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges one response. `of_input` is what it has found in the input."""

    principal: Principal
    policy: ModerationParam
    request: RequestInfo
    of_input: Judgement

    @property
    def holds_answers_back(self) -> bool:
        """Whether an answer is sent only after it was judged."""
        return self.policy.blocks("output")

    async def of_output(self, bodies: Sequence[Body]) -> Judgement:
        """What it finds in an answer; never raises, as the answer is there by now."""
        words = [text for body in bodies if body["type"] != "reasoning" and (text := plain_text(body))]
        try:
            return await judged(self.principal, self.policy.model, self.request, words)
        except ApiError as error:
            return _no_judgement(error.message, code=error.code)
        except asyncio.CancelledError:
            # Who cancels a run whose model has ended is too late for all but this.
            return _no_judgement("The judgement was interrupted.")

    def kept(self) -> dict[str, Any]:
        """What a successor of the run has to know, beside whom it works for."""
        return {"policy": self.policy.model_dump(mode="json", exclude_unset=True), "of_input": self.of_input}

    def shown(self, of_output: Judgement) -> dict[str, Judgement]:
        """`Response.moderation`."""
        return {"input": self.of_input, "output": of_output}

    def objection(self, of_output: Judgement) -> Failure | None:
        """Why an answer is not to be sent: it is flagged, or nobody knows whether it would be."""
        if not self.holds_answers_back:
            return None
        if of_output["type"] == "error":
            message = f"The answer could not be judged. {of_output['message']}"
            return Failure(code="server_error", message=message)
        if of_output["flagged"]:
            message = f"The answer was flagged by '{self.policy.model}'{_named(of_output)}."
            return Failure(code=ContentFlagged.default_code, message=message, status=ContentFlagged.status)
        return None


def restored_judge(kept: dict[str, Any], *, principal: Principal, request_id: str) -> Judge:
    """The judge of a run that is taken over, from what was kept of it."""
    return Judge(
        principal=principal,
        policy=ModerationParam.model_validate(kept["policy"]),
        request=RequestInfo(request_id=request_id),
        of_input=kept["of_input"],
    )


async def judge_input(
    *,
    principal: Principal,
    policy: ModerationParam,
    request: RequestInfo,
    body: CreateResponse,
    reading: RequestContext,
    content: TeamAttachments | None,
) -> Judge:
    """Judge what a request brings; raises the 400 of what is flagged where the policy stops it.

    A model that does not exist or does not judge is a mistake of the request's. One that fails stops only those who
    wanted its word before anything else happens.
    """
    principal.require(Scope.MODERATIONS_WRITE)
    own = reading.own_items[len(reading.own_items) - len(parameters.input_items(body)) :]
    words, images = await said_in([*reading.preface, *own], content)
    blocks = policy.blocks("input")
    try:
        found = await judged(principal, policy.model, request, words, images=images)
    except (ModelNotFound, UnsupportedValue) as error:
        error.param = "moderation.model"
        raise
    except ApiError as error:
        if blocks:
            raise
        found = _no_judgement(error.message, code=error.code)
    if blocks and found["flagged"]:
        raise ContentFlagged(f"The input was flagged by '{policy.model}'{_named(found)}.", param="input")
    return Judge(principal=principal, policy=policy, request=request, of_input=found)


async def said_in(items: Sequence[StoredItem], content: TeamAttachments | None) -> tuple[list[str], list[str]]:
    """The words of some items, those in their files too, and the URLs of their images."""
    words = [text for item in items if (text := plain_text(item.wire()))]
    files, images = await _behind(items, content)
    return [*words, *files], images


async def _behind(items: Sequence[StoredItem], content: TeamAttachments | None) -> tuple[list[str], list[str]]:
    """The words of the files and the URLs of the images in some items."""
    if content is None:
        return [], []
    found = await content.load(items, files=False, inline_images=False)
    words, images = [], []
    for part in all_parts(items):
        match found.get(attachment_key(part) or ""):
            case AttachmentText(text=text):
                words.append(text)
            case AttachmentImage(url=url):
                images.append(url)
            case _ if given := getattr(part, "image_url", None):
                images.append(given)
    return words, images


async def judged(
    principal: Principal, model: str, request: RequestInfo, words: Sequence[str], *, images: Sequence[str] = ()
) -> Judgement:
    """What a moderation model says, with its row in the ledger; raises `ApiError`."""
    text = "\n\n".join(words)
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    given: Any = [*([{"type": "text", "text": text}] if text else []), *pictures] if images else text
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
    message = "The moderation model gave no judgement."
    raise UpstreamError(message)


def _no_judgement(message: str, *, code: str | None = None) -> Judgement:
    return {"type": "error", "code": code or "server_error", "message": message}


def names_of(found: Judgement) -> list[str]:
    """The categories that apply, where a model names them."""
    return [str(name) for name, applies in found["categories"].items() if applies is True]


def _named(found: Judgement) -> str:
    """For which categories, where it says so."""
    names = names_of(found)
    return f" for {', '.join(names)}" if names else ""
