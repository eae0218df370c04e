"""The targets of a request whose model is served by several upstreams: their order, and those that support it."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

from conversations.items import InputFile
from core.db.db_threads import in_db_thread
from core.errors import ApiError
from engine.attachments import all_parts
from engine.state import ModelTraits
from responses.requests import capabilities
from responses.requests.context import RequestContext
from responses.runs import selectors
from responses.schema import CreateResponse
from tenants import directory
from tenants.capabilities import StructuredOutput
from tenants.directory import Route
from tenants.principal import Principal

_TRAITS = tuple(trait.name for trait in fields(ModelTraits))
# A format that is described in the prompt and validated works with any model.
_SAFEST_FIRST = (StructuredOutput.PROMPTED, StructuredOutput.CHECKED, StructuredOutput.NATIVE)


async def ordered(principal: Principal, body: CreateResponse, route: Route) -> Route:
    """Return the route with its targets in the order in which this request tries them.

    A response that continues another one goes to the same upstream, and the responses of a conversation or with the
    same `prompt_cache_key` go to one upstream, so that they find their beginning in its prompt cache.
    """
    previous = ""
    if body.previous_response_id is not None:
        find = partial(selectors.upstream_of, team_id=principal.team_id, response_id=body.previous_response_id)
        previous = await in_db_thread(find)
    conversation_id = body.conversation.id if body.conversation is not None else ""
    return directory.with_affinity(route, key=body.prompt_cache_key or conversation_id, upstream_id=previous)


def supporting(route: Route, body: CreateResponse, context: RequestContext) -> Route:
    """Return the route without the targets that do not support the request.

    Raises the API error of the first parameter that no target of the requested model supports: a fallback model
    replaces a model that fails, and not a model that lacks a capability.
    """
    if route.others:
        items = [*context.preface, *context.history, *context.input_items]
        images = sum(not isinstance(part, InputFile) for part in all_parts(items))
        found = [target for target in route.targets if _supports(target, body, images)]
        if found and found[0].model == route.model:
            return with_one_form_of_files(Route.through(found))
    capabilities.check(body, route)
    return route


def _supports(target: Route, body: CreateResponse, images: int) -> bool:
    can = target.capabilities
    if images and (not can.vision or (can.max_images is not None and images > can.max_images)):
        return False
    try:
        capabilities.check(body, target)
    except ApiError:
        return False
    return True


def with_one_form_of_files(route: Route) -> Route:
    """Return the route with targets that all read files, or else all get the texts of files.

    A loaded file is kept for the whole run, in the form in which it was loaded first.
    """
    if len({target.capabilities.files for target in route.targets}) == 1:
        return route
    return Route.through(
        [replace(target, capabilities=replace(target.capabilities, files=False)) for target in route.targets]
    )


def with_room(route: Route, input_tokens: int) -> Route:
    """Return the route without the targets whose context window is too small, unless it is too small for all."""
    found = [
        target
        for target in route.targets
        if target.capabilities.context_window is None or input_tokens <= target.capabilities.context_window
    ]
    return Route.through(found) if found and len(found) <= len(route.others) else route


def traits(route: Route) -> dict[str, Any]:
    """Return the values of `ModelTraits` that are safe for every target. The context window is the first target's."""
    values = {name: getattr(route.capabilities, name) for name in _TRAITS}
    if route.others:
        every = [target.capabilities for target in route.targets]
        outputs = {can.structured_output for can in every}
        values["structured_output"] = next(str(kind) for kind in _SAFEST_FIRST if kind in outputs)
        values["forced_tool_choice"] = all(can.forced_tool_choice for can in every)
    return values
