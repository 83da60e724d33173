"""An MCP server of notes, over HTTP."""
