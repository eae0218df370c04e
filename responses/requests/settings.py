"""Which settings are in force: what a request says itself, and what its conversation has settled before.

A `configuration_update` among the items holds from there on, until another one follows or a request says otherwise for
itself. Source: section 3.1c of the API surface specification.
"""

from collections.abc import Iterable

from conversations.items import ConfigurationUpdate, StoredItem
from responses.schema import CreateResponse, TextParam
from responses.schema.options import ReasoningParam
from responses.schema.updates import ReasoningUpdate, TextUpdate


def effective_request(body: CreateResponse, items: Iterable[StoredItem]) -> CreateResponse:
    """The request with the effort and the format that the items settle, where it says nothing of them itself."""
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
