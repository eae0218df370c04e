"""`python -m benchmarks.mcp_server PORT`: a small MCP server with one tool."""

import sys

import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("benchmark")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
