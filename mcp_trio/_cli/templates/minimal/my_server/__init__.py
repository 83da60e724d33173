"""An MCP server with one tool."""
