"""The demo's models: a name says how fast the model speaks, whether it reasons, and how it fails.

demo                        answers, about 10 ms per word
demo-reasoning              thinks aloud first (`reasoning_content`)
demo-refuse                 declines (`refusal`)
demo-embedding              embeddings only
demo-image                  images only
demo-slow, demo-hang, …     the faults of `faults.py`
<any of them>-d50           50 ms per word; `-d0` answers in one go
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
    """How the model of one request behaves; `pace` is seconds per word."""

    id: str
    base: str
    pace: float
    fault: Fault | None

    @property
    def reasons(self) -> bool:
        """Whether it thinks aloud before it answers."""
        return self.base == "demo-reasoning"

    @property
    def refuses(self) -> bool:
        """Whether it declines whatever it is asked."""
        return self.base == "demo-refuse"

    @property
    def chats(self) -> bool:
        """Whether it answers messages at all."""
        return self.base not in {"demo-embedding", "demo-image"}


def find(name: str) -> DemoModel:
    """The model of that name; an `DemoApiError` 404 when the name means nothing here."""
    parts = PACED.fullmatch(name)
    if parts is None:
        raise unknown_model(name)
    base = parts["base"]
    fault = faults.named(base)
    if base not in PLAIN and fault is None:
        raise unknown_model(name)
    return DemoModel(id=name, base=base, pace=int(parts["pace"] or DEFAULT_PACE_MS) / 1000, fault=fault)


def card(name: str) -> dict[str, str | int]:
    """The model as `GET /v1/models` shows it; `created` is fixed because nothing was ever trained."""
    return {"id": name, "object": "model", "created": 1_735_689_600, "owned_by": "demo"}
