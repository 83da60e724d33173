"""Test tools: mocks, scripted peers, faulty connections, simulations, checks of stores, logins."""

from mcp_trio._public_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
