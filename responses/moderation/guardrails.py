"""Guardrails: checks that a team's responses must pass, independent of what their requests ask for.

A moderation model or an HTTP hook checks the input and the output; each decision is stored as a row. Blocked content
ends as under the parameter `moderation`: input with a 400, output with a failed response that shows none of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from conversations.items import StoredItem, plain_text
from kernel import egress
from kernel.errors import ApiError, ContentFlagged, Failure, Forbidden, UpstreamError
from responses.engine.events.types import Body
from responses.engine.moderation import ModerationResult
from responses.models import Response
from responses.moderation.checks import (
    ModerationCheck,
    check_input,
    flagged_categories,
    moderate,
    restore_moderation_check,
    texts_and_images,
)
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext
from responses.runs.identity import RequestInfo
from responses.runs.store import Change, writer
from responses.schema import CreateResponse
from responses.vectors.embedding import UsageAccount
from tenants import directory
from tenants.directory import GuardrailSettings
from tenants.models import Checker, GuardAction, GuardrailDecision, Scope
from tenants.principal import Principal

_HOOK_SECONDS = 10.0
_MAX_ANSWER = 64 * 1024
_MAX_REASON = 500
_MAX_CATEGORIES = 50
_INVALID_ANSWER = "The guardrail hook returned no valid decision."


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

    async def check_input(self, texts: Sequence[str], images: Sequence[str]) -> None:
        """Check input. Raises `ContentFlagged` (400) if it is blocked, `UpstreamError` if it could not be checked."""
        guard = self.guard
        if not guard.input_checker:
            return
        found = await self._decide("input", guard.input_checker, guard.input_action, texts, images)
        if found["blocked"]:
            if found["outcome"] == "failed":
                raise UpstreamError(found["message"])
            raise ContentFlagged(found["message"], param="input")

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
        return await self._decide("output", guard.output_checker, guard.output_action, texts, ())

    def failure_for(self, result: ModerationResult) -> Failure | None:
        """Return the failure of a blocked output: it was refused, or could not be checked."""
        if not result["blocked"]:
            return None
        if result["outcome"] == "failed":
            return Failure(code="server_error", message=result["message"])
        return Failure(code=ContentFlagged.default_code, message=result["message"], status=ContentFlagged.status)

    async def _decide(
        self, stage: str, checker: str, action: str, texts: Sequence[str], images: Sequence[str]
    ) -> ModerationResult:
        blocks = action == GuardAction.BLOCK.value
        try:
            decision = await self._ask(checker, stage, texts, images)
        except (ApiError, asyncio.CancelledError) as error:
            # A cancelled input check means that the client has left before anything was stored. Output is decided even
            # then: the run has ended, and what it stores depends on the decision.
            if stage == "input" and not isinstance(error, ApiError):
                raise
            decision = _Decision(allows=False, reason=error.message if isinstance(error, ApiError) else "Interrupted.")
            # The team chooses what happens if the checker fails: `fails_open` lets the content pass.
            outcome, blocked = "failed", blocks and not self.guard.fails_open
            message = f"Your team's guardrail could not check the {stage}."
        else:
            blocked = blocks and not decision.allows
            outcome = "passed" if decision.allows else "blocked" if blocked else "noted"
            named = f" for {', '.join(decision.categories)}" if decision.categories else ""
            message = f"The {stage} was blocked by your team's guardrail{named}."
        # Shielded: a client that leaves must not erase the decision.
        await asyncio.shield(self._store(stage, checker, outcome, decision, blocked=blocked))
        return {"blocked": blocked, "outcome": outcome, "message": message}

    async def _store(self, stage: str, checker: str, outcome: str, decision: _Decision, *, blocked: bool) -> None:
        row = GuardrailDecision(
            team_id=self.account.team_id,
            response_id=self.account.object_id,
            stage=stage,
            checker=checker,
            outcome=outcome,
            blocked=blocked,
            categories=list(decision.categories),
            reason=decision.reason[:_MAX_REASON],
            request_id=self.account.request_id,
        )
        await writer.submit(Change(team_id=self.account.team_id, insert=[row]))

    async def _ask(self, checker: str, stage: str, texts: Sequence[str], images: Sequence[str]) -> _Decision:
        if checker == Checker.HOOK.value:
            return await self._ask_hook(stage, texts, images)
        account = self.account
        # The operator has chosen the moderation model, so the caller's key needs no scope for it.
        principal = replace(account.principal(), scopes=frozenset({Scope.MODERATIONS_WRITE.value}))
        request = RequestInfo(request_id=account.request_id)
        result = await moderate(principal, self.guard.model, request, texts, images=images)
        return _Decision(allows=not result["flagged"], categories=flagged_categories(result)[:_MAX_CATEGORIES])

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
            content=orjson.dumps(question),
            max_bytes=_MAX_ANSWER,
            timeout=_HOOK_SECONDS,
            headers={
                "content-type": "application/json",
                **({"authorization": f"Bearer {secret}"} if secret else {}),
            },
        )
        return _parse_decision(answer.status, answer.content)


def _parse_decision(status: int, content: bytes) -> _Decision:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UpstreamError(_INVALID_ANSWER) from error
    match found:
        case {"allow": bool() as allows} if 200 <= status < 300:
            given, reason = found.get("categories"), found.get("reason")
        case _:
            raise UpstreamError(_INVALID_ANSWER)
    # Hooks may send categories as a list of names, or as OpenAI's mapping of names to booleans.
    names = [name for name, applies in given.items() if applies is True] if isinstance(given, Mapping) else given
    return _Decision(
        allows=allows,
        categories=[_storable(name)[:100] for name in names[:_MAX_CATEGORIES]] if isinstance(names, list) else (),
        reason=_storable(reason) if isinstance(reason, str) else "",
    )


def _storable(value: object) -> str:
    # PostgreSQL has no NUL in text.
    return str(value).replace("\0", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailChecks:
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
) -> GuardrailChecks | None:
    """Check the input of a request and return the checks of its output, or None without any.

    Raises the API error of a blocked input.
    """
    moderation = None
    if body.moderation is not None:
        moderation = await check_input(
            principal=principal,
            policy=body.moderation,
            request=request,
            body=body,
            context=context,
            attachments=attachments,
        )
    guard = await directory.aguardrails(principal.team_id)
    guardrail = _guardrail_check(guard, principal, body.model, response_id, request)
    if guardrail is not None:
        texts, images = await texts_and_images(_checked_items(context), attachments)
        await guardrail.check_input([body.instructions, *texts] if body.instructions else texts, images)
    return _output_checks(moderation, guardrail)


def _checked_items(context: RequestContext) -> Sequence[StoredItem]:
    # Items may enter a conversation without a response, and so without a check: there the whole context is checked.
    return context.items if context.conversation_id else [*context.preface, *context.input_items]


def restore_checks(response: Response, principal: Principal) -> GuardrailChecks | None:
    """Return the output checks of a resumed run, with the guardrail that the team has now."""
    options, request = response.options.get("moderation"), RequestInfo(request_id=response.request_id)
    moderation = (
        restore_moderation_check(options, principal=principal, request_id=response.request_id) if options else None
    )
    guard = directory.guardrails(principal.team_id)
    guardrail = _guardrail_check(guard, principal, response.model, response.pk, request)
    return _output_checks(moderation, guardrail)


async def reject_if_guarded(principal: Principal) -> None:
    """Raise `Forbidden` for a team whose guardrail blocks, on endpoints that cannot hold output back."""
    guard = await directory.aguardrails(principal.team_id)
    if guard is None:
        return
    sides = ((guard.input_checker, guard.input_action), (guard.output_checker, guard.output_action))
    if any(checker and action == GuardAction.BLOCK.value for checker, action in sides):
        message = "Your team's guardrail blocks content, which this endpoint does not support. Use POST /v1/responses."
        raise Forbidden(message, code="guardrail_required")


def _guardrail_check(
    guard: GuardrailSettings | None, principal: Principal, model: str, response_id: str, request: RequestInfo
) -> GuardrailCheck | None:
    if guard is None or not (guard.input_checker or guard.output_checker):
        return None
    account = UsageAccount(
        team_id=principal.team_id, key_id=principal.key_id, object_id=response_id, request_id=request.request_id
    )
    return GuardrailCheck(guard=guard, account=account, model=model)


def _output_checks(moderation: ModerationCheck | None, guardrail: GuardrailCheck | None) -> GuardrailChecks | None:
    # A guardrail that checks only input has done its work by now.
    if guardrail is not None and not guardrail.guard.output_checker:
        guardrail = None
    return GuardrailChecks(moderation=moderation, guardrail=guardrail) if moderation or guardrail else None
