"""Body of `POST /v1/responses` as typed values: the parameters, the tools, their choice and the text formats."""

from responses.schema.choices import AllowedTools
from responses.schema.create import CreateResponse, add_tools, parse_create
from responses.schema.options import JsonSchemaFormat, TextParam

__all__ = [
    "AllowedTools",
    "CreateResponse",
    "JsonSchemaFormat",
    "TextParam",
    "add_tools",
    "parse_create",
]
