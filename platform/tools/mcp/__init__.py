"""Tools of remote MCP servers: sessions, tool lists, calls and approval requests."""
