"""Observers of servers and clients: traces, metrics, request logs and audit logs."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
