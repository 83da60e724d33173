"""An MCP server of a reading list, in a SQLite database."""
