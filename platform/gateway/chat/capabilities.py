"""Checks of a chat completion against the capabilities of its model, and the request body for the upstream."""

from collections.abc import Iterator, Mapping
from typing import Any

from core.errors import ApiError, InvalidFile, UnsupportedParameter, UnsupportedValue
from engine.attachments import is_data_url
from gateway.chat.messages import ChatAudioPart, ChatFilePart, ChatImagePart, ChatUserMessage
from gateway.chat.requests import ChatRequest, CreateChatCompletion
from providers.chat_messages import as_object, shorten_call_ids
from providers.dialects import OUTPUT_LIMITS, dialect_of
from tenants.capabilities import Capabilities
from tenants.directory import Route

_EXTRA_SAMPLING = ("top_k", "min_p", "repetition_penalty", "chat_template_kwargs")
# Used by the platform itself, or replaced for the upstream.
_NOT_FORWARDED = ("store", "metadata", "stream", "stream_options")


def check(request: ChatRequest, route: Route) -> None:
    """Raise `UnsupportedParameter` or `UnsupportedValue` for anything that the model does not support."""
    body, capabilities = request.body, route.capabilities
    images = [param for param, part in _user_parts(body) if isinstance(part, ChatImagePart)]
    if images and not capabilities.vision:
        raise UnsupportedValue("The model does not support images.", param=images[0])
    if capabilities.max_images is not None and len(images) > capabilities.max_images:
        raise UnsupportedValue(
            f"The model supports at most {capabilities.max_images} images, but the request has {len(images)}.",
            param=images[capabilities.max_images],
        )
    for param, part in _user_parts(body):
        if isinstance(part, ChatFilePart) and part.file.file_id is not None:
            raise UnsupportedValue(
                "Uploaded files are not supported in chat completions. Send the content in 'file_data' instead.",
                param=f"{param}.file.file_id",
            )
        if isinstance(part, ChatFilePart) and not capabilities.files:
            raise UnsupportedValue("The model does not support files.", param=param)
        if isinstance(part, ChatFilePart) and _is_url(part.file.file_data):
            raise InvalidFile("The file's data is not valid base64.", param=f"{param}.file.file_data")
        if isinstance(part, ChatAudioPart) and _is_url(part.input_audio.data):
            raise InvalidFile("The audio's data is not valid base64.", param=f"{param}.input_audio.data")
    if not capabilities.logprobs and body.logprobs:
        raise UnsupportedParameter(
            f"Unsupported parameter: 'logprobs' is not supported with the '{route.model}' model.", param="logprobs"
        )
    if (
        body.reasoning_effort
        and capabilities.reasoning_efforts is not None
        and body.reasoning_effort not in capabilities.reasoning_efforts
    ):
        known = ", ".join(f"'{effort}'" for effort in capabilities.reasoning_efforts)
        message = f"Unsupported value: '{body.reasoning_effort}' is not supported with the '{route.model}' model."
        raise UnsupportedValue(f"{message} Supported values are: {known}.", param="reasoning_effort")
    # Extensions of vLLM and others; servers that do not know them reject the whole request.
    for name in _EXTRA_SAMPLING:
        if not capabilities.extra_sampling and getattr(body, name) is not None:
            raise UnsupportedParameter(
                f"Unsupported parameter: '{name}' is not supported with the '{route.model}' model.", param=name
            )


def supporting(request: ChatRequest, route: Route) -> Route:
    """Return the route without the targets that do not support the request.

    If no target of the requested model supports it, the route is returned unchanged.
    """
    found = [target for target in route.targets if _is_supported(request, target)]
    return Route.through(found) if found and found[0].model == route.model else route


def _is_supported(request: ChatRequest, target: Route) -> bool:
    try:
        check(request, target)
    except ApiError:
        return False
    return True


def _is_url(data: str | None) -> bool:
    # Some upstreams would download a URL. A colon distinguishes URLs from base64.
    return data is not None and not is_data_url(data) and ":" in data


def _user_parts(body: CreateChatCompletion) -> Iterator[tuple[str, Any]]:
    """Yield the content parts of user messages, each with its path."""
    for index, message in enumerate(body.messages):
        if isinstance(message, ChatUserMessage) and not isinstance(message.content, str):
            for place, part in enumerate(message.content):
                yield f"messages[{index}].content[{place}]", part


def upstream_values(request: ChatRequest, route: Route) -> dict[str, Any]:
    """Return the upstream's request body without `stream`: the client's values, adapted to the model."""
    dialect = dialect_of(route)
    values = {name: value for name, value in request.values.items() if name not in _NOT_FORWARDED}
    stated = [values.pop(name) for name in OUTPUT_LIMITS if values.get(name) is not None]
    values["messages"] = [_adapted(message, route.capabilities) for message in values["messages"]]
    if dialect.short_call_ids:
        shorten_call_ids(values["messages"])
    if stated:
        values[dialect.limit] = stated[0]
    return {**values, "model": route.upstream_model}


def _adapted(message: Mapping[str, Any], can: Capabilities) -> dict[str, Any]:
    """Return a message as strict and older servers accept it."""
    adapted = {**message}
    # Older servers know only `system`, for which `developer` is OpenAI's newer name.
    if message["role"] == "developer" and not can.developer_role:
        adapted["role"] = "system"
    if calls := message.get("tool_calls"):
        adapted["tool_calls"] = [{**call, **_readable(call)} for call in calls]
    return adapted


def _readable(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    return {} if function is None else {"function": {**function, "arguments": as_object(function["arguments"])}}
