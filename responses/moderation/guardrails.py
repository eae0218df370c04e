"""Guardrails: what a team's responses are held to, whatever their requests say.

A moderation model or an HTTP hook looks at what goes in and what comes out; each decision is a row. What is blocked
ends as it does under the parameter `moderation`: an input with a 400, an answer with a failed response that shows
nothing of it.
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
from responses.models import Response
from responses.moderation.judge import Judge, Judgement, judge_input, judged, names_of, restored_judge, said_in
from responses.requests.attachments import TeamAttachments
from responses.requests.context import RequestContext
from responses.runs.ledger import RequestInfo
from responses.runs.store import Change, writer
from responses.schema import CreateResponse
from responses.vectors.embedding import Account
from tenants import directory
from tenants.directory import GuardrailSettings
from tenants.models import Checker, GuardAction, GuardrailDecision, Scope
from tenants.principal import Principal

_HOOK_SECONDS = 10.0
_MAX_ANSWER = 64 * 1024
_MAX_REASON = 500
_MAX_CATEGORIES = 50
_STRANGE = "The guardrail's hook gave no decision."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opinion:
    """What a checker says."""

    allows: bool
    categories: Sequence[str] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """A team's guardrail, at work for one response."""

    guard: GuardrailSettings
    account: Account
    model: str

    async def check_input(self, words: Sequence[str], images: Sequence[str]) -> None:
        """Raises the 400 of an input that is blocked, or the 500 of one that nobody could look at."""
        guard = self.guard
        if not guard.input_checker:
            return
        found = await self._decide("input", guard.input_checker, guard.input_action, words, images)
        if found["blocked"]:
            if found["verdict"] == "failed":
                raise UpstreamError(found["message"])
            raise ContentFlagged(found["message"], param="input")

    @property
    def holds_answers_back(self) -> bool:
        """Whether an answer is sent only after somebody has looked at it."""
        return bool(self.guard.output_checker) and self.guard.output_action == GuardAction.BLOCK.value

    async def of_output(self, bodies: Sequence[Body]) -> Judgement:
        """The decision about an answer; never raises, as the answer is there by now."""
        guard = self.guard
        if not guard.output_checker:
            return {"blocked": False}
        words = [text for body in bodies if body["type"] != "reasoning" and (text := plain_text(body))]
        return await self._decide("output", guard.output_checker, guard.output_action, words, ())

    def objection(self, found: Judgement) -> Failure | None:
        """Why an answer is not to be sent."""
        if not found["blocked"]:
            return None
        if found["verdict"] == "failed":
            return Failure(code="server_error", message=found["message"])
        return Failure(code=ContentFlagged.default_code, message=found["message"], status=ContentFlagged.status)

    async def _decide(
        self, stage: str, checker: str, action: str, words: Sequence[str], images: Sequence[str]
    ) -> Judgement:
        """Ask, and note what came of it."""
        blocks = action == GuardAction.BLOCK.value
        what = "input" if stage == "input" else "answer"
        try:
            opinion = await self._ask(checker, stage, words, images)
        except (ApiError, asyncio.CancelledError) as error:
            if stage == "input" and not isinstance(error, ApiError):
                raise
            opinion = _Opinion(allows=False, reason=error.message if isinstance(error, ApiError) else "Interrupted.")
            verdict, blocked = "failed", blocks and not self.guard.fails_open
            message = f"Your team's guardrail could not look at the {what}."
        else:
            blocked = blocks and not opinion.allows
            verdict = "passed" if opinion.allows else "blocked" if blocked else "noted"
            named = f" for {', '.join(opinion.categories)}" if opinion.categories else ""
            message = f"The {what} was blocked by your team's guardrail{named}."
        await asyncio.shield(self._note(stage, checker, verdict, opinion, blocked=blocked))
        return {"blocked": blocked, "verdict": verdict, "message": message}

    async def _note(self, stage: str, checker: str, verdict: str, opinion: _Opinion, *, blocked: bool) -> None:
        row = GuardrailDecision(
            team_id=self.account.team_id,
            response_id=self.account.object_id,
            stage=stage,
            checker=checker,
            verdict=verdict,
            blocked=blocked,
            categories=list(opinion.categories),
            reason=opinion.reason[:_MAX_REASON],
            request_id=self.account.request_id,
        )
        await writer.submit(Change(team_id=self.account.team_id, insert=[row]))

    async def _ask(self, checker: str, stage: str, words: Sequence[str], images: Sequence[str]) -> _Opinion:
        if checker == Checker.HOOK.value:
            return await self._ask_hook(stage, words, images)
        account = self.account
        # Who judges is the operator's decision: the key needs no right to it.
        principal = replace(account.principal(), scopes=frozenset({Scope.MODERATIONS_WRITE.value}))
        request = RequestInfo(request_id=account.request_id)
        found = await judged(principal, self.guard.model, request, words, images=images)
        return _Opinion(allows=not found["flagged"], categories=names_of(found)[:_MAX_CATEGORIES])

    async def _ask_hook(self, stage: str, words: Sequence[str], images: Sequence[str]) -> _Opinion:
        asked = {
            "stage": stage,
            "team": self.account.team_id,
            "model": self.model,
            "response_id": self.account.object_id,
            "text": "\n\n".join(words),
            "images": list(images),
        }
        secret = self.guard.hook_secret
        answer = await egress.default().post(
            self.guard.hook_url,
            content=orjson.dumps(asked),
            max_bytes=_MAX_ANSWER,
            timeout=_HOOK_SECONDS,
            headers={
                "content-type": "application/json",
                **({"authorization": f"Bearer {secret}"} if secret else {}),
            },
        )
        return _opinion(answer.status, answer.content)


