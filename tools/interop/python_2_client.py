"""The scenario, told by the official Python SDK 2: `python python_2_client.py SERVER COMMAND…`."""

import sys
import warnings

import anyio
import python_client
from mcp import MCPDeprecationWarning, MCPError, types

# The newest revision has deprecated much of what this is about.
warnings.simplefilter("ignore", MCPDeprecationWarning)


class Session(python_client.Session):
    """A session of this SDK, which has to know what was agreed on before it goes on."""

    name = "python 2"
    version = "2"
    refusal = MCPError
    cancels_callbacks = True

    def adopt(self, server: types.InitializeResult) -> None:
        self.session.adopt(server)
        super().adopt(server)


if __name__ == "__main__":
    anyio.run(python_client.tell_scenario, Session, sys.argv[1:])
