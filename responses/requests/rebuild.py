"""Asking again: the request that a stored response was the answer to, out of what is kept of it.

Only what the client sent is in it, as far as that is known; secrets of tools are not, since nobody keeps them.
"""

from typing import Any

from conversations.models import Placement, Section
from kernel.errors import BadRequest
from responses.engine.events.types import Body
from responses.models import PromptVersion, Response
from responses.requests.context import load_history
from responses.requests.parameters import PLAIN
from responses.schema import CreateResponse, parse_create

# Parameters whose names are the same in the request and in what is kept, where they were sent.
_SENT = (*PLAIN, "tool_choice")
# Those that are sent wherever they say anything.
_ALWAYS = ("max_tool_calls", "metadata", "prompt_cache_retention", "tools")


def rebuild_request(response: Response, *, with_history: bool = True) -> Body:
    """The body of the request, with its own input. Raises `BadRequest` where the response keeps no content, or its
    prompt is gone. Runs inside a scope that sees the response's team.

    What stood in its conversation comes first in the input: whoever asks again is not to write into the conversation a
    second time. Without the history it is left out.
    """
    if not response.stored:
        raise BadRequest("It was not stored: nobody knows what was asked.")
    kept, options = response.parameters, response.options
    sent = set(options.get("sent", ()))
    body: Body = {"model": response.model, "input": _input(response, with_history=with_history)}
    body |= _instructions(response)
    body |= {name: kept[name] for name in _SENT if name in sent and kept.get(name) is not None}
    body |= {name: kept[name] for name in _ALWAYS if kept.get(name)}
    body |= {name: value for name, value in _shaped(kept, options, sent).items() if value}
    body |= options.get("extra", {})
    if response.previous_response_id is not None:
        body["previous_response_id"] = response.previous_response_id
    if kept.get("truncation") == "auto":
        body["truncation"] = "auto"
    if "input_messages" in kept:
        body["enable_response_messages"] = True
    return body


def parsed(body: Body) -> CreateResponse:
    """The body as a request that a worker is to run."""
    return parse_create({**body, "background": True, "store": True})


def _input(response: Response, *, with_history: bool) -> list[Body]:
    places = Placement.objects.filter(owner=response.pk, team_id=response.team_id, section=Section.INPUT)
    own = [place.item.body for place in places.select_related("item").order_by("position")]
    reads_on = with_history and response.previous_response_id is None
    before = [item.with_id() for item in load_history(response)] if reads_on else []
    trigger = [{"type": "compaction_trigger"}] if response.options.get("compaction", {}).get("at_once") else []
    return [*before, *own, *trigger]


def _instructions(response: Response) -> Body:
    """The instructions, or the prompt, in front of whose messages they stand as the first."""
    prompt, written = response.parameters.get("prompt"), response.parameters.get("instructions")
    if prompt is None:
        return {"instructions": written} if isinstance(written, str) else {}
    versions = PromptVersion.objects.filter(team_id=response.team_id, prompt_id=prompt["id"])
    version = versions.filter(number=int(prompt["version"])).first()
    if version is None:
        raise BadRequest("The prompt that it was made with is gone.")
    body: Body = {"prompt": prompt}
    if isinstance(written, list) and len(written) > len(version.messages):
        body["instructions"] = written[0]["content"] if isinstance(written[0]["content"], str) else _words(written[0])
    return body


def _words(message: Body) -> str:
    return "".join(part.get("text", "") for part in message["content"])


def _shaped(kept: Body, options: Body, sent: set[str]) -> Body:
    """What is kept in another shape than it is sent in."""
    compaction: dict[str, Any] = options.get("compaction", {})
    threshold = "threshold" in compaction
    plan = [{"type": "compaction", "compact_threshold": compaction["threshold"]}] if threshold else None
    return {
        "include": options.get("include"),
        "reasoning": {name: value for name, value in (kept.get("reasoning") or {}).items() if value is not None},
        "text": _text(kept.get("text") or {}, sent),
        "moderation": options.get("moderation", {}).get("policy"),
        "prompt_cache_options": options.get("cache"),
        "context_management": plan,
    }


def _text(text: Body, sent: set[str]) -> Body:
    shown: Body = {}
    if "text" in sent and text.get("format"):
        shown["format"] = {name: value for name, value in text["format"].items() if value is not None}
    if "verbosity" in sent:
        shown["verbosity"] = text["verbosity"]
    return shown
