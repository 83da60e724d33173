"""`AuthInfo`: the verified facts about the sender of a message."""

from collections.abc import Mapping
from typing import Any

import msgspec


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
    """

    subject: str | None = None
    client: str | None = None
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    expires_at: float | None = None

    def __post_init__(self) -> None:
        """Make the values those that a replay reads from the recording."""
        if isinstance(self.scopes, str):
            raise TypeError(f"scopes are a set of strings: write {{{self.scopes!r}}}")
        msgspec.structs.force_setattr(self, "scopes", frozenset(self.scopes))
        claims = msgspec.json.decode(msgspec.json.encode(self.claims), type=dict[str, Any])
        msgspec.structs.force_setattr(self, "claims", claims)

    @property
    def principal(self) -> str:
        """The name by which sessions, limits and rates are kept apart: the subject or the client.

        Empty if the credentials have neither.
        """
        return self.subject or self.client or ""

    def members(self) -> dict[str, Any]:
        """Return the facts as JSON values, always in the same order."""
        return {
            "subject": self.subject,
            "client": self.client,
            "scopes": sorted(self.scopes),
            "claims": self.claims,
            "expires_at": self.expires_at,
        }
