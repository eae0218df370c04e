"""Requests to moderation models, and their results."""

from collections.abc import Sequence
from typing import Any

from conversations.items import StoredItem, plain_text
from core.errors import SERVER_ERROR, UpstreamError
from core.json.large_work import off_loop
from engine.attachments import AttachmentImage, AttachmentText, all_parts, attachment_key
from engine.moderation import ModerationResult
from responses.passthrough.embeddings_moderations import forward, parse_moderation
from responses.requests.attachments import TeamAttachments
from responses.runs.identity import RequestInfo
from tenants.principal import Principal


async def texts_and_images(
    items: Sequence[StoredItem], attachments: TeamAttachments | None
) -> tuple[list[str], list[str]]:
    """Return the texts of some items, including the texts of files, and their images as data URLs."""
    texts = await off_loop(lambda: [text for item in items if (text := plain_text(item.wire()))])
    images: list[str] = []
    if attachments is None:
        return texts, images
    # Moderation models read no files: `files=False` has documents extracted as text.
    found = await attachments.load(items, files=False, inline_images=True)
    for part in all_parts(items):
        match found.get(attachment_key(part)):
            case AttachmentText(text=text):
                texts.append(text)
            case AttachmentImage(url=url):
                images.append(url)
    return texts, images


async def moderate(
    principal: Principal, model: str, request: RequestInfo, texts: Sequence[str], *, images: Sequence[str] = ()
) -> ModerationResult:
    """Return a moderation model's result for some texts and image URLs.

    Writes a usage record. Raises `ApiError` if the upstream fails or its answer has no result.
    """
    text = "\n\n".join(texts)
    image_parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    # Text alone is sent as a plain string: many moderation models accept nothing else.
    given: Any = [*([{"type": "text", "text": text}] if text else []), *image_parts] if images else text
    passed = parse_moderation({"model": model, "input": given})
    answer = await forward(principal=principal, passed=passed, request=request, is_request=False)
    match answer.get("results"):
        case [{"flagged": bool() as flagged} as result, *_]:
            return {
                "type": "moderation_result",
                "model": str(answer.get("model") or model),
                "flagged": flagged,
                "categories": result.get("categories") or {},
                "category_scores": result.get("category_scores") or {},
                "category_applied_input_types": result.get("category_applied_input_types") or {},
            }
    raise UpstreamError("The moderation model returned no result.")


def error_result(message: str, *, code: str | None = None) -> ModerationResult:
    return {"type": "error", "code": code or SERVER_ERROR, "message": message}


def flagged_categories(result: ModerationResult) -> list[str]:
    """Return the names of the flagged categories; empty if the model names none."""
    return [str(name) for name, applies in result["categories"].items() if applies is True]


def for_categories(result: ModerationResult) -> str:
    names = flagged_categories(result)
    return f" for {', '.join(names)}" if names else ""
