"""The servers that are measured over HTTP, and how each is started."""

import sys
from typing import Final

from http_load import Form
from servers import HERE, OURS, PYTHON_PEER, TYPESCRIPT_PEER, Commands, Workshop, python_peer

HYPERCORN: Final = f"{OURS}, hypercorn"
FLOOR_H11: Final = "floor: h11"
FLOOR_HYPERCORN: Final = "floor: hypercorn"
FLOORS: Final = (FLOOR_H11, FLOOR_HYPERCORN)


def commands(workshop: Workshop, form: Form) -> Commands:
    """All of them; who makes stateless calls meets the TypeScript SDK 2, which alone knows them."""
    script = "server_http_typescript_2.mjs" if form.is_stateless else "server_http_typescript.mjs"
    return {
        **python_commands(),
        TYPESCRIPT_PEER: workshop.node(script),
        FLOOR_H11: _ours("server_http_h11.py"),
        FLOOR_HYPERCORN: _ours("server_http_hypercorn.py"),
    }


def python_commands(*options: str) -> Commands:
    """The servers whose function calls can be counted."""
    native = [*_ours("server_http_mcp_trio.py"), *options]
    return {
        OURS: native,
        HYPERCORN: [*native, "--host", "hypercorn"],
        PYTHON_PEER: python_peer("server_http_sdk.py", *options),
    }


def _ours(script: str) -> list[str]:
    return [sys.executable, str(HERE / script)]
