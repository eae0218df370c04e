"""Plug-in of the `image_generation` tool, which calls an image model of the caller, the team or the server."""

from collections.abc import Sequence

from typing_extensions import override

from conversations.items import ImageGenerationCall, InputImage
from engine.calls.toolbox import HostedTool
from responses.passthrough.images import UNCONFIGURED, TeamImageGenerator, check_image_model
from responses.requests.attachments import TeamAttachments
from responses.schema.tools import ToolParam
from responses.tools.plugin import Limitation, NewToolRequest, ToolPlugin, ToolRequest
from tenants import directory
from tenants.capabilities import Capabilities
from tenants.models import Scope, ToolKind
from tools.image_generation import card
from tools.image_generation.execution import NAME, ImageGenerationTool
from tools.image_generation.history import past_call
from tools.image_generation.schema import ImageGenerationParam


class ImageGenerationPlugin(ToolPlugin):
    """Generation and editing of images."""

    types = (NAME,)
    params = (ImageGenerationParam,)
    history = {ImageGenerationCall: past_call}
    cards = {"image_generation_call": card.call}
    kind = ToolKind.IMAGE_GENERATION

    @override
    async def limitation(self, tool: ToolParam, *, team_id: str) -> Limitation | None:
        is_named = isinstance(tool, ImageGenerationParam) and tool.model is not None
        if is_named or await directory.image_model.aget(team_id):
            return None
        return Limitation(message=f"The tool type '{tool.type}' is not supported here: {UNCONFIGURED}", param="type")

    @override
    async def resolve(self, request: NewToolRequest) -> None:
        principal = request.principal
        for index, tool in enumerate(request.params):
            if not isinstance(tool, ImageGenerationParam):
                continue
            await check_image_model(principal, tool.model, param=f"tools[{index}]")
            if tool.input_image_mask is None:
                continue
            if tool.input_image_mask.file_id is not None:
                # Without this check a key could read files through the mask of an image.
                principal.require(Scope.FILES_READ)
            mask = InputImage(type="input_image", detail="auto", **tool.input_image_mask.model_dump())
            field = "image_url" if mask.file_id is None else "file_id"
            attachments = [(f"tools[{index}].input_image_mask.{field}", mask)]
            await TeamAttachments(principal.team_id).load_required(attachments, can=Capabilities())

    @override
    def tools(self, request: ToolRequest, resolved: None, earlier: Sequence[HostedTool]) -> list[HostedTool]:
        account = request.account
        return [
            ImageGenerationTool(
                tool, generator=TeamImageGenerator(account, tool.get("model")), content=TeamAttachments(account.team_id)
            )
            for tool in request.offered(self.types)
        ]
