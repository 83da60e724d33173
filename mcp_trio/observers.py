"""Observers of servers and clients: traces, metrics, request logs and audit logs."""

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

# The public names and their modules are listed once, in `observers.pyi`. Each is imported when it
# is first used, because two of them need libraries that are optional.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(  # pyright: ignore[reportUnknownVariableType]
    "mcp_trio", __file__
)
