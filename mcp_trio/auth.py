"""Authorization: how clients get tokens, and how servers check them."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
