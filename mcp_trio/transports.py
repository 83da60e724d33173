"""The public names of the transports: the type `Channel`, and functions that open channels."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
