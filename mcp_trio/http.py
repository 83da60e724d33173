"""HTTP: requests of handlers as effects, routes and stores of servers, and OpenAPI documents."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
