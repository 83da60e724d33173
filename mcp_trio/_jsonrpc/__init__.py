"""JSON-RPC messages and their framing: lines and event streams. Pure."""
