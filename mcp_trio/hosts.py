"""Helpers for hosts: configuration files, display names, tool hints, icons, model choice."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
