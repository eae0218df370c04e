"""Guardrails: checks that all responses of a team must pass, by a moderation model or an HTTP hook."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import orjson

from conversations.items import plain_text
from core import egress
from core.errors import (
    ApiError,
    ContentFlagged,
    Failure,
    GuardrailRequired,
    RequestRejected,
    ServerError,
    UpstreamError,
)
from core.json.large_work import off_loop
from core.redaction import redact, secrets_of_url
from engine.events.types import Body
from engine.moderation import ModerationResult
from responses.moderation.model import flagged_categories, moderate
from responses.runs.identity import RequestInfo, UsageAccount
from responses.runs.rows import new_row
from responses.runs.store import Change, writer
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The answer of a checker. The settings of the team decide if it blocks the content."""

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
    """True if the response is stored. Otherwise, reasons that may repeat content are not stored."""

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
        """Return the failure of an output that was refused or could not be checked, or None."""
        if not result["blocked"]:
            return None
        if result["outcome"] == "failed":
            return Failure.of(ServerError(result["message"]))
        return Failure.of(ContentFlagged(result["message"]))

    async def decide(
        self, stage: str, checker: str, action: str, texts: Sequence[str], images: Sequence[str]
    ) -> ModerationResult:
        """Ask a checker, store its decision and return it. Raises only the cancellation of an input check."""
        blocks = action == GuardAction.BLOCK.value
        try:
            is_hook = checker == Checker.HOOK.value
            decision = await (self._ask_hook(stage, texts, images) if is_hook else self._ask_model(texts, images))
        except (ApiError, asyncio.CancelledError) as error:
            # If an input check is cancelled, the client has disconnected before anything was stored. A cancelled output
            # check still makes a decision, because the run has ended and its stored output depends on the decision.
            if stage == "input" and not isinstance(error, ApiError):
                raise
            decision = _Decision(allows=False, reason=self._reason_of(error))
            # The team chooses the effect of a failed check: with `fails_open`, the content passes.
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
        await writer.submit(Change(team_id=self.account.team_id, insert=[row]))
        return {"blocked": blocked, "outcome": outcome, "message": message}

    async def _ask_model(self, texts: Sequence[str], images: Sequence[str]) -> _Decision:
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
        """Return the reason why a check failed, for the row of the decision."""
        if not isinstance(error, ApiError):
            return "Interrupted."
        # The text comes from the moderation model and may repeat the content.
        if isinstance(error, RequestRejected) and not self.is_stored:
            return "The moderation model rejected the request."
        return error.message

    def _without_secrets(self, value: object) -> str:
        """Return a text of another server without secrets, so that the text may be stored and shown."""
        # PostgreSQL has no NUL in text.
        text = str(value).replace("\0", "")
        return redact(text, [self.guard.hook_secret, *secrets_of_url(self.guard.hook_url)])


async def reject_if_guarded(principal: Principal) -> None:
    """Raise `Forbidden` if the team's guardrail can block content. For endpoints that cannot check output first."""
    guard = await directory.guardrails.aget(principal.team_id)
    if guard is None:
        return
    sides = ((guard.input_checker, guard.input_action), (guard.output_checker, guard.output_action))
    if any(checker and action == GuardAction.BLOCK.value for checker, action in sides):
        message = "Your team's guardrail blocks content, which this endpoint does not support. Use POST /v1/responses."
        raise GuardrailRequired(message)
