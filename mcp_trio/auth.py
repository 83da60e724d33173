"""Authorization: how clients get tokens, and how servers check them.

The public names and their modules are listed once, in `auth.pyi`. Each is imported when it is first
used.
"""

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(  # pyright: ignore[reportUnknownVariableType]
    "mcp_trio", __file__
)
