"""The `web_search` and `web_search_preview` tools."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints
from typing_extensions import override

from core.http.wire import Wire
from responses.schema.tools import ToolParam, present

WEB_SEARCH_TYPES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
"""Types of the tool. The dated ones are OpenAI's snapshots and behave the same here."""
WEB_SEARCH_FUNCTIONS = ("web_search", "open_page", "find_in_page")
"""Functions that the model calls to use the tool."""
MAX_DOMAINS = 100
# A domain without scheme or path, as OpenAI requires.
_Domain = Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$")]
ContentTypes = Annotated[list[Literal["text", "image"]], Field(max_length=2)]
_Place = Annotated[str, Field(max_length=200)]


class WebSearchFilters(Wire):
    """Filters for the search. They also apply to subdomains."""

    allowed_domains: Annotated[list[_Domain], Field(max_length=MAX_DOMAINS)] | None = None
    # Only Anthropic's web search has this parameter.
    blocked_domains: Annotated[list[_Domain], Field(max_length=MAX_DOMAINS)] | None = None

    def shown(self) -> dict[str, Any]:
        """Return the filters as the response shows them."""
        return {"allowed_domains": self.allowed_domains, **present(blocked_domains=self.blocked_domains)}


class UserLocation(Wire):
    """The approximate location of the user."""

    type: Literal["approximate"] | None = None
    city: _Place | None = None
    country: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2}$")] | None = None
    region: _Place | None = None
    timezone: _Place | None = None

    def shown(self) -> dict[str, Any]:
        """Return the location as the response shows it."""
        # `approximate` is the only type, and clients may omit it.
        return {**self.model_dump(), "type": "approximate"}


class _Search(ToolParam):
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None

    @override
    def upstream_names(self) -> list[tuple[str, str]]:
        return [(name, "") for name in WEB_SEARCH_FUNCTIONS]

    def _settings(self) -> dict[str, Any]:
        location = self.user_location.shown() if self.user_location else None
        # Defaults are returned explicitly, as OpenAI does.
        return {"search_context_size": self.search_context_size or "medium", "user_location": location}


class WebSearchParam(_Search):
    """Search the Internet for sources related to the prompt."""

    type: Literal["web_search", "web_search_2025_08_26"]
    filters: WebSearchFilters | None = None
    external_web_access: bool | None = None
    indexed_web_access: bool | None = None
    search_content_types: ContentTypes | None = None

    @override
    def shown(self) -> dict[str, Any]:
        filters = self.filters.shown() if self.filters else None
        sent = present(
            external_web_access=self.external_web_access,
            indexed_web_access=self.indexed_web_access,
            search_content_types=self.search_content_types,
        )
        return {"type": self.type, "filters": filters, **self._settings(), **sent}


class WebSearchPreviewParam(_Search):
    """Search the Internet for sources related to the prompt, with the parameters of the preview version."""

    type: Literal["web_search_preview", "web_search_preview_2025_03_11"]
    search_content_types: ContentTypes | None = None

    @override
    def shown(self) -> dict[str, Any]:
        return {"type": self.type, **self._settings(), **present(search_content_types=self.search_content_types)}
