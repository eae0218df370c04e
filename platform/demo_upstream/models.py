"""Models of the demo upstream. The name selects speed, reasoning and faults.

demo                        answers, about 10 ms per word
demo-reasoning              sends reasoning first (`reasoning_content`)
demo-refuse                 refuses (`refusal`)
demo-embedding              embeddings only
demo-image                  images only
demo-slow, demo-hang, …     the faults of `faults.py`
<any of them>-d50           50 ms per word; `-d0` answers without delay
"""

import re
from dataclasses import dataclass

from demo_upstream import faults
from demo_upstream.errors import unknown_model
from demo_upstream.faults import Fault

DEFAULT_PACE_MS = 10
PACED = re.compile(r"(?P<base>.+?)(?:-d(?P<pace>\d{1,5}))?")
PLAIN = ("demo", "demo-reasoning", "demo-refuse", "demo-embedding", "demo-image")
LISTED = (*PLAIN, *faults.EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class DemoModel:
    """Behavior of a model. `pace` is in seconds per word."""

    id: str
    base: str
    pace: float
    fault: Fault | None

    @property
    def reasons(self) -> bool:
        """True if reasoning precedes the answer."""
        return self.base == "demo-reasoning"

    @property
    def refuses(self) -> bool:
        """True if every request is refused."""
        return self.base == "demo-refuse"

    @property
    def chats(self) -> bool:
        """True if the model supports chat completions."""
        return self.base not in {"demo-embedding", "demo-image"}


def find(name: str) -> DemoModel:
    """Return the model of a name. Raises a 404 DemoApiError for an unknown name."""
    parts = PACED.fullmatch(name)
    if parts is None:
        raise unknown_model(name)
    base = parts["base"]
    fault = faults.named(base)
    if base not in PLAIN and fault is None:
        raise unknown_model(name)
    return DemoModel(id=name, base=base, pace=int(parts["pace"] or DEFAULT_PACE_MS) / 1000, fault=fault)


def card(name: str) -> dict[str, str | int]:
    """Return the `model` object of the API. `created` is constant."""
    return {"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "demo"}
