"""Stores on Redis, for a server with several instances; `mcp_trio.redis` is the public face."""
