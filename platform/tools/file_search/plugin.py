"""Plug-in of the `file_search` tool, which searches the team's vector stores."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import FileSearchCall
from core.db.db_threads import in_db_thread
from engine.calls.toolbox import HostedTool
from responses.tools.plugin import NewToolRequest, ToolPlugin, ToolRequest
from tenants.models import ToolKind
from tools.file_search import card
from tools.file_search.execution import FileSearchTool
from tools.file_search.history import past_call
from tools.file_search.schema import FileSearchToolParam
from tools.file_search.searcher import StoreSearcher
from tools.vectors import search


class FileSearchPlugin(ToolPlugin):
    """Search in the vector stores that a request names."""

    types = ("file_search",)
    params = (FileSearchToolParam,)
    history = {FileSearchCall: past_call}
    cards = {"file_search_call": card.call}
    kind = ToolKind.FILE_SEARCH

    @override
    async def resolve(self, request: NewToolRequest) -> list[StoreSearcher]:
        def check() -> list[StoreSearcher]:
            for index, tool in enumerate(request.params):
                if isinstance(tool, FileSearchToolParam):
                    param = f"tools[{index}].vector_store_ids"
                    search.open_stores(team_id=request.account.team_id, store_ids=tool.vector_store_ids, param=param)
            return self.restore(request, "")

        return await in_db_thread(check)

    @override
    def restore(self, request: ToolRequest, secrets: str) -> list[StoreSearcher]:
        return [StoreSearcher(request.account, tool) for tool in request.offered(self.types)]

    @override
    def tools(
        self, request: ToolRequest, resolved: Sequence[StoreSearcher], earlier: Sequence[HostedTool]
    ) -> list[HostedTool]:
        return [FileSearchTool(searcher) for searcher in resolved]
