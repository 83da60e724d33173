"""A Trio-native engine for the Model Context Protocol, with recording and deterministic replay.

The public names and their modules are listed once, in `__init__.pyi`. Each is imported when it is
first used, so that a server does not load the client, nor a client the server.
"""

import lazy_loader  # pyright: ignore[reportMissingTypeStubs]

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(  # pyright: ignore[reportUnknownVariableType]
    __name__, __file__
)
