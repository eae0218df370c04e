"""Actions of computer use."""

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from conversations.items.base import Wire, by_type
from kernel.validation import TAG


class Point(Wire):
    """A position on the screen, in pixels from the top left."""

    x: int
    y: int


class Click(Point):
    """Click a mouse button."""

    type: Literal["click"] = "click"
    button: Literal["left", "right", "wheel", "back", "forward"]
    keys: list[str] | None = None


class DoubleClick(Point):
    """Double-click the left mouse button."""

    type: Literal["double_click"] = "double_click"
    keys: list[str] | None = None


class Drag(Wire):
    """Drag along a path with the left mouse button."""

    type: Literal["drag"] = "drag"
    path: list[Point]
    keys: list[str] | None = None


class Keypress(Wire):
    """Press keys together."""

    type: Literal["keypress"] = "keypress"
    keys: list[str]


class Move(Point):
    """Move the mouse."""

    type: Literal["move"] = "move"
    keys: list[str] | None = None


class Screenshot(Wire):
    """Take a screenshot."""

    type: Literal["screenshot"] = "screenshot"


class Scroll(Point):
    """Scroll by a number of pixels."""

    type: Literal["scroll"] = "scroll"
    scroll_x: int
    scroll_y: int
    keys: list[str] | None = None


class TypeText(Wire):
    """Type text."""

    type: Literal["type"] = "type"
    text: str


class Wait(Wire):
    """Wait for a moment."""

    type: Literal["wait"] = "wait"


ComputerAction = Annotated[
    Annotated[Click, Tag(f"{TAG}click")]
    | Annotated[DoubleClick, Tag(f"{TAG}double_click")]
    | Annotated[Drag, Tag(f"{TAG}drag")]
    | Annotated[Keypress, Tag(f"{TAG}keypress")]
    | Annotated[Move, Tag(f"{TAG}move")]
    | Annotated[Screenshot, Tag(f"{TAG}screenshot")]
    | Annotated[Scroll, Tag(f"{TAG}scroll")]
    | Annotated[TypeText, Tag(f"{TAG}type")]
    | Annotated[Wait, Tag(f"{TAG}wait")],
    Discriminator(by_type),
]
