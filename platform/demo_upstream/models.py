"""Models of the demo upstream. The name selects speed and abilities.

demo                        answers, about 10 ms per word
demo-reasoning              sends reasoning first (`reasoning_content`)
demo-embedding              embeddings only
<any of them>-d50           50 ms per word; `-d0` answers without delay
"""

import re
from http import HTTPStatus
from typing import NamedTuple

from demo_upstream.errors import Code, DemoApiError

DEFAULT_PACE_MS = 10
PACED = re.compile(r"(?P<base>.+?)(?:-d(?P<pace>\d{1,5}))?")
EMBEDDING = "demo-embedding"
LISTED: tuple[str, ...] = ("demo", "demo-reasoning", EMBEDDING)


class DemoModel(NamedTuple):
    """A model: its name without the pace, and its pace in seconds per word."""

    base: str
    pace: float


def find(name: str) -> DemoModel:
    """Return the model of a name. Raises a 404 DemoApiError for an unknown name."""
    parts = PACED.fullmatch(name)
    if parts is None or parts["base"] not in LISTED:
        raise DemoApiError(
            f"The model '{name}' does not exist.", status=HTTPStatus.NOT_FOUND, param="model", code=Code.MODEL_NOT_FOUND
        )
    return DemoModel(base=parts["base"], pace=int(parts["pace"] or DEFAULT_PACE_MS) / 1000)


def card(name: str) -> dict[str, str | int]:
    """Return the `model` object of the API. `created` is constant."""
    return {"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "demo"}
