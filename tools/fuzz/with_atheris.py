"""Fuzz one parser with Atheris: `with_atheris.py TARGET [OPTION OR FOLDER OF LIBFUZZER …]`."""

import sys

import atheris

# The code whose branches guide Atheris; the rest of the package would only slow the start.
GUIDES = [
    "h11",
    "mcp_trio._journal",
    "mcp_trio._jsonrpc",
    "mcp_trio._protocol",
    "mcp_trio._server.sealed_state",
    "mcp_trio._protocol.uri_templates",
    "mcp_trio._transports.http1",
    "mcp_trio._transports.trio_websocket",
    "wsproto",
]

with atheris.instrument_imports(include=GUIDES):
    from targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
