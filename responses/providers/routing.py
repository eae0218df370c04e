"""Which adapter answers for a route."""

from responses.engine.turns import Model
from responses.providers.chat_completions import ChatModel
from tenants.directory import Route


def model_for(route: Route) -> Model:
    """The engine's `Model` port over whatever API the route's upstream speaks."""
    return ChatModel(route)
