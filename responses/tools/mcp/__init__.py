"""Tools of remote MCP servers: connecting, listing, calling, and asking for approval."""
