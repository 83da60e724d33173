"""One request to a served application, as the endpoints see it."""

import msgspec

from mcp_trio._protocol.http.heads import JSON, Head, Headers
from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._transports.http.exchange import BodyTooLargeError, Exchange


class RefusedError(Exception):
    """The request is answered with this refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class Asked(msgspec.Struct, eq=False):
    """An exchange, with who asks.

    Attributes:
        exchange: Where it is answered.
        head: What came before the body, with the principal.
        headers: What every answer to it has.
        bytes_max: How large its body may be.
    """

    exchange: Exchange
    head: Head
    headers: Headers
    bytes_max: int

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            RefusedError: It is too large.
            trio.BrokenResourceError: The client is gone.
        """
        try:
            return await self.exchange.body(self.bytes_max)
        except BodyTooLargeError:
            text = f"the body is larger than frame_bytes_max ({self.bytes_max})"
            raise RefusedError(Refusal(status=413, text=text)) from None

    async def answer(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """Give a whole answer.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        await self.exchange.answer(status, [*headers, *self.headers], body)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        headers = [("Content-Type", JSON), *refusal.headers]
        await self.answer(refusal.status, headers, refusal.body())


def only(asked: Asked, method: str) -> None:
    """Refuse every other method.

    Raises:
        RefusedError: It is another.
    """
    if asked.head.method != method:
        text = f"{asked.head.method} is not for this endpoint"
        raise RefusedError(Refusal(status=405, text=text, headers=[("Allow", method)]))
