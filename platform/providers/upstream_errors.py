"""Errors of upstreams: parsing of all shapes that servers use, and conversion to the failures that clients see.

Servers report an error with an HTTP status, in a document with status 200, or as an event of a stream. The text and the
codes are in different places in each server's errors.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httpx2
import orjson
import regex

from core.errors import (
    FINAL,
    SERVER_ERROR,
    UPSTREAM_REJECTIONS,
    ApiError,
    ContentFlagged,
    ContextTooLong,
    Failure,
    ModelRejected,
    Overloaded,
    RateLimited,
    RequestRejected,
    UpstreamError,
)

# It is the quota of the platform's account, not of the client: only an operator can raise it.
QUOTA_EXHAUSTED = Failure.of(RateLimited("The platform's quota with the model provider is exhausted.", headers=FINAL))
# A misconfiguration of this platform, hence not a 401 for the client.
CREDENTIALS_REJECTED = Failure.of(UpstreamError("The model's server rejected this platform's credentials."))
# Maximum length of a message that contains an upstream's text.
MAX_MESSAGE = 550
_REJECTED = "The model's server rejected the request."
# Maximum depth of nested errors: gateways wrap the errors of other gateways.
_MAX_DEPTH = 8
_MAX_ENTRIES = 5
_NESTED = ("error", "errors", "base_resp", "detail", "response")
_TEXTS = ("message", "msg", "status_msg", "error_message", "error_msg", "errorMessage", "error_description", "title")
_NAMES = ("code", "type", "status", "error_code", "error_type", "errorCode", "reason")
_STATUSES = ("code", "status", "status_code", "statusCode", "http_status", "error_code")
# A document without choices that has one of these fields is an answer of another endpoint.
_CONTENT = frozenset(("data", "delta", "b64_json", "output", "results", "text", "usage"))
# Seconds or milliseconds, or a date of HTTP.
_WAIT = re.compile(r"\d{1,9}(\.\d{1,9})?|[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT")
# Addresses that would reveal the operator's machines in a text that clients read.
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|(?<![\w.:/])(?:/[\w.@-]+){3,}")
_TRACEBACK = "Traceback (most recent call last)"
# An unknown code may be any string. It is shown only if it looks like a code.
_CODE = regex.compile(r"[a-z_]{1,60}")


class _Kind(Enum):
    """Meaning of an error for the client."""

    RATE_LIMIT = auto()
    QUOTA = auto()
    CREDENTIALS = auto()
    MODEL = auto()
    CONTEXT = auto()
    CONTENT = auto()
    REJECTED = auto()
    OVERLOADED = auto()
    SERVER = auto()


# Codes and types, in lower case and without underscores, because some servers write `RateLimitError`. Servers put them
# into `code`, `type` or `status`.
_KINDS = {
    **dict.fromkeys(
        (
            "ratelimit", "ratelimited", "ratelimiterror", "ratelimitexceeded", "ratelimitreached",
            "ratelimitreachederror", "resourceexhausted", "slowdown", "throttled", "throttlingexception",
            "throttlingerror", "toomanyrequests", "toomanyrequestserror", "limitrequests", "limitburstrate",
            "throttling", "throttlingallocationquota", "throttlingburstrate", "throttlingratequota",
            "servicetiercapacityexceeded",
        ),
        _Kind.RATE_LIMIT,
    ),
    **dict.fromkeys(
        (
            "arrearage", "billingerror", "exceededcurrentquotaerror", "insufficientbalance", "insufficientbalanceerror",
            "insufficientcredits", "insufficientquota", "insufficientquotaerror", "paymentrequired", "quotaexceeded",
            "accountoverdueerror", "allocationquotafreetieronly", "insufficientuserquota", "usagelimitexceeded",
            "usagelimitreached",
        ),
        _Kind.QUOTA,
    ),
    **dict.fromkeys(
        (
            "accessdenied", "apikeyinvalid", "authenticationerror", "authenticationfailed", "forbidden",
            "incorrectapikeyerror", "invalidapikey", "invalidauthenticationerror", "permissiondenied",
            "permissiondeniederror", "permissionerror", "unauthenticated", "unauthorized",
        ),
        _Kind.CREDENTIALS,
    ),
    **dict.fromkeys(
        (
            "deploymentnotfound", "invalidmodel", "modelnotexist", "modelnotfound", "modelnotfounderror",
            "notfounderror", "resourcenotfounderror", "unknownmodel",
        ),
        _Kind.MODEL,
    ),
    **dict.fromkeys(
        (
            "contextlengthexceeded", "contextlengthexceedederror", "contextlimitexceeded", "contextwindowexceeded",
            "contextwindowexceedederror", "exceedcontextsizeerror", "modelmaxprompttokensexceeded", "prompttoolong",
            "tokenslimitreached",
        ),
        _Kind.CONTEXT,
    ),
    **dict.fromkeys(
        (
            "contentfilter", "contentfiltererror", "contentpolicyviolation", "contentpolicyviolationerror",
            "datainspectionfailed", "moderationblocked", "responsibleaipolicyviolation", "sensitivecontent",
            "inputimagesensitivecontentdetected", "inputtextsensitivecontentdetected",
            "outputtextsensitivecontentdetected", "sensitivecontentdetected",
        ),
        _Kind.CONTENT,
    ),
    **dict.fromkeys(
        (
            "engineoverloaded", "engineoverloadederror", "modeloverloaded", "overloaded", "overloadederror",
            "serverisoverloaded", "serviceunavailable", "serviceunavailableerror", "unavailable",
        ),
        _Kind.OVERLOADED,
    ),
    # All other meanings take precedence: OpenAI sends this type together with any code.
    **dict.fromkeys(
        (
            "badrequest", "badrequesterror", "invalidargument", "invalidparameter", "invalidparametererror",
            "invalidrequest", "invalidrequesterror", "unprocessableentityerror", "validationerror",
        ),
        _Kind.REJECTED,
    ),
}  # fmt: skip
_CODES = {code.replace("_", ""): code for code in UPSTREAM_REJECTIONS}
_BY_STATUS = {
    401: _Kind.CREDENTIALS,
    402: _Kind.QUOTA,
    403: _Kind.CREDENTIALS,
    404: _Kind.MODEL,
    429: _Kind.RATE_LIMIT,
    503: _Kind.OVERLOADED,
    # Anthropic's status, which gateways pass on.
    529: _Kind.OVERLOADED,
}
# Status codes of MiniMax: https://platform.minimax.io/docs/api-reference/errorcode
_BASE_RESP = {
    1002: "rate_limit_exceeded",
    1004: "invalid_api_key",
    1008: "insufficient_balance",
    1026: "content_filter",
    1027: "content_filter",
    1039: "rate_limit_exceeded",
    1041: "rate_limit_exceeded",
    1042: "invalid_request_error",
    2013: "invalid_request_error",
    2049: "invalid_api_key",
    2056: "rate_limit_exceeded",
}
# Words for an input that exceeds the context window, of OpenAI, Anthropic, Gemini, Mistral, xAI, Cerebras, Bedrock,
# DashScope, Moonshot, Zhipu, Volcengine, SiliconFlow, watsonx, vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI,
# OpenVINO and TensorRT-LLM. Few of them send a code. Bedrock's "Too many tokens, please wait" is about a span of time.
_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|maximum context|(prompt|input) is too (long|large)"
    r"|too many (input )?tokens(?!, please wait| per )"
    r"|maximum (prompt|input|model|sequence) length|maximum (allowed )?(input|prompt) tokens|max_model_len"
    r"|token count.{0,60}(exceeds|only supports)|exceeds? the maximum number of (input )?tokens|model token limit"
    r"|reduce the length of the (messages|prompt|input)|range of input length|prompt exceeds max|输入.{0,10}过长|超长"
    r"|inputs?`?['\"]? (tokens \+|must have less than \d+ tokens)|max_num_tokens|tokens exceed"
    r"|too large for \S+ model\. max size: \d+ tokens|max_seq_len|(input|prompt) length.{0,40}exceeds the maximum"
    r"|prompt tokens.{0,30}exceeds|input tokens.{0,30}cannot exceed|exceed max message tokens"
    r"|max_tokens must be at least 1, got -\d",
    re.IGNORECASE,
)
_UNKNOWN_MODEL = re.compile(
    r"\bmodel:? [`'\"]?[\w./:@+-]+[`'\"]?,? (is |was |could )?(does not exist|doesn't exist|not (be )?found)"
    r"|\bmodel (does )?not (exist|found)|\b(invalid|unknown|no such) model\b|is not a valid model|model_not_found"
    r"|model identifier is invalid|模型不存在",
    re.IGNORECASE,
)
# Google and xAI report an invalid key with status 400. Other servers have a status or a name for it.
_WRONG_KEY = re.compile(r"api key (not valid|expired)|incorrect api key|invalid authorization header", re.IGNORECASE)
# An exhausted quota is reported by Zhipu and Cloudflare with status 429, by Anthropic with 400, by xAI, SiliconFlow and
# OpenRouter with 403 and by Fireworks with 412. Another request some seconds later would be refused too.
_NO_QUOTA = re.compile(
    r"insufficient balance|balance is insufficient|\bin arrears\b|used up your|credit balance is too low"
    r"|used all available credits|credits or licenses|spending limit|key limit exceeded"
    r"|(reached|exceeded|hit) your (\w+ ){0,3}usage limits?\b",
    re.IGNORECASE,
)
_NO_QUOTA_STATUSES = {None, 400, 403, 412, 429}
_TOO_MANY = re.compile(r"\brate[ -]limit|too many requests|throttling", re.IGNORECASE)
_BUSY = re.compile(r"\boverloaded\b|\bmodel (is )?busy\b", re.IGNORECASE)
# DeepSeek, xAI and Zhipu send no code for flagged content.
_FLAGGED = re.compile(
    r"content[ _]?(management )?(policy|filter)|inappropriate content|was flagged|responsible ai policy|usage policies"
    r"|content exists risk|usage guidelines|sensitive content|敏感内容",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """An upstream's error: its text, its unchanged codes and types, and the HTTP status in its body, if any."""

    message: str = ""
    names: tuple[str, ...] = ()
    status: int | None = None


