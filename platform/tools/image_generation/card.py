"""Card of image generation in the console."""

from responses.tools import card
from responses.tools.card import Body, Card


def call(body: Body) -> Card:
    """Return the card of an `image_generation_call`."""
    names = ("action", "background", "output_format", "quality", "size")
    form = body.get("output_format") or ""
    media_type = "image/svg+xml" if form == "svg" else f"image/{form}" if form else ""
    parts = [
        *card.text("Prompt", body.get("revised_prompt")),
        *card.image(f"data:{media_type};base64,{body['result']}" if body.get("result") else None),
        *card.text("Error", (body.get("error") or {}).get("message")),
        *card.json("Settings", {name: body[name] for name in names if body.get(name)}),
    ]
    return card.call_card("image", "image generation", *parts)
