"""Moderation and guardrails: checks of the input and the output of responses.

With the parameter `moderation`, a moderation model checks both sides. For each side the policy says whether a result is
only reported, or blocks the response when content is flagged. If it can block the output, no part of a turn is sent
before the turn was checked. Results have the shapes of `Response.moderation` in the API.

A guardrail is a check that all responses of a team must pass, independent of what their requests ask for. A moderation
model or an HTTP hook decides, and each decision is stored as a row. Blocked content is handled as with the parameter:
input is rejected with a 400, and output ends as a failed response that shows none of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from conversations.items import StoredItem, plain_text
from core import egress
from core.errors import (
    SERVER_ERROR,
    ApiError,
    ContentFlagged,
    Failure,
    GuardrailRequired,
    ModelNotFound,
    RequestRejected,
    ServerError,
    UnsupportedValue,
    UpstreamError,
)
from core.json.large_work import off_loop
from core.redaction import redact, secrets_of_url
from engine.attachments import AttachmentImage, AttachmentText, all_parts, attachment_key
from engine.events.types import Body
from engine.moderation import ModerationResult
from responses.models import Response
from responses.passthrough.embeddings_moderations import forward, parse_moderation
from responses.requests import parameters
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext
from responses.runs.identity import RequestInfo, UsageAccount
from responses.runs.rows import new_row
from responses.runs.store import Change, writer
from responses.schema import CreateResponse
from responses.schema.options import ModerationParam
from tenants import directory
from tenants.directory import GuardrailSettings
from tenants.models import Checker, GuardAction, GuardrailDecision, Scope
from tenants.principal import Principal

_HOOK_SECONDS = 10.0
_MAX_ANSWER = 64 * 1024
_MAX_REASON = 500
_MAX_CATEGORIES = 50
_MAX_CATEGORY = 100
_INVALID_ANSWER = "The guardrail hook returned no valid decision."


# -- the parameter `moderation` ----------------------------------------------------------------------------------------


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
            return await _moderate(self.principal, self.policy.model, self.request, texts)
        except ApiError as error:
            return _error_result(error.message, code=error.code)
        except asyncio.CancelledError:
            # The model's turn is over, so a cancellation that comes now can only skip this check: the run still ends
            # with what it has.
            return _error_result("The moderation check was interrupted.")

    def stored_options(self) -> dict[str, Any]:
        """Return the options that a worker needs to resume the run, apart from the principal."""
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
            return Failure.of(ServerError(message))
        if result["flagged"]:
            message = f"The output was flagged by '{self.policy.model}'{_for_categories(result)}."
            return Failure.of(ContentFlagged(message))
        return None


async def _moderate_input(
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
    texts, images = await _texts_and_images([*context.preface, *own], attachments)
    blocks = policy.blocks("input")
    try:
        found = await _moderate(principal, policy.model, request, texts, images=images)
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


async def _texts_and_images(
    items: Sequence[StoredItem], attachments: TeamAttachments | None
) -> tuple[list[str], list[str]]:
    """Return the texts of some items, including those of their files, and their images as data URLs."""
    texts = await off_loop(lambda: [text for item in items if (text := plain_text(item.wire()))])
    images: list[str] = []
    if attachments is None:
        return texts, images
    # Moderation models read no files: `files=False` has documents extracted as text.
    found = await attachments.load(items, files=False, inline_images=True)
    for part in all_parts(items):
        match found.get(attachment_key(part)):
            case AttachmentText(text=text):
                texts.append(text)
            case AttachmentImage(url=url):
                images.append(url)
    return texts, images


async def _moderate(
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
    answer = await forward(principal=principal, passed=passed, request=request, is_request=False)
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
    raise UpstreamError("The moderation model returned no result.")


def _error_result(message: str, *, code: str | None = None) -> ModerationResult:
    return {"type": "error", "code": code or SERVER_ERROR, "message": message}


def _flagged_categories(result: ModerationResult) -> list[str]:
    """Return the names of the categories that apply; empty if the model names none."""
    return [str(name) for name, applies in result["categories"].items() if applies is True]


def _for_categories(result: ModerationResult) -> str:
    names = _flagged_categories(result)
    return f" for {', '.join(names)}" if names else ""


# -- guardrails --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The answer of a checker, before the team's settings decide whether it blocks."""

    allows: bool
    categories: Sequence[str] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailCheck:
    """A team's guardrail applied to one response."""

    guard: GuardrailSettings
    account: UsageAccount
    model: str
    is_stored: bool
    """True if the response is stored: the reason of a decision may repeat its content."""

    @property
    def holds_output_back(self) -> bool:
        """True if output is sent only after it was checked."""
        return bool(self.guard.output_checker) and self.guard.output_action == GuardAction.BLOCK.value

    async def check_output(self, bodies: Sequence[Body]) -> ModerationResult:
        """Check output items. Never raises, because the output exists already."""
        guard = self.guard
        if not guard.output_checker:
            return {"blocked": False}
        texts = [text for body in bodies if body["type"] != "reasoning" and (text := plain_text(body))]
        return await self.decide("output", guard.output_checker, guard.output_action, texts, ())

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return the failure of a blocked output: it was refused, or could not be checked."""
        if not result["blocked"]:
            return None
        if result["outcome"] == "failed":
            return Failure.of(ServerError(result["message"]))
        return Failure.of(ContentFlagged(result["message"]))

    async def decide(
        self, stage: str, checker: str, action: str, texts: Sequence[str], images: Sequence[str]
    ) -> ModerationResult:
        """Ask a checker, store its decision and return it. Raises nothing but the cancellation of an input check."""
        blocks = action == GuardAction.BLOCK.value
        try:
            is_hook = checker == Checker.HOOK.value
            decision = await (self._ask_hook(stage, texts, images) if is_hook else self._ask_model(texts, images))
        except (ApiError, asyncio.CancelledError) as error:
            # A cancelled input check means that the client has left before anything was stored. Output is decided even
            # then: the run has ended, and what it stores depends on the decision.
            if stage == "input" and not isinstance(error, ApiError):
                raise
            decision = _Decision(allows=False, reason=self._reason_of(error))
            # The team chooses what happens if the checker fails: `fails_open` lets the content pass.
            outcome, blocked = "failed", blocks and not self.guard.fails_open
            message = f"Your team's guardrail could not check the {stage}."
        else:
            blocked = blocks and not decision.allows
            outcome = "passed" if decision.allows else "blocked" if blocked else "noted"
            named = f" for {', '.join(decision.categories)}" if decision.categories else ""
            message = f"The {stage} was blocked by your team's guardrail{named}."
        row = new_row(
            GuardrailDecision,
            team_id=self.account.team_id,
            response_id=self.account.object_id,
            stage=stage,
            checker=checker,
            outcome=outcome,
            blocked=blocked,
            categories=list(decision.categories),
            reason=self._without_secrets(decision.reason)[:_MAX_REASON],
            request_id=self.account.request_id,
        )
        # Shielded: the decision is stored even if the client disconnects.
        await asyncio.shield(writer.submit(Change(team_id=self.account.team_id, insert=[row])))
        return {"blocked": blocked, "outcome": outcome, "message": message}

    async def _ask_model(self, texts: Sequence[str], images: Sequence[str]) -> _Decision:
        account = self.account
        # The operator has chosen the moderation model, so the caller's key needs no scope for it.
        principal = replace(account.principal(), scopes=frozenset({Scope.MODERATIONS_WRITE.value}))
        request = RequestInfo(request_id=account.request_id)
        result = await _moderate(principal, self.guard.model, request, texts, images=images)
        return _Decision(allows=not result["flagged"], categories=_flagged_categories(result)[:_MAX_CATEGORIES])

    async def _ask_hook(self, stage: str, texts: Sequence[str], images: Sequence[str]) -> _Decision:
        question = {
            "stage": stage,
            "team": self.account.team_id,
            "model": self.model,
            "response_id": self.account.object_id,
            "text": "\n\n".join(texts),
            "images": list(images),
        }
        secret = self.guard.hook_secret
        answer = await egress.default().post(
            self.guard.hook_url,
            content=await off_loop(partial(orjson.dumps, question)),
            max_bytes=_MAX_ANSWER,
            timeout=_HOOK_SECONDS,
            headers={
                "content-type": "application/json",
                **({"authorization": f"Bearer {secret}"} if secret else {}),
            },
        )
        try:
            found = orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise UpstreamError(_INVALID_ANSWER) from error
        match found:
            case {"allow": bool() as allows} if 200 <= answer.status < 300:
                given, reason = found.get("categories"), found.get("reason")
            case _:
                raise UpstreamError(_INVALID_ANSWER)

        # Hooks may send categories as a list of names, or as OpenAI's mapping of names to booleans.
        names = [name for name, applies in given.items() if applies is True] if isinstance(given, Mapping) else given
        return _Decision(
            allows=allows,
            categories=[self._without_secrets(name)[:_MAX_CATEGORY] for name in names[:_MAX_CATEGORIES]]
            if isinstance(names, list)
            else (),
            reason=reason if isinstance(reason, str) and self.is_stored else "",
        )

    def _reason_of(self, error: ApiError | asyncio.CancelledError) -> str:
        """Return why a check failed, for the row of the decision."""
        if not isinstance(error, ApiError):
            return "Interrupted."
        # The moderation model's own words, which may repeat the content.
        if isinstance(error, RequestRejected) and not self.is_stored:
            return "The moderation model rejected the request."
        return error.message

    def _without_secrets(self, value: object) -> str:
        """Return a text of another server without secrets, so that it may be stored and shown."""
        # PostgreSQL has no NUL in text.
        text = str(value).replace("\0", "")
        return redact(text, [self.guard.hook_secret, *secrets_of_url(self.guard.hook_url)])


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

        They leave out the guardrail, which is looked up again: its settings may have changed in between.
        """
        return {"moderation": self.moderation.stored_options()} if self.moderation else {}

    def public_result(self, result: ModerationResult) -> dict[str, ModerationResult] | None:
        """Return `Response.moderation`, or None if the request did not ask for it."""
        return self.moderation.public_result(result["moderation"]) if self.moderation else None

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return why the output must not be sent, or None if it may be."""
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
    """Check the input of a request and return the checks of its output, or None without any.

    Raises the API error of a blocked input.
    """
    moderation = None
    if body.moderation is not None:
        moderation = await _moderate_input(
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
        # Items may enter a conversation without a response, and so without a check; the whole context is checked then.
        items = context.items if context.conversation_id else [*context.preface, *context.input_items]
        texts, images = await _texts_and_images(items, attachments)
        texts = [body.instructions, *texts] if body.instructions else texts
        checker, action = guardrail.guard.input_checker, guardrail.guard.input_action
        found = await guardrail.decide("input", checker, action, texts, images)
        if found["blocked"]:
            if found["outcome"] == "failed":
                raise UpstreamError(found["message"])
            raise ContentFlagged(found["message"], param="input")
    return _output_checks(moderation, guardrail)


def restore_checks(response: Response, principal: Principal) -> OutputChecks | None:
    """Return the output checks of a resumed run, with the guardrail that the team has now."""
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


async def reject_if_guarded(principal: Principal) -> None:
    """Raise `Forbidden` for a team whose guardrail blocks, on endpoints that cannot hold output back."""
    guard = await directory.guardrails.aget(principal.team_id)
    if guard is None:
        return
    sides = ((guard.input_checker, guard.input_action), (guard.output_checker, guard.output_action))
    if any(checker and action == GuardAction.BLOCK.value for checker, action in sides):
        message = "Your team's guardrail blocks content, which this endpoint does not support. Use POST /v1/responses."
        raise GuardrailRequired(message)


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
    # A guardrail without an output checker has nothing left to check.
    if guardrail is not None and not guardrail.guard.output_checker:
        guardrail = None
    return OutputChecks(moderation=moderation, guardrail=guardrail) if moderation or guardrail else None
