"""`POST /v1/completions`, the legacy endpoint, passed on to the upstream of the model.

Prompts are not converted into chats: a chat template would change the input of base models and of models that complete
code.
"""

from functools import partial
from typing import Annotated, Any

from pydantic import Field, Tag
from typing_extensions import override

import limits
from conversations.items import MAX_TEXT
from core.errors import InvalidValue
from core.http.validation import validate
from core.http.wire import STRING_OR, TAG, Wire
from engine.compaction.token_estimate import tokens
from engine.converter.base import reported_usage
from engine.converter.chat import Chunk
from engine.events.types import DONE_FRAME
from engine.turn import Usage
from gateway.chat.chunks import ChunkWriter
from gateway.chat.requests import ChatStreamOptions
from gateway.streaming import AnswerReader, ForwardedAnswer, ForwardedRequest, forward
from limits import end_user_of
from limits.throttle import is_limited
from responses.moderation.guardrail import reject_if_guarded
from responses.passthrough.embeddings_moderations import ModelName, inputs_of
from responses.runs import cost_bounds
from responses.runs.identity import RequestInfo
from tenants import directory
from tenants.principal import Principal

_MAX_PROMPTS = 2048
# The documented default of `max_tokens`.
_DEFAULT_TOKENS = 16
_Prompt = Annotated[str, Field(max_length=MAX_TEXT)]
_Tokens = list[Annotated[int, Field(ge=0)]]


class CreateCompletion(Wire):
    """A request for completions of prompts, which may be given as tokens of the model."""

    model: ModelName
    prompt: (
        Annotated[
            Annotated[_Prompt, Tag(f"{TAG}text")]
            | Annotated[list[_Prompt], Field(min_length=1, max_length=_MAX_PROMPTS), Tag(f"{TAG}texts")]
            | Annotated[_Tokens, Field(min_length=1), Tag(f"{TAG}tokens")]
            | Annotated[list[_Tokens], Field(min_length=1, max_length=_MAX_PROMPTS), Tag(f"{TAG}token_lists")],
            inputs_of("text", "texts", "tokens", "token_lists"),
        ]
        | None
    )
    best_of: Annotated[int, Field(ge=1, le=20)] | None = None
    echo: bool | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[str | Annotated[list[str], Field(max_length=4)], STRING_OR] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    suffix: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    user: str | None = None


def parse_completion(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that were sent. Raises the 400 of the first error."""
    sent = {name: value for name, value in values.items() if value is not None or name in {"model", "prompt"}}
    body = validate(CreateCompletion, sent)
    if body.stream_options is not None and not body.stream:
        raise InvalidValue(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    if body.best_of is not None and (body.stream and body.best_of > 1):
        raise InvalidValue("Completions with 'best_of' greater than 1 cannot be streamed.", param="best_of")
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise InvalidValue("'best_of' must be greater than or equal to 'n'.", param="best_of")
    return sent


class CompletionReader(AnswerReader):
    """Reader of the usage of a completion. Chunks are written like the chunks of chat completions."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        options = values.get("stream_options") or {}
        self._writer = ChunkWriter(
            own_id=None,
            wants_usage=bool(options.get("include_usage")),
            obfuscates=bool(options.get("include_obfuscation")),
        )
        self._streams = bool(values.get("stream"))
        self._prompt = values.get("prompt")
        self._texts: list[str] = []
        self._usage: Usage | None = None

    @override
    def read(self, document: Chunk) -> None:
        super().read(document)
        self._usage = reported_usage(document.get("usage")) or self._usage
        match document.get("choices"):
            case [*choices]:
                self._texts += [str(choice.get("text") or "") for choice in choices if isinstance(choice, dict)]

    @override
    def write(self, chunk: Chunk) -> bytes:
        return self._writer.write(chunk)

    @override
    def end(self, *, done: bool) -> bytes:
        return self._writer.end() + DONE_FRAME

    @override
    def usage(self, outcome: str) -> Usage:
        if self._usage is not None:
            return self._usage
        # Each streamed piece is about one token; the text of a whole answer has to be estimated.
        written = len(self._texts) if self._streams else tokens(*self._texts)
        if outcome == "failed":
            return Usage()
        return Usage(input_tokens=self.estimate_input(), output_tokens=written, estimated=True)

    @override
    def estimate_input(self) -> int:
        match self._prompt:
            case str() as text:
                return tokens(text)
            case [int(), *_] as given:
                return len(given)
            case [str(), *_] as texts:
                return tokens(*map(str, texts))
            case [list(), *_] as lists:
                return sum(map(len, lists))
        return 0


async def forward_completion(*, principal: Principal, values: dict[str, Any], request: RequestInfo) -> ForwardedAnswer:
    """Send prompts to be completed. Raises `ApiError`."""
    # Guardrails check responses only. A team whose guardrail blocks content must not get around it here.
    await reject_if_guarded(principal)
    route = await directory.aroute(principal, values["model"], is_flex=request.batch)
    sent = {name: value for name, value in values.items() if name != "stream_options"}
    if values.get("stream"):
        # The usage is always requested, for its record. Only clients that asked for it get it.
        sent["stream_options"] = {"include_usage": True}
    if is_limited(principal):
        sent["max_tokens"] = await _max_tokens(principal, values)
    choices = max(values.get("best_of") or 1, values.get("n") or 1) * _prompts(values["prompt"])
    forwarded = ForwardedRequest(
        path="/completions",
        endpoint="completions",
        supports="completions",
        values=sent,
        max_output_tokens=choices * sent.get("max_tokens", _DEFAULT_TOKENS),
        most=partial(cost_bounds.of_body, sent),
    )
    new_reader = partial(CompletionReader, values)
    return await forward(forwarded, new_reader, principal=principal, route=route, request=request)


async def _max_tokens(principal: Principal, values: dict[str, Any]) -> int:
    """Return the maximum output tokens: the lowest of the request's maximum (16 by default) and the caller's limits."""
    given = values.get("max_tokens")
    allowed = [given if given is not None else _DEFAULT_TOKENS]
    for subject in await limits.applying(principal, end_user_of(values.get("user"))):
        allowed += [subject.values["max_output_tokens"]] if "max_output_tokens" in subject.values else []
    return min(allowed)


def _prompts(prompt: Any) -> int:
    # A list contains texts or lists of tokens, unless it is a single prompt of tokens.
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
