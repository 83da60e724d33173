"""The interface of stores that mark sealed states and DPoP proofs as used.

A store can also keep a value under a key for a while: the result of the retry that used a state, or
the facts that an authorization server returns about a token.
"""

from typing import Protocol


class StateStore(Protocol):
    """A store of used keys, shared by all instances of a server.

    A key identifies a sealed state, which is one round of one request, a DPoP proof, or a token.
    The store may forget a key after `seconds`. While it is unavailable, `take` and `kept` raise
    `RequestError` (server busy); `keep` does not raise, and the value may be lost.
    """

    async def take(self, key: str, *, seconds: float, client: str | int) -> bool:
        """Mark a key as used, atomically; return False if it was used before.

        `client` is the principal of the client, or a number that stands for its address. A store
        that limits its states counts them by client, so that no client fills it for the others.
        """
        ...

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """Keep `reply` under a key that was taken: a retry's result, or facts about a token."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """Return the value that is kept under a key; None if there is none."""
        ...
