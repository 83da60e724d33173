"""The rules of MCP over HTTP, without a socket: heads, the gate, mirrored headers, verdicts."""

from mcp_trio._protocol.http.heads import Head, Headers, accepts, media_type_of

__all__ = ["Head", "Headers", "accepts", "media_type_of"]
