"""Detection of the API that an upstream offers: chat completions, the Responses API, or both."""

import asyncio
import re
from collections.abc import Sequence
from http import HTTPStatus

from providers.clients import clients_for
from providers.http_client import ErrorStatus, RequestFailed
from tenants.directory import UpstreamEndpoint
from tenants.models import WireApi

_PATHS = {WireApi.CHAT_COMPLETIONS: "/chat/completions", WireApi.RESPONSES: "/responses"}
# A server that has the endpoint refuses a request without a model.
_INVALID = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
# The Responses API of OpenAI has reasoning summaries and encrypted reasoning. Those of other servers have less than
# their chat completions.
_OPENAI = re.compile(r"https://(api\.openai\.com|[a-z0-9-]+\.openai\.azure\.com)/")


async def detect_api(upstream: UpstreamEndpoint) -> str:
    """Return the API to use with an upstream. The requests are invalid, so that no model answers them."""
    offers = await asyncio.gather(*(_offers(upstream, path) for path in _PATHS.values()))
    return preferred_api(upstream.base_url, [api for api, is_offered in zip(_PATHS, offers, strict=True) if is_offered])


def preferred_api(base_url: str, offered: Sequence[WireApi]) -> str:
    """Return the API to use with a server that offers these. Chat completions, if it offers none that is known."""
    is_preferred = _OPENAI.match(base_url) is not None or WireApi.CHAT_COMPLETIONS not in offered
    api = WireApi.RESPONSES if WireApi.RESPONSES in offered and is_preferred else WireApi.CHAT_COMPLETIONS
    return api.value


async def _offers(upstream: UpstreamEndpoint, path: str) -> bool:
    try:
        answer = await clients_for(upstream).http.post(path, b"{}")
    except ErrorStatus as error:
        return error.status in _INVALID
    except RequestFailed:
        return False
    await answer.close()
    return False
