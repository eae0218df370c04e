"""Effective settings of a request: its own, and those that `configuration_update` items of its context have set.

A `configuration_update` applies from its position on, until another one follows. A setting of the request takes
precedence for that request.
"""

from collections.abc import Iterable

from conversations.items import ConfigurationUpdate, StoredItem
from responses.schema import CreateResponse, TextParam
from responses.schema.options import ReasoningParam
from responses.schema.updates import ReasoningUpdate, TextUpdate


def effective_request(body: CreateResponse, items: Iterable[StoredItem]) -> CreateResponse:
    """Return the request with reasoning effort and text format from the items' updates, unless it sets them itself."""
    updates = [item for item in items if isinstance(item, ConfigurationUpdate)]
    if not updates:
        return body
    reasoning, text = body.reasoning or ReasoningParam(), body.text or TextParam()
    efforts = [update.reasoning for update in updates if update.reasoning]
    formats = [update.text for update in updates if update.text]
    if efforts and reasoning.effort is None:
        effort = ReasoningUpdate.model_validate(efforts[-1]).effort
        reasoning = reasoning.model_copy(update={"effort": effort})
        body = body.model_copy(update={"reasoning": reasoning})
    if formats and text.format is None:
        text = text.model_copy(update={"format": TextUpdate.model_validate(formats[-1]).format})
        body = body.model_copy(update={"text": text})
    return body
