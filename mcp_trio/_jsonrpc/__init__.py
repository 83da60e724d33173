"""JSON-RPC messages, and their framing as lines and as event streams. Pure."""
