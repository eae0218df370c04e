"""Who a run is, for everything that it writes."""

from dataclasses import dataclass
from datetime import datetime

from tenants.prices import UNKNOWN, Prices


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """Whose run it is, and what its rows and its ledger lines say about that."""

    response_id: str
    team_id: str
    key_id: str
    model: str
    upstream_id: str
    upstream_model: str
    request_id: str
    stored: bool
    obfuscate: bool
    created_at: datetime
    lease_token: int = 1
    background: bool = False
    conversation_id: str | None = None
    prices: Prices = UNKNOWN

    @property
    def channel(self) -> str:
        """Where whoever follows the run is woken."""
        return channel_of(self.response_id)


def channel_of(response_id: str) -> str:
    """The channel on which a run tells that its log has grown."""
    return f"run:{response_id}"
