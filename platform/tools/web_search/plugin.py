"""Plug-in of the `web_search` tool, which uses the team's search engine or the server's."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import WebSearchCall
from core import egress
from engine.calls.toolbox import HostedTool
from responses.schema.tools import ToolParam
from responses.tools.plugin import Limitation, NewToolRequest, ToolPlugin, ToolRequest
from tenants import directory
from tenants.directory import SearchEngineSettings
from tenants.models import ToolKind
from tools.web_search import card
from tools.web_search.engines import ENGINES
from tools.web_search.execution import WebSearchTool
from tools.web_search.history import past_call
from tools.web_search.pages import PageReader
from tools.web_search.schema import WEB_SEARCH_TYPES, WebSearchParam, WebSearchPreviewParam


class WebSearchPlugin(ToolPlugin):
    """Web search under all of its names."""

    types = WEB_SEARCH_TYPES
    params = (WebSearchParam, WebSearchPreviewParam)
    history = {WebSearchCall: past_call}
    cards = {"web_search_call": card.call}
    kind = ToolKind.WEB_SEARCH

    @override
    async def limitation(self, tool: ToolParam, *, team_id: str) -> Limitation | None:
        if not isinstance(tool, WebSearchParam | WebSearchPreviewParam):
            return None
        # OpenAI then searches its own copies of pages. The results of search engines here are always from the web.
        if isinstance(tool, WebSearchParam) and tool.external_web_access is False:
            return Limitation(
                message="Web search without external web access is not supported by this server.",
                param="external_web_access",
            )
        if await directory.search_engine.aget(team_id) is None:
            return Limitation(
                message=f"The tool type '{tool.type}' is not supported here: no search engine is configured. An "
                "operator can set SEARXNG_URL or add a search engine in the admin.",
                param="type",
            )
        kinds = tool.search_content_types or ()
        if "image" not in kinds:
            return None
        return Limitation(
            message="Searching for images is not supported by this server.",
            param="search_content_types",
            drops_tool="text" not in kinds,
        )

    @override
    async def resolve(self, request: NewToolRequest) -> SearchEngineSettings | None:
        return await directory.search_engine.aget(request.principal.team_id)

    @override
    def restore(self, request: ToolRequest, secrets: str) -> SearchEngineSettings | None:
        return directory.search_engine(request.account.team_id)

    @override
    def tools(
        self, request: ToolRequest, resolved: SearchEngineSettings | None, earlier: Sequence[HostedTool]
    ) -> list[HostedTool]:
        # An operator may have removed the search engine since the request was checked, or before a run is resumed.
        if resolved is None:
            return []
        make, public = ENGINES[resolved.kind]
        engine = make(base_url=resolved.base_url or public, key=resolved.api_key, egress=egress.default())
        searches = [item for item in request.items if isinstance(item, WebSearchCall)]
        found = [result.url for item in searches for result in item.results or () if result.url]
        return [
            WebSearchTool(tool, engine=engine, reader=PageReader(egress.default()), found=found)
            for tool in request.offered(WEB_SEARCH_TYPES)
        ]
