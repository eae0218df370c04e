"""Body of `POST /v1/responses` as typed values: the parameters, the tools, their choice and the text formats."""

from responses.schema.choices import AllowedTools, FunctionChoice, ToolChoice
from responses.schema.create import CreateResponse, add_tools, parse_create
from responses.schema.options import Format, JsonSchemaFormat, TextParam
from responses.schema.tools import FunctionToolParam, ToolParam

__all__ = [
    "AllowedTools",
    "CreateResponse",
    "Format",
    "FunctionChoice",
    "FunctionToolParam",
    "JsonSchemaFormat",
    "TextParam",
    "ToolChoice",
    "ToolParam",
    "add_tools",
    "parse_create",
]
