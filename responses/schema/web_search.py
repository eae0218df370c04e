"""The tools `web_search` and `web_search_preview`. Source: section 3.2 of the API surface specification."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from conversations.items import Wire

SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
"""The names of the tool; the dated ones are snapshots of OpenAI's, and the same here."""
STEPS = ("web_search", "open_page", "find_in_page")
"""The functions that a model has for it."""
MOST_DOMAINS = 100
_Domain = Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$")]
_Place = Annotated[str, Field(max_length=200)]


class WebSearchFilters(Wire):
    """Which pages may be read: those of these domains, and of what is below them."""

    allowed_domains: Annotated[list[_Domain], Field(max_length=MOST_DOMAINS)] | None = None


class UserLocation(Wire):
    """Roughly where the user is."""

    type: Literal["approximate"] | None = None
    city: _Place | None = None
    country: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2}$")] | None = None
    region: _Place | None = None
    timezone: _Place | None = None

    def shown(self) -> dict[str, Any]:
        """As the response echoes it."""
        return {**self.model_dump(), "type": "approximate"}


class _Search(Wire):
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None

    def _settings(self) -> dict[str, Any]:
        location = self.user_location.shown() if self.user_location else None
        return {"search_context_size": self.search_context_size or "medium", "user_location": location}


class WebSearchParam(_Search):
    """A search in the web."""

    type: Literal["web_search", "web_search_2025_08_26"]
    filters: WebSearchFilters | None = None
    external_web_access: bool | None = None

    def shown(self) -> dict[str, Any]:
        """The tool as the response object echoes it."""
        filters = self.filters.model_dump() if self.filters else None
        sent = {} if self.external_web_access is None else {"external_web_access": self.external_web_access}
        return {"type": self.type, "filters": filters, **self._settings(), **sent}


class WebSearchPreviewParam(_Search):
    """The same, as it was called first."""

    type: Literal["web_search_preview", "web_search_preview_2025_03_11"]
    search_content_types: list[Literal["text", "image"]] | None = None

    def shown(self) -> dict[str, Any]:
        """The tool as the response object echoes it."""
        sent = {} if self.search_content_types is None else {"search_content_types": self.search_content_types}
        return {"type": self.type, **self._settings(), **sent}
