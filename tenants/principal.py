"""Who is calling: a frozen value that every service takes."""

from dataclasses import dataclass
from datetime import datetime

from kernel.errors import Forbidden
from tenants.models import Scope, ToolKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A team acting through one of its keys. `grace_seconds` None: stored runs go on to their end."""

    team_id: str
    key_id: str
    scopes: frozenset[str]
    allowed_models: frozenset[str] | None
    tools: frozenset[str]
    expires_at: datetime | None
    grace_seconds: int | None

    # DRF asks its "user" this.
    is_authenticated = True

    def require(self, scope: Scope) -> None:
        """Raise the 403 of a key that lacks the scope."""
        if Scope.ALL.value not in self.scopes and scope.value not in self.scopes:
            raise Forbidden(f"Your API key lacks the scope '{scope.value}' that this request needs.")

    def require_tool(self, kind: ToolKind, *, param: str) -> None:
        """Raise the 403 of a team or a key that may not use the tool."""
        if ToolKind.ALL.value not in self.tools and kind.value not in self.tools:
            message = f"Your team or your API key is not allowed the tool '{kind.value}'."
            raise Forbidden(message, param=param, code="tool_not_allowed")

    def may_use(self, model: str) -> bool:
        """Whether the key is allowed this model name at all."""
        return self.allowed_models is None or model in self.allowed_models
