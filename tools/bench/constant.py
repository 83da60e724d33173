"""What the floors answer, whatever they are asked: bytes that were made beforehand."""

import argparse
from typing import Final

import attrs

BODY: Final = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"2"}]}}'
"""The answer to the call of `add` with 1 and 1 whose id is 1."""


@attrs.frozen
class Constant:
    """Where a floor listens, and what it answers.

    Attributes:
        port: The port.
        media_type: The type of the body.
        pieces: The body; more than one piece where nobody knows the length beforehand.
    """

    port: int
    media_type: bytes
    pieces: tuple[bytes, ...]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Those of an answer; a length only where it is known."""
        kind = (b"content-type", self.media_type)
        if len(self.pieces) == 1:
            return [kind, (b"content-length", b"%d" % len(BODY))]
        return [kind]


def asked_for() -> Constant:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Serve one answer over HTTP.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--form", choices=["json", "sse", "stateless"], required=True)
    options = parser.parse_args()
    if options.form == "sse":
        event = b"event: message\ndata: %b\n\n" % BODY
        return Constant(options.port, b"text/event-stream", (event, b""))
    return Constant(options.port, b"application/json", (BODY,))
