"""Questions of MCP servers: a server may answer a call with requests for input (multi round-trip requests).

The call is repeated with the answers to all requests and with the state that the server has sent. People answer one
question at a time. The questions that follow, and the answers so far, are kept with the current question.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from core.json.storable_json import without_nul
from engine.calls.answer_forms import UnusableQuestion, check_question
from engine.calls.questions import Question
from tools.mcp.servers import RemoteServer

if TYPE_CHECKING:
    from mcp_types import InputRequest, InputRequiredResult

MAX_REQUESTS = 10
MAX_BYTES = 256 * 1024
"""Maximum size of the requests and the state of one result, which are stored until all answers are given."""


class UnusableRequest(Exception):
    """A server asked for input that no person can give here. The message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpQuestions:
    """Requests for input of one result: `open` by their keys, the first one is asked; `answers` are those so far.

    `state` is sent back to the server as it is.
    """

    open: Mapping[str, Question]
    answers: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None

    def stored(self) -> dict[str, Any]:
        """Return the questions as JSON: the current question, and all that is needed to continue the call."""
        _, current = next(iter(self.open.items()))
        open_questions = [[key, question.stored()] for key, question in self.open.items()]
        return {**current.stored(), "open": open_questions, "answers": {**self.answers}, "state": self.state}

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> "McpQuestions":
        """Return the questions from the JSON that `stored` returned."""
        open_questions = {key: Question.restored(question) for key, question in stored["open"]}
        return cls(open=open_questions, answers=stored["answers"], state=stored["state"])

    def answered(self, answer: Mapping[str, Any]) -> "McpQuestions":
        """Return the questions after the answer to the current one."""
        key, *_ = self.open
        rest = {name: question for name, question in self.open.items() if name != key}
        return McpQuestions(open=rest, answers={**self.answers, key: {**answer}}, state=self.state)


def questions_of(result: "InputRequiredResult", server: RemoteServer) -> McpQuestions:
    """Return the questions of a result; none if it has only a state. Raises `UnusableRequest`."""
    requests, state = result.input_requests or {}, result.request_state
    if len(requests) > MAX_REQUESTS:
        raise UnusableRequest(f"it sent more than {MAX_REQUESTS} requests for input at once")
    try:
        found = McpQuestions(open={key: _question(request, server) for key, request in requests.items()}, state=state)
        stored = found.stored() if requests else {"state": state}
        size = len(orjson.dumps(stored))
    except orjson.JSONEncodeError as error:
        raise UnusableRequest("its requests for input are not valid JSON") from error
    if size > MAX_BYTES:
        raise UnusableRequest("its requests for input are too large")
    # The state and the keys must reach the server unchanged, so characters that cannot be stored cannot be left out.
    if without_nul(stored) != stored:
        raise UnusableRequest("its requests for input contain NUL characters")
    return found


def _question(request: "InputRequest", server: RemoteServer) -> Question:
    from mcp_types import ElicitRequest, ElicitRequestURLParams

    if not isinstance(request, ElicitRequest):
        raise UnusableRequest(f"it requested '{request.method}', which is not supported")
    message = server.redact(request.params.message)
    if isinstance(request.params, ElicitRequestURLParams):
        question = Question(message=message, url=request.params.url)
    else:
        question = Question(message=message, schema=request.params.requested_schema)
    try:
        check_question(question)
    except UnusableQuestion as unusable:
        raise UnusableRequest(f"it asked a question that cannot be shown: {unusable}") from unusable
    return question