def reported_error(document: Mapping[str, Any]) -> ErrorReport | None:
    """Return the error that a document with status 200 or an event reports; None if it reports none."""
    choices, error = document.get("choices"), document.get("error")
    if error or (not choices and isinstance(error, dict)) or "error" in (document.get("type"), document.get("object")):
        return parse_error(document)
    groq = document.get("x_groq")
    if isinstance(groq, dict) and groq.get("error"):
        # Groq's reason for stopping a stream early is in this field.
        return parse_error(groq)
    base = document.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in (0, "0", None):
        return parse_error(base)
    if isinstance(choices, list) and choices:
        error = choices[0].get("error") if isinstance(choices[0], dict) else None
        return parse_error(error) if error else None
    if document.get("errors") or document.get("success") is False:
        return parse_error(document)
    if _CONTENT.isdisjoint(document) and any(_is_text_of_error(document.get(name)) for name in (*_TEXTS, "detail")):
        return parse_error(document)
    return None


def _is_text_of_error(value: object) -> bool:
    # A message of a chat has a role.
    return bool(value) and isinstance(value, str | list | dict) and "role" not in value


def parse_error(error: object, *, depth: int = 0) -> ErrorReport:
    """Return an error of any shape: a text, an object with or around an error, or a list of them."""
    if depth < _MAX_DEPTH:
        match error:
            case str():
                return _of_text(error.strip(), depth)
            case list():
                return _joined(parse_error(entry, depth=depth + 1) for entry in error[:_MAX_ENTRIES])
            case dict():
                return _of_object(error, depth)
    return ErrorReport()


