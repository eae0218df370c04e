"""Selection of the adapter for a route."""

from responses.engine.turn import LanguageModel
from responses.providers.chat_completions import ChatModel
from responses.providers.responses_api import ResponsesModel
from tenants.directory import Route
from tenants.models import WireApi


def model_for(route: Route) -> LanguageModel:
    """Return the adapter for the API of the route's upstream."""
    return ResponsesModel(route) if route.upstream.wire_api == WireApi.RESPONSES else ChatModel(route)
