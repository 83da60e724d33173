"""The interface of stores of what may be used once: sealed states, and proofs of clients.

A store also keeps what belongs to a key for a while: the result of the retry that used a state, or
what an authorization server says about a token.
"""

from typing import Protocol


class StateStore(Protocol):
    """A store of what may be used once, shared by all instances of a server.

    A key identifies a sealed state, which is one round of one request, or the proof of a client.
    The store may forget a key after `seconds`. It raises `RequestError` (server busy) while it is
    away, except in `keep`.
    """

    async def take(self, key: str, *, seconds: float, client: str | int) -> bool:
        """Mark a key as used, atomically; return False if it was used before.

        `client` is the principal of the client, or a number that stands for its address. A store
        that limits its states counts them by client, so that no client fills it for the others.
        """
        ...

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """Keep the result of the retry that used a state."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """Return the kept result, for a client that repeats a retry; None if there is none."""
        ...
