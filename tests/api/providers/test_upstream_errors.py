"""Errors that upstreams report without an HTTP status: no request is answered as if it had succeeded."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tests.support.api import Api
from tests.support.chunks import chunk, text
from tests.support.responses_upstream import message_events
from tests.support.upstream import Answer, Script, stream, whole

HI = [{"role": "user", "content": "Hi"}]
ERROR = {"object": "error", "message": "Too warm.", "type": "BadRequestError", "code": 400}
SENTENCE = "The model's server rejected the request: Too warm."
DOCUMENTS: dict[str, Any] = {
    "old vLLM": ERROR,
    "MiniMax": {"base_resp": {"status_code": 2013, "status_msg": "Too warm."}},
    "problem details": {"title": "Bad Request", "status": 400, "detail": "Too warm."},
    "errors": {"errors": [{"message": "Too warm.", "code": "invalid_request_error"}]},
    "a list": [{"error": {"code": 400, "message": "Too warm."}}],
    "NaN beside it": b'{"error": {"code": 400, "message": "Too warm.", "score": NaN}}',
}


def raw(document: Any) -> bytes:
    return document if isinstance(document, bytes) else orjson.dumps(document)


# Each error follows the beginning of an answer, and the stream continues after it.
STREAMED: dict[str, bytes] = {
    **{name: b"data: %b\n\n" % raw(document) for name, document in DOCUMENTS.items()},
    "a line without a field": b"%b\n\n" % raw(ERROR),
    "lines without a field": b"%b\n\n" % orjson.dumps(ERROR, option=orjson.OPT_INDENT_2),
    "an event with a name": b'event: error\ndata: {"message": "Too warm.", "type": "invalid_request_error"}\n\n',
    "lines with CR": b'event: error\rdata: {"message": "Too warm.", "code": 400}\r\r',
}


def response(api: Api, **body: Any) -> str:
    return str(api.post("/responses", {"input": "Hi", **body}).json()["error"]["message"])


def response_stream(api: Api, **body: Any) -> str:
    last = api.events(input="Hi", **body)[-1]
    assert last["type"] == "response.failed"
    return str(last["response"]["error"]["message"])


def completion(api: Api, **body: Any) -> str:
    answer = api.post("/chat/completions", {"messages": HI, **body})
    return str(answer.json()["error"]["message"])


def last_event(answer: str) -> Any:
    return orjson.loads(answer.strip().rpartition("data: ")[2])


def completion_stream(api: Api, **body: Any) -> str:
    answer = api.post("/chat/completions", {"messages": HI, "stream": True, **body})
    return str(last_event(answer.text)["error"]["message"])


def message(api: Api, **body: Any) -> str:
    answer = api.post("/messages", {"messages": HI, "max_tokens": 9, **body})
    return str(answer.json()["error"]["message"])


def message_stream(api: Api, **body: Any) -> str:
    answer = api.post("/messages", {"messages": HI, "max_tokens": 9, "stream": True, **body})
    return str(last_event(answer.text)["error"]["message"])


STREAMS: list[Callable[..., str]] = [response_stream, completion_stream, message_stream]
WHOLE: list[Callable[..., str]] = [response, completion, message]


@pytest.mark.parametrize("ask", STREAMS)
@pytest.mark.parametrize("shape", STREAMED)
def test_an_error_in_a_stream_ends_the_request(
    api: Api, script: Script, only_streams: None, ask: Callable[..., str], shape: str
) -> None:
    script.then(stream(chunk(content="Hel"), STREAMED[shape], *text("lo")))
    assert ask(api, model=script.model) == SENTENCE


@pytest.mark.parametrize("ask", WHOLE)
@pytest.mark.parametrize("shape", DOCUMENTS)
def test_an_error_with_status_200_ends_the_request(
    api: Api, script: Script, ask: Callable[..., str], shape: str
) -> None:
    script.then(whole(raw(DOCUMENTS[shape])))
    assert ask(api, model=script.model) == SENTENCE


@pytest.mark.parametrize("shape", STREAMED)
def test_an_error_in_the_stream_of_a_responses_upstream_ends_the_run(
    api: Api, responses_api_script: Script, shape: str
) -> None:
    responses_api_script.then(stream(*message_events("Hel"), STREAMED[shape]))
    assert response_stream(api, model=responses_api_script.model) == SENTENCE


@pytest.mark.parametrize("shape", DOCUMENTS)
def test_an_error_of_a_responses_upstream_with_status_200_ends_the_run(
    api: Api, responses_api_script: Script, shape: str
) -> None:
    responses_api_script.then(whole(raw(DOCUMENTS[shape])))
    assert response(api, model=responses_api_script.model) == SENTENCE


KINDS: dict[str, tuple[Answer, tuple[int, str | None, str]]] = {
    "a rate limit": (
        stream({"error": {"message": "Slow.", "type": "rate_limit_error"}}),
        (429, None, "rate_limit_exceeded"),
    ),
    "a model with status 400": (
        whole({"error": {"message": "No.", "code": "model_not_found"}}, status=400),
        (400, "model", "model_not_found"),
    ),
    "a filter": (
        whole({"error": {"message": "No.", "code": "content_filter"}}, status=400),
        (400, None, "content_policy_violation"),
    ),
    "a long input": (
        whole(raw([{"error": {"message": "The input token count (9) exceeds the maximum", "code": 400}}]), status=400),
        (400, "input", "context_length_exceeded"),
    ),
    "credentials": (
        stream({"error": {"message": "sk-1", "type": "authentication_error"}}),
        (500, None, "server_error"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_responses_and_chat_completions_report_the_same_error_type(api: Api, script: Script, kind: str) -> None:
    given, expected = KINDS[kind]
    script.then(given, given)
    for path, fields in (("/responses", {"input": "Hi"}), ("/chat/completions", {"messages": HI, "stream": True})):
        answer = api.post(path, {"model": script.model, **fields})
        found = (
            answer.json()["error"]
            if path == "/responses" or answer.status_code >= 400
            else last_event(answer.text)["error"]
        )
        assert (found["param"], found["code"]) == expected[1:]
        assert answer.status_code in {expected[0], 200}