def _of_text(text: str, depth: int) -> ErrorReport:
    # Gateways put the JSON of the error that they got into a string.
    start = text.find("{")
    if start >= 0 and text.endswith("}"):
        try:
            inner = parse_error(orjson.loads(text[start:]), depth=depth + 1)
        except orjson.JSONDecodeError:
            inner = ErrorReport()
        if inner.message:
            before = text[:start].strip(" :-")
            return ErrorReport(
                message=f"{before}: {inner.message}" if before else inner.message,
                names=inner.names,
                status=inner.status,
            )
    return ErrorReport(message=text)


def _joined(reports: Iterable[ErrorReport]) -> ErrorReport:
    known = list(reports)
    return ErrorReport(
        message="; ".join(report.message for report in known if report.message),
        names=tuple(name for report in known for name in report.names),
        status=next((report.status for report in known if report.status is not None), None),
    )


def _of_object(error: dict[str, Any], depth: int) -> ErrorReport:
    inner = {name: parse_error(error[name], depth=depth + 1) for name in _NESTED if error.get(name)}
    texts = [_text(error[name], depth) for name in _TEXTS if error.get(name)]
    names = [error[name] for name in _NAMES if isinstance(error.get(name), str) and error[name] != "error"]
    if texts and isinstance(error.get("error"), str):
        # `error` is the name and the text is beside it: {"error": "Bad Request", "message": …}.
        names.append(inner.pop("error").message)
    message = next((report.message for report in (*inner.values(), *texts) if report.message), "")
    if isinstance(place := error.get("loc"), list) and message:
        # FastAPI lists the invalid fields. The types in this list describe single defects, not the error.
        names = ["validation_error"]
        message = f"{'.'.join(map(str, place))}: {message}"
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        # OpenRouter's own text says only that a provider failed.
        inner["raw"] = raw = parse_error(metadata["raw"], depth=depth + 1)
        message = ": ".join(filter(None, [message, raw.message]))
    if "status_msg" in error and isinstance(number := error.get("status_code"), int) and number in _BASE_RESP:
        names.append(_BASE_RESP[number])
    if isinstance(details := error.get("details"), list):
        # Google names the reason in this field.
        names += [
            entry["reason"] for entry in details if isinstance(entry, dict) and isinstance(entry.get("reason"), str)
        ]
    reports = [*inner.values(), *texts]
    return ErrorReport(
        message=message,
        names=(*names, *(name for report in reports for name in report.names)),
        status=_first_status([*map(error.get, _STATUSES), *(report.status for report in reports)]),
    )


