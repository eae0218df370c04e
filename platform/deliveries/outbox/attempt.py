"""The result of an attempt to send a delivery. A failed attempt has a result, too, and raises no exception."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

ERROR_LENGTH = 300
BODY_LENGTH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """Result of an attempt. If the receiver gave no answer, `status` is None and `error` has the reason.

    `is_final` means that another attempt would be useless.
    """

    at: datetime
    milliseconds: int
    status: int | None = None
    error: str = ""
    body: str = ""
    is_final: bool = False

    @property
    def succeeded(self) -> bool:
        """True for a 2xx status, which means success both in HTTP and in SMTP."""
        # HTTP redirects are not followed: the target could be an internal address, and was not configured by the team.
        return self.status is not None and 200 <= self.status < 300

    def entry(self) -> dict[str, Any]:
        """Return the attempt as an entry of a delivery's history."""
        return {
            "at": self.at.isoformat(),
            "status": self.status,
            "ms": self.milliseconds,
            "error": self.error,
            "body": self.body,
        }
