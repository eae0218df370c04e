"""The names of OpenTelemetry's semantic conventions that the platform uses, and the platform's own names.

The names for generative AI are not stable yet (https://github.com/open-telemetry/semantic-conventions-genai): when they
change, only this module has to change.
"""

# -- spans -------------------------------------------------------------------------------------------------------------

CHAT = "chat"
EXECUTE_TOOL = "execute_tool"
PROCESS_RESPONSE = "process response"

# -- resource ----------------------------------------------------------------------------------------------------------

SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"
# Ours: web, worker…
PROCESS = "ors.process"

# -- attributes --------------------------------------------------------------------------------------------------------

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK_SECONDS = "gen_ai.response.time_to_first_chunk"
# Includes cached tokens and cache writes, which the next two attributes count again: never add them up.
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - not a secret
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
# Ours: the kind of a hosted tool.
TOOL_KIND = "ors.tool.kind"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
HTTP_RESENDS = "http.request.resend_count"

# -- metrics -----------------------------------------------------------------------------------------------------------

TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - not a secret
OPERATION_DURATION = "gen_ai.client.operation.duration"
REQUEST_DURATION = "http.server.request.duration"

# -- values ------------------------------------------------------------------------------------------------------------

# Provider of the API that upstreams offer, whatever their vendor.
OPENAI = "openai"
# A tool that the platform executes, as opposed to one of the client.
EXTENSION = "extension"
# Types of tokens.
INPUT = "input"
OUTPUT = "output"
