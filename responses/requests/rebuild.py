"""Rebuild the request of a stored response, to run it again or to show it.

The rebuilt request contains only values that the client is known to have sent. Secrets of tools are missing, because
they are erased when the run ends.
"""

from typing import Any

from conversations.models import Placement, Section
from core.errors import BadRequest
from engine.events.types import Body
from responses.models import PromptVersion, Response
from responses.requests.context import load_history
from responses.requests.parameters import PLAIN
from responses.schema import CreateResponse, parse_create

# Parameters that have the same name in the request and in the stored parameters; included if they were sent.
_SENT = (*PLAIN, "tool_choice")
# Parameters that are included whenever they have a value: their defaults are empty, so a value was sent.
_IF_SET = ("max_tool_calls", "metadata", "prompt_cache_retention", "tools")


def rebuild_request(response: Response, *, with_history: bool = True) -> Body:
    """Return the body of the request. Call it inside a scope that sees the response's team.

    With history, the request does not name its conversation, because running it again must not append items to the
    conversation a second time. Instead, the input begins with the items of the conversation.

    Raises `BadRequest` if the response was not stored, or its prompt was deleted.
    """
    parameters = rebuild_parameters(response)
    places = Placement.objects.filter(owner=response.pk, team_id=response.team_id, section=Section.INPUT)
    items = [place.item.body for place in places.select_related("item").order_by("position")]
    if with_history and response.previous_response_id is None:
        items = [*(item.with_id() for item in load_history(response)), *items]
    if response.options.get("compaction", {}).get("at_once"):
        # The trigger is not an item, so it has no placement. It is stored in the options.
        items.append({"type": "compaction_trigger"})
    return {"model": response.model, "input": items, **parameters}


def rebuild_parameters(response: Response) -> Body:
    """Return the body of the request without model and input, which needs no items.

    Raises `BadRequest` if the response was not stored, or its prompt was deleted.
    """
    if not response.stored:
        raise BadRequest("The response was not stored, so its request is not available.")
    parameters, options = response.parameters, response.options
    sent = set(options.get("sent", ()))
    compaction: dict[str, Any] = options.get("compaction", {})
    body: Body = {}
    prompt, instructions = parameters.get("prompt"), parameters.get("instructions")
    if prompt is not None:
        versions = PromptVersion.objects.filter(team_id=response.team_id, prompt_id=prompt["id"])
        version = versions.filter(number=int(prompt["version"])).first()
        if version is None:
            raise BadRequest("The prompt of the response was deleted.")
        body["prompt"] = prompt
        # The stored instructions are the messages of the prompt. An additional first message contains the request's own
        # instructions.
        if isinstance(instructions, list) and len(instructions) > len(version.messages):
            own = instructions[0]["content"]
            body["instructions"] = own if isinstance(own, str) else "".join(part.get("text", "") for part in own)
    elif isinstance(instructions, str):
        body["instructions"] = instructions
    body |= {name: parameters[name] for name in _SENT if name in sent and parameters.get(name) is not None}
    body |= {name: parameters[name] for name in _IF_SET if parameters.get(name)}
    # The stored form of the remaining parameters differs from their form in requests.
    text: Body = {}
    if "text" in sent and (text_format := (parameters.get("text") or {}).get("format")):
        text["format"] = {name: value for name, value in text_format.items() if value is not None}
    # Included only if it was sent, because the stored text parameter includes defaults.
    if "verbosity" in sent:
        text["verbosity"] = parameters["text"]["verbosity"]
    threshold = "threshold" in compaction
    converted = {
        "include": options.get("include"),
        "client_metadata": options.get("client_metadata"),
        "reasoning": {name: value for name, value in (parameters.get("reasoning") or {}).items() if value is not None},
        "text": text,
        "moderation": options.get("moderation", {}).get("policy"),
        "prompt_cache_options": options.get("cache"),
        "stop": options.get("stop"),
        "context_management": threshold and [{"type": "compaction", "compact_threshold": compaction["threshold"]}],
    }
    body |= {name: value for name, value in converted.items() if value}
    # Sampling parameters that only some servers support are not part of the public parameters.
    body |= options.get("extra", {})
    if response.previous_response_id is not None:
        body["previous_response_id"] = response.previous_response_id
    if parameters.get("truncation") == "auto":
        body["truncation"] = "auto"
    if "input_messages" in parameters:
        body["enable_response_messages"] = True
    return body


def waiting_options(response: Response) -> Body:
    """Return the parameters with which a background response waits for decisions; empty if they are the defaults."""
    options = response.options
    if (seconds := options.get("decision_seconds")) is not None:
        return {"background_options": {"wait_for_approval": True, "approval_wait_seconds": seconds}}
    if (seconds := options.get("call_wait_seconds")) is not None:
        return {"background_options": {"approval_wait_seconds": seconds}}
    return {}


def parse_for_worker(body: Body) -> CreateResponse:
    """Parse a rebuilt body as a background request, which a worker runs."""
    return parse_create({**body, "background": True, "store": True})
