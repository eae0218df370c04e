"""Plug-in of the `web_search` tool, which uses the team's search engine or the server's."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import WebSearchCall
from kernel import egress
from kernel.errors import UnsupportedValue
from responses.engine.calls.toolbox import HostedTool
from responses.tools.plugin import NewToolRequest, ToolPlugin, ToolRequest
from responses.tools.web_search import card
from responses.tools.web_search.engines import ENGINES
from responses.tools.web_search.execution import WebSearchTool
from responses.tools.web_search.history import past_call
from responses.tools.web_search.pages import PageReader
from responses.tools.web_search.schema import WEB_SEARCH_TYPES, WebSearchParam, WebSearchPreviewParam
from tenants import directory
from tenants.directory import SearchEngineSettings
from tenants.models import ToolKind


class WebSearchPlugin(ToolPlugin):
    """Web search under all of its names."""

    types = WEB_SEARCH_TYPES
    params = (WebSearchParam, WebSearchPreviewParam)
    history = {WebSearchCall: past_call}
    cards = {"web_search_call": card.call}
    kind = ToolKind.WEB_SEARCH

    @override
    async def resolve(self, request: NewToolRequest) -> SearchEngineSettings:
        settings = await directory.search_engine.aget(request.principal.team_id)
        if settings is None:
            index = next(index for index, tool in enumerate(request.params) if tool.type in self.types)
            raise UnsupportedValue(
                f"The tool type '{request.params[index].type}' is not supported here: no search engine is "
                "configured. An operator can set SEARXNG_URL or add a search engine in the admin.",
                param=f"tools[{index}].type",
            )
        return settings

    @override
    def restore(self, request: ToolRequest, secrets: str) -> SearchEngineSettings | None:
        return directory.search_engine(request.account.team_id)

    @override
    def tools(
        self, request: ToolRequest, resolved: SearchEngineSettings | None, earlier: Sequence[HostedTool]
    ) -> list[HostedTool]:
        # An operator may have removed the search engine before a run is resumed.
        if resolved is None:
            return []
        make, public = ENGINES[resolved.kind]
        engine = make(base_url=resolved.base_url or public, key=resolved.api_key, egress=egress.default())
        return [
            WebSearchTool(tool, engine=engine, reader=PageReader(egress.default()))
            for tool in request.offered(WEB_SEARCH_TYPES)
        ]