def error_names(error: object) -> list[str]:
    """Return the codes and types in an error of any shape. They contain no text of the input."""
    return [name for name in dict.fromkeys(parse_error(error).names) if _CODE.fullmatch(name)]


def _text(message: object, depth: int) -> ErrorReport:
    report = parse_error(message, depth=depth + 1)
    if report.message or isinstance(message, str) or not isinstance(message, dict | list):
        return report
    return ErrorReport(message=orjson.dumps(message).decode(), names=report.names, status=report.status)


def _first_status(values: Iterable[object]) -> int | None:
    for value in values:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[45]\d\d", value) else value
        if isinstance(number, int) and httpx2.codes.BAD_REQUEST <= number < 600:
            return number
    return None


def failure_from_status(status: int, body: object, *, headers: Mapping[str, str] | None = None) -> Failure:
    """Return the failure for an HTTP error of an upstream, with the time after which it asks for a retry.

    Its message contains the unchanged text of the upstream; see `for_client`.
    """
    report = parse_error(body)
    if isinstance(body, str) and body.startswith("<"):
        # The page of a proxy.
        report = ErrorReport()
    return _failure(report, status, headers=headers)


def failure_from_error(error: object) -> Failure:
    """Return the failure for an error inside of an answer: a report, or an error of any shape.

    Unlike the error page of a failed server, such an error has a text for clients, which is kept.
    """
    report = error if isinstance(error, ErrorReport) else parse_error(error)
    failure = _failure(report, report.status)
    if failure.code != SERVER_ERROR or _kind(report, report.status) is not _Kind.SERVER:
        return failure
    return _quoting(UpstreamError, failure.message, without_addresses(report.message))


