"""Stores on Redis 7 or newer, or Valkey, for an HTTP server with several instances."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
