"""Prompts that teams have stored: a request refers to a prompt by its id and gives values for its variables.

A version of a prompt has a list of messages, which may contain variables such as `{{name}}`. It may also have a model
and parameters, which are defaults for requests that do not set them. The model reads the messages before all other
items.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from django.db import transaction
from pydantic import Field

from conversations.items import MAX_TEXT, AssistantMessage, InputMessage, InputPart, InputText
from core.db.db_threads import in_db_thread
from core.errors import InvalidType, InvalidValue, MissingParameter, UnknownParameter, UnsupportedParameter
from core.http.validation import validate
from core.http.wire import Wire
from responses.models import PromptTemplate, PromptVersion
from responses.requests.parameters import EXTRA_SAMPLING
from responses.runs import access
from responses.schema import CreateResponse, parse_create
from responses.schema.create import check_combinations
from tenants import scope
from tenants.principal import Principal

PARAMETERS = (
    "include",
    "tools",
    "tool_choice",
    "text",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "max_output_tokens",
    "max_tool_calls",
    "reasoning",
    "truncation",
    "service_tier",
    "top_logprobs",
    *EXTRA_SAMPLING,
)
"""Parameters that a version may set. All others apply to a single request."""
_SECRET = ("authorization", "headers")
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")
Message = InputMessage | AssistantMessage
Variables = Mapping[str, str | InputPart]


class TemplateMessage(Wire):
    """A message of a prompt; its text may contain variables."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]


class PromptContent(Wire):
    """The content of a version."""

    messages: Annotated[list[TemplateMessage], Field(min_length=1, max_length=100)]
    model: Annotated[str, Field(max_length=200)] = ""
    parameters: dict[str, Any] = {}


async def resolve(*, principal: Principal, body: CreateResponse) -> tuple[CreateResponse, Sequence[Message]]:
    """Apply the prompt of a request, if it has one. Return the completed request, and the messages of the prompt.

    Raises the API error of an unknown prompt or wrong variables.
    """
    named = body.prompt
    if named is None:
        return body, ()

    def find() -> PromptVersion:
        with scope.team(principal.team_id):
            return access.get_prompt_version(principal=principal, prompt_id=named.id, version=named.version)

    version = await in_db_thread(find)
    preface = render(version.messages, named.variables or {})
    # Parsed like a request, so that defaults become typed values; model and input are placeholders.
    defaults = parse_create({**version.parameters, "model": "any", "input": "any"}) if version.parameters else None
    # The parameters of the request take precedence over the parameters of the prompt.
    update = {name: getattr(defaults, name) for name in version.parameters if getattr(body, name) is None}
    if not body.model:
        if not version.model:
            raise MissingParameter("model")
        update["model"] = version.model
    # The response reports the version that was used, even if the request did not name one.
    update["prompt"] = named.model_copy(update={"version": str(version.number)})
    body = body.model_copy(update=update)
    # The request and the prompt were checked separately, but together they may set parameters that exclude each other.
    check_combinations(body)
    return body, preface


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(messages: list[dict[str, Any]], variables: Variables) -> list[Message]:
    """Return the messages with the values of their variables. Raises a 400 for a missing or an unknown variable."""
    wanted = variable_names(messages)
    for name in variables:
        if name not in wanted:
            raise UnknownParameter(f"prompt.variables.{name}")
    for name in wanted:
        if name not in variables:
            raise MissingParameter(f"prompt.variables.{name}")
    rendered: list[Message] = []
    for message in map(TemplateMessage.model_validate, messages):
        if message.role == "assistant":
            text = _VARIABLE.sub(lambda match: _text_value(match[1], variables), message.content)
            rendered.append(AssistantMessage(content=text))
            continue
        parts: list[InputPart] = []
        # The pattern has one group, so `split` returns texts and variable names in turn.
        for index, piece in enumerate(_VARIABLE.split(message.content)):
            part = variables[piece] if index % 2 else piece
            if isinstance(part, str):
                part = InputText(text=part)
            # Adjacent texts are joined into one part, so that a variable with a text does not start a new part.
            if isinstance(part, InputText) and parts and isinstance(parts[-1], InputText):
                parts[-1] = InputText(text=parts[-1].text + part.text)
            elif not isinstance(part, InputText) or part.text:
                parts.append(part)
        rendered.append(InputMessage(role=message.role, content=parts))
    return rendered


def variable_names(messages: list[dict[str, Any]]) -> list[str]:
    """Return the names of the variables, in order of their first use."""
    return list(dict.fromkeys(name for message in messages for name in _VARIABLE.findall(message["content"])))


def _text_value(name: str, variables: Variables) -> str:
    # Messages of the assistant can only contain text.
    match variables[name]:
        case str() as text:
            return text
        case InputText(text=text):
            return text
        case part:
            got = f"an object of type {part.type}"
            raise InvalidType(f"prompt.variables.{name}", expected="a string", got=got)


# -- writing -----------------------------------------------------------------------------------------------------------


def parse_prompt_content(values: dict[str, Any]) -> PromptContent:
    """Check and parse the content of a new version. Raises a `BadRequest` with the first error."""
    content = validate(PromptContent, values)
    for name in content.parameters:
        if name not in PARAMETERS:
            raise UnsupportedParameter(
                f"The parameter '{name}' can only be set in a request, not in a prompt.", param=name
            )
    # Invalid values are rejected here, because otherwise every request with the prompt would fail.
    parse_create({**content.parameters, "model": "any", "input": "any"})
    for tool in content.parameters.get("tools") or ():
        if any(tool.get(name) for name in _SECRET):
            raise InvalidValue(
                "A prompt cannot store secrets. Send the authorization of tools with each request.", param="tools"
            )
    return content


@transaction.atomic
def add_version(*, prompt: PromptTemplate, content: PromptContent, created_by: str) -> PromptVersion:
    """Add a version and make it the current one. Runs inside a scope of the team."""
    # The lock on the prompt keeps concurrent calls from using the same number.
    PromptTemplate.objects.select_for_update(no_key=True).get(pk=prompt.pk)
    last = PromptVersion.objects.filter(prompt=prompt).order_by("-number").values_list("number", flat=True).first()
    version = PromptVersion.objects.create(
        team_id=prompt.team_id,
        prompt=prompt,
        number=(last or 0) + 1,
        messages=[message.model_dump() for message in content.messages],
        model=content.model,
        parameters=content.parameters,
        created_by=created_by,
    )
    prompt.current = version.number
    prompt.save(update_fields=["current"])
    return version
