"""Which adapter answers for a route."""

from responses.engine.turn import LanguageModel
from responses.providers.chat_completions import ChatModel
from responses.providers.responses_api import ResponsesModel
from tenants.directory import Route
from tenants.models import WireApi


def model_for(route: Route) -> LanguageModel:
    """The engine's `LanguageModel` port over whatever API the route's upstream speaks."""
    return ResponsesModel(route) if route.upstream.wire_api == WireApi.RESPONSES else ChatModel(route)
