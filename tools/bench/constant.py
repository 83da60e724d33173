"""The constant answer of the minimal HTTP servers, whatever they receive."""

import argparse
from typing import Final

import attrs

BODY: Final = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"2"}]}}'
"""The answer to the call of `add` with 1 and 1 whose id is 1."""


@attrs.frozen
class Constant:
    """The port of a minimal server, and its answer.

    Attributes:
        port: The port.
        media_type: The media type of the body.
        pieces: The body; several pieces if it has no Content-Length.
    """

    port: int
    media_type: bytes
    pieces: tuple[bytes, ...]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        kind = (b"content-type", self.media_type)
        if len(self.pieces) == 1:
            return [kind, (b"content-length", b"%d" % len(BODY))]
        return [kind]


def constant_answer() -> Constant:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Serve one answer over HTTP.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--form", choices=["json", "sse", "stateless"], required=True)
    options = parser.parse_args()
    if options.form == "sse":
        event = b"event: message\ndata: %b\n\n" % BODY
        return Constant(options.port, b"text/event-stream", (event, b""))
    return Constant(options.port, b"application/json", (BODY,))
