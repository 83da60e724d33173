"""Encoded messages on a channel with attributes: their sender, or the request they belong to.

A transport that has authenticated the sender of a received message returns a `PrincipalMessage`,
which is `bytes` with the sender as an attribute. A message to send that belongs to a request is a
`RelatedMessage`, which has the id of the request, because a transport may have to send it on the
stream of that request. A channel returns `Lost` in place of a response that will not come.
"""

from collections.abc import Mapping
from typing import Any, Self, final

import msgspec

from mcp_trio.errors import ConnectionLost, LocalProtocolError


class AuthInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The verified facts about the sender of a request; they never contain the token.

    A recording of the session contains all of them, except those that redaction rules remove.

    Attributes:
        subject: The user: `sub` of the token. If a verifier accepts several issuers, it makes
            the subjects of different issuers different.
        client: The application that acts for the user, or for itself: `client_id` of the token.
        scopes: The scopes that the token grants.
        claims: All claims of the token, or members of the introspection response.
        expires_at: The Unix time at which the credentials expire; None if they do not.

    Raises:
        TypeError: The scopes are one string, or a claim has no JSON form.
        ValueError: A text has a lone surrogate, so it is not Unicode.
    """

    subject: str | None = None
    client: str | None = None
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    expires_at: float | None = None

    def __post_init__(self) -> None:
        """Convert the claims to JSON and back, so that they are equal to those in a recording."""
        if isinstance(self.scopes, str):
            raise TypeError(f"scopes are a set of strings: write {{{self.scopes!r}}}")
        msgspec.structs.force_setattr(self, "scopes", frozenset(self.scopes))
        try:
            # Neither a recording nor a message can have a text that UTF-8 cannot encode.
            msgspec.json.encode([self.subject, self.client, *self.scopes])
            encoded_claims = msgspec.json.encode(self.claims)
        except UnicodeEncodeError as error:
            raise ValueError("the facts about a sender have a text that is not Unicode") from error
        claims = msgspec.json.decode(encoded_claims, type=dict[str, Any])
        msgspec.structs.force_setattr(self, "claims", claims)

    @property
    def principal(self) -> str:
        """The name by which sessions, limits and rates are kept apart.

        It is the subject, or "client " with the client, or empty if the credentials have neither. A
        subject that begins with "client " or "user " has "user " before it, so that no user has
        the name of a client.
        """
        subject = self.subject
        if not subject:
            return f"client {self.client}" if self.client else ""
        return f"user {subject}" if subject.startswith(("client ", "user ")) else subject

    def members(self) -> dict[str, Any]:
        """Return the facts as JSON values, always in the same order."""
        return {**msgspec.structs.asdict(self), "scopes": sorted(self.scopes)}


class RelatedMessage(bytes):
    """An encoded message that belongs to a request of the peer: a response, or a notification.

    Attributes:
        related_request_id: The id of that request; None if the message belongs to none.
        is_response: Whether it is the response, so that no further message belongs to the request.
    """

    related_request_id: int | str | None
    is_response: bool

    def __new__(
        cls, message: bytes, related_request_id: int | str | None, *, is_response: bool = False
    ) -> Self:
        self = bytes.__new__(cls, message)
        self.related_request_id = related_request_id
        self.is_response = is_response
        return self


class PrincipalMessage(bytes):
    """A received message with its sender.

    Attributes:
        auth: The sender as the transport has authenticated it; None if it is not.
        client_number: The number of the sender among the clients without authentication that share
            the channel. It is 0 where they share none.
    """

    auth: AuthInfo | None
    client_number: int

    def __new__(cls, message: bytes, auth: AuthInfo | None, client_number: int = 0) -> Self:
        self = bytes.__new__(cls, message)
        self.auth = auth
        self.client_number = client_number
        return self


def with_sender(message: bytes, auth: AuthInfo | None, client_number: int = 0) -> bytes:
    """Return a received message with its sender, if anything is known about it."""
    if auth is None and not client_number:
        return message
    return PrincipalMessage(message, auth, client_number)


class DecodedMessage(PrincipalMessage):
    """A received message that the transport has decoded already, as HTTP has to.

    Attributes:
        message: The decoded message or batch; for a call of a tool perhaps a `ToolCall`.
    """

    message: Any

    def __new__(
        cls, data: bytes, message: object, auth: AuthInfo | None, client_number: int = 0
    ) -> Self:
        # As in `PrincipalMessage`; each request calls this.
        self = bytes.__new__(cls, data)
        self.auth = auth
        self.client_number = client_number
        self.message = message
        return self


@final
class Lost(msgspec.Struct, frozen=True):
    """The failure of one sent request. A channel returns it in place of the response.

    Attributes:
        id: The id of the request.
        error: The error for the caller: a `LocalProtocolError` if the transport cannot carry the
            request, otherwise a `ConnectionLost`.
    """

    id: int | str
    error: ConnectionLost | LocalProtocolError
