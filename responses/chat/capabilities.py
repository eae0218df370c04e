"""What a chat completion demands of its model, held against what its operator says; and what the upstream gets."""

from collections.abc import Iterator
from typing import Any

from kernel.errors import UnsupportedParameter, UnsupportedValue
from responses.chat.messages import FilePart, ImagePart, UserMessage
from responses.chat.requests import ChatRequest, CreateChatCompletion
from tenants.directory import Route

_EXTRA_SAMPLING = ("top_k", "min_p", "repetition_penalty", "chat_template_kwargs")
# What is for the platform alone, or written anew.
_OURS = ("store", "metadata", "stream", "stream_options")


def check(asked: ChatRequest, route: Route) -> None:
    """Refuse by name what the model cannot do."""
    body, can = asked.body, route.capabilities
    _check_images(body, route)
    _check_files(body, route)
    if not can.logprobs and body.logprobs:
        message = f"The model '{route.model}' does not give log probabilities."
        raise UnsupportedParameter(message, param="logprobs")
    if (
        body.reasoning_effort
        and can.reasoning_efforts is not None
        and body.reasoning_effort not in can.reasoning_efforts
    ):
        known = ", ".join(f"'{effort}'" for effort in can.reasoning_efforts)
        message = f"Unsupported value: '{body.reasoning_effort}' is not supported with the '{route.model}' model."
        raise UnsupportedValue(f"{message} Supported values are: {known}.", param="reasoning_effort")
    for name in _EXTRA_SAMPLING:
        if not can.extra_sampling and getattr(body, name) is not None:
            message = f"Unsupported parameter: '{name}' is not supported with the '{route.model}' model."
            raise UnsupportedParameter(message, param=name)


def _check_images(body: CreateChatCompletion, route: Route) -> None:
    can = route.capabilities
    images = [where for where, part in _parts(body) if isinstance(part, ImagePart)]
    if images and not can.vision:
        raise UnsupportedValue("The model does not read images.", param=images[0])
    if can.max_images is not None and len(images) > can.max_images:
        message = f"The model reads at most {can.max_images} images, but {len(images)} are given."
        raise UnsupportedValue(message, param=images[can.max_images])


def _check_files(body: CreateChatCompletion, route: Route) -> None:
    for where, part in _parts(body):
        if not isinstance(part, FilePart):
            continue
        if part.file.file_id is not None:
            message = "Files of the team cannot be named in chat completions; send 'file_data'."
            raise UnsupportedValue(message, param=f"{where}.file.file_id")
        if not route.capabilities.files:
            raise UnsupportedValue("The model does not read files.", param=where)


def _parts(body: CreateChatCompletion) -> Iterator[tuple[str, Any]]:
    """The parts of what users say, each with its path."""
    for index, message in enumerate(body.messages):
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            for place, part in enumerate(message.content):
                yield f"messages[{index}].content[{place}]", part


def upstream_values(asked: ChatRequest, route: Route) -> dict[str, Any]:
    """The body for the upstream, but for its `stream`: what the client sent, in the words that the model knows."""
    values = {name: value for name, value in asked.values.items() if name not in _OURS}
    if not route.capabilities.developer_role:
        values["messages"] = [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in values["messages"]
        ]
    return {**values, "model": route.upstream_model}