def _opinion(status: int, content: bytes) -> _Opinion:
    """What a hook has answered; raises `UpstreamError` for what is no decision."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UpstreamError(_STRANGE) from error
    match found:
        case {"allow": bool() as allows} if 200 <= status < 300:
            given, reason = found.get("categories"), found.get("reason")
        case _:
            raise UpstreamError(_STRANGE)
    names = [name for name, applies in given.items() if applies is True] if isinstance(given, Mapping) else given
    return _Opinion(
        allows=allows,
        categories=[_plain(name)[:100] for name in names[:_MAX_CATEGORIES]] if isinstance(names, list) else (),
        reason=_plain(reason) if isinstance(reason, str) else "",
    )


def _plain(value: object) -> str:
    """Text that can be stored."""
    return str(value).replace("\0", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailChecks:
    """Everybody who judges a response: whom its request names, and its team's guardrail."""

    judge: Judge | None
    guarding: Guarding | None

    @property
    def holds_answers_back(self) -> bool:
        """Whether an answer is sent only after it was judged."""
        return any(one.holds_answers_back for one in (self.judge, self.guarding) if one is not None)

    async def of_output(self, bodies: Sequence[Body]) -> Judgement:
        """What each of them finds in an answer."""
        judge = await self.judge.of_output(bodies) if self.judge else None
        return {"judge": judge, "guarding": await self.guarding.of_output(bodies) if self.guarding else None}

    def kept(self) -> dict[str, Any]:
        """The options of the response, for a successor of the run; the guardrail is looked up again."""
        return {"moderation": self.judge.kept()} if self.judge else {}

    def shown(self, of_output: Judgement) -> dict[str, Judgement] | None:
        """`Response.moderation`, for those who asked for it."""
        return self.judge.shown(of_output["judge"]) if self.judge else None

    def objection(self, of_output: Judgement) -> Failure | None:
        """Why an answer is not to be sent."""
        objection = self.judge.objection(of_output["judge"]) if self.judge else None
        if objection is None and self.guarding is not None:
            return self.guarding.objection(of_output["guarding"])
        return objection


async def judges(
    *,
    principal: Principal,
    request: RequestInfo,
    body: CreateResponse,
    reading: RequestContext,
    content: TeamAttachments | None,
    response_id: str,
) -> GuardrailChecks | None:
    """Who judges the answer, once they have judged the input; None: nobody. Raises the error of what is blocked."""
    judge = None
    if body.moderation is not None:
        judge = await judge_input(
            principal=principal, policy=body.moderation, request=request, body=body, reading=reading, content=content
        )
    guarding = _guarding(await directory.aguardrails(principal.team_id), principal, body.model, response_id, request)
    if guarding is not None:
        words, images = await said_in(_looked_at(reading), content)
        await guarding.check_input([body.instructions, *words] if body.instructions else words, images)
    return _bench(judge, guarding)


def _looked_at(reading: RequestContext) -> Sequence[StoredItem]:
    """What a request brings. Items of a conversation may have come without any response: all of them are looked at."""
    return reading.items if reading.conversation_id else [*reading.preface, *reading.own_items]


def restored(response: Response, principal: Principal) -> GuardrailChecks | None:
    """Who judges a run that is taken over; the guardrail is the one that the team has by now."""
    kept, request = response.options.get("moderation"), RequestInfo(request_id=response.request_id)
    judge = restored_judge(kept, principal=principal, request_id=response.request_id) if kept else None
    return _bench(
        judge,
        _guarding(directory.guardrails(principal.team_id), principal, response.model, response.pk, request),
    )


async def refuse_unguarded(principal: Principal) -> None:
    """Refuse to pass on what nobody could hold back, to a team whose guardrail blocks."""
    guard = await directory.aguardrails(principal.team_id)
    if guard is None:
        return
    sides = ((guard.input_checker, guard.input_action), (guard.output_checker, guard.output_action))
    if any(checker and action == GuardAction.BLOCK.value for checker, action in sides):
        message = "Your team's guardrail holds responses back, and cannot do so here. Use POST /v1/responses."
        raise Forbidden(message, code="guardrail_required")


def _guarding(
    guard: GuardrailSettings | None, principal: Principal, model: str, response_id: str, request: RequestInfo
) -> Guarding | None:
    if guard is None or not (guard.input_checker or guard.output_checker):
        return None
    account = Account(
        team_id=principal.team_id, key_id=principal.key_id, object_id=response_id, request_id=request.request_id
    )
    return Guarding(guard=guard, account=account, model=model)


def _bench(judge: Judge | None, guarding: Guarding | None) -> GuardrailChecks | None:
    """A guardrail that looks at inputs alone has done its work."""
    if guarding is not None and not guarding.guard.output_checker:
        guarding = None
    return GuardrailChecks(judge=judge, guarding=guarding) if judge or guarding else None
