"""Generated images as the model reads them in later turns."""

import orjson

from conversations.items import ImageGenerationCall
from providers.hosted_calls import PastCall


def past_call(item: ImageGenerationCall) -> PastCall:
    """Return the call of an item. The image itself follows its output."""
    output = f"error: {item.error.message if item.error else 'no image was generated'}"
    if item.result:
        output = "The image was generated and shown to the user."
    return PastCall(
        id=item.id or "image_generation",
        name="image_generation",
        arguments=orjson.dumps({"prompt": item.revised_prompt or ""}).decode(),
        output=output,
        image=item.data_url,
    )
