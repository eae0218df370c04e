"""Console pages about several subjects: home, search, tabs of a team, storage and the system."""

from server.admin import playground, refused_requests, storage, system, team_tabs, tool_calls
from server.admin.search import full_text, lookup

__all__ = ["full_text", "lookup", "playground", "refused_requests", "storage", "system", "team_tabs", "tool_calls"]