def without_addresses(text: str) -> str:
    """Return a text of an upstream without addresses of machines and without the lines of a traceback."""
    if _TRACEBACK in text:
        # The last line of a traceback is the error.
        text = text.strip().rpartition("\n")[2]
    return _ADDRESS.sub("[…]", text[: 4 * MAX_MESSAGE])


def _kind(report: ErrorReport, status: int | None) -> _Kind:
    words = report.message[:MAX_MESSAGE]
    # A text such as "Too Many Requests" can also be a name.
    named = [_KINDS[name] for name in map(_squashed, (*report.names, words)) if name in _KINDS]
    if specific := [kind for kind in named if kind is not _Kind.REJECTED]:
        return specific[0]
    if status != httpx2.codes.TOO_MANY_REQUESTS and _TOO_LONG.search(words):
        return _Kind.CONTEXT
    if status in {None, 400, 422} and _UNKNOWN_MODEL.search(words):
        return _Kind.MODEL
    if status in {None, 400} and _WRONG_KEY.search(words):
        return _Kind.CREDENTIALS
    if status in _NO_QUOTA_STATUSES and _NO_QUOTA.search(words):
        return _Kind.QUOTA
    if status is None and _TOO_MANY.search(words):
        return _Kind.RATE_LIMIT
    if status is None and _BUSY.search(words):
        return _Kind.OVERLOADED
    if status in {None, 400, 403} and _FLAGGED.search(words):
        return _Kind.CONTENT
    if status is None:
        is_rejected = named or any(_squashed(name) in _CODES for name in report.names)
        return _Kind.REJECTED if is_rejected else _Kind.SERVER
    return _BY_STATUS.get(status, _Kind.REJECTED if httpx2.codes.is_client_error(status) else _Kind.SERVER)


def _squashed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name[:80].lower())


def _failure(report: ErrorReport, status: int | None, *, headers: Mapping[str, str] | None = None) -> Failure:
    named = {name: headers.get(name, "") for name in ("retry-after", "retry-after-ms")} if headers else {}
    # Clients get these headers unchanged, so only a number or a date is kept.
    wait = {name: value for name, value in named.items() if _WAIT.fullmatch(value)}
    match _kind(report, status):
        case _Kind.QUOTA:
            return QUOTA_EXHAUSTED
        case _Kind.RATE_LIMIT:
            text = "The model's server is receiving too many requests. Please retry."
            return Failure.of(RateLimited(text, headers=wait))
        case _Kind.CREDENTIALS:
            return CREDENTIALS_REJECTED
        case _Kind.MODEL:
            return Failure.of(ModelRejected())
        case _Kind.CONTEXT:
            text = "The input is too long for the model."
            return _quoting(ContextTooLong, text, report.message)
        case _Kind.CONTENT:
            return _quoting(ContentFlagged, _REJECTED, report.message)
        case _Kind.REJECTED:
            code = next((_CODES[name] for name in map(_squashed, report.names) if name in _CODES), "invalid_prompt")
            general = _REJECTED if report.message else "The request was rejected."
            return _quoting(RequestRejected, general, report.message, code=code)
        case _Kind.OVERLOADED:
            text = "The model's server is overloaded."
            return Failure.of(Overloaded(text, headers=wait))
        case _Kind.SERVER:
            code = next((name for name in report.names if _CODE.fullmatch(name)), "")
            shown = code if status is None else f"HTTP {status}"
            return Failure.of(UpstreamError(f"The model's server failed{f' ({shown})' if shown else ''}."))


def _quoting(kind: type[ApiError], general: str, text: str, *, code: str | None = None) -> Failure:
    message = f"{general.removesuffix('.')}: {text}" if text else general
    return Failure.of(kind(message, code=code), general=general if text else "")
