"""Protocol versions, one record of named facts each.

Nothing else compares dates: other code asks a protocol version for a fact. *Legacy* versions have
a handshake, and a session after it; *stateless* versions, from 2026-07-28 on, carry everything in
each request.

https://modelcontextprotocol.io/specification/versioning
"""

import functools
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, cast

import attrs

from mcp_trio.errors import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CLIENT_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
)

# The error codes that JSON-RPC leaves to servers.
_SERVER_CODES: Final = range(-32099, -31999)

STATELESS_CODES: Final = frozenset(
    {HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION}
)
"""The error codes that only stateless servers send."""


@attrs.frozen(kw_only=True, eq=False)
class ProtocolVersion:
    """The facts of one protocol version.

    Attributes:
        name: Its date.
        index: Its position among all versions, from the oldest.
        has_handshake: Whether `initialize` opens a session; otherwise the version is stateless.
        has_batches: Whether several messages may be sent as one array.
        reserves_codes: Whether the specification reserves all error codes from -32099 to -32000.
        has_errors_without_id: Whether an error response may lack an id.
        argument_errors_are_results: Whether invalid arguments of a tool are reported as a result,
            for the model, instead of an error response.
        resource_not_found_code: The error code for a missing resource.
        structured_content: The structured content that a tool may return.
        announces_completions: Whether servers announce completions as a capability.
        announces_context: Whether clients announce `includeContext` of sampling as a capability.
        has_url_elicitation: Whether a user can be asked to visit a URL.
        has_elicitation_ids: Whether such an elicitation has an id, for the notification of its end.
        primes_streams: Whether an event stream begins with an event that has only an id, so that a
            client can resume it from the beginning.
        is_stateless: Whether each request carries its own metadata; the opposite of
            `has_handshake`.
    """

    name: str
    index: int
    has_handshake: bool = True
    has_batches: bool = False
    reserves_codes: bool = False
    has_errors_without_id: bool = False
    argument_errors_are_results: bool = False
    resource_not_found_code: int = RESOURCE_NOT_FOUND
    structured_content: Literal["none", "object", "any"] = "none"
    announces_completions: bool = True
    announces_context: bool = False
    has_url_elicitation: bool = False
    has_elicitation_ids: bool = False
    primes_streams: bool = False
    is_stateless: bool = attrs.field(
        default=attrs.Factory(lambda version: not version.has_handshake, takes_self=True),
        init=False,
        repr=False,
    )

    def error_code_for(self, code: int) -> int:
        """Return the code to send in place of `code`, which this version may not define.

        A version that reserves the codes of servers has another code for a missing resource, and
        "internal error" stands for any code among them that it does not define.
        """
        if not self.reserves_codes or code not in _SERVER_CODES or code in STATELESS_CODES:
            return code
        return self.resource_not_found_code if code == RESOURCE_NOT_FOUND else INTERNAL_ERROR


_ALL: Final = (
    ProtocolVersion(name="2024-11-05", index=0, announces_completions=False),
    ProtocolVersion(name="2025-03-26", index=1, has_batches=True),
    ProtocolVersion(name="2025-06-18", index=2, structured_content="object"),
    ProtocolVersion(
        name="2025-11-25",
        index=3,
        announces_context=True,
        has_url_elicitation=True,
        has_elicitation_ids=True,
        primes_streams=True,
        structured_content="object",
        has_errors_without_id=True,
        argument_errors_are_results=True,
    ),
    ProtocolVersion(
        name="2026-07-28",
        index=4,
        announces_context=True,
        has_url_elicitation=True,
        has_handshake=False,
        reserves_codes=True,
        structured_content="any",
        has_errors_without_id=True,
        argument_errors_are_results=True,
        resource_not_found_code=INVALID_PARAMS,
    ),
)

PROTOCOL_VERSIONS: Final = {protocol_version.name: protocol_version for protocol_version in _ALL}
"""All known protocol versions by their names, from the oldest."""

ALL_PROTOCOL_VERSIONS: Final = tuple(protocol_version.name for protocol_version in reversed(_ALL))
"""The names of all known protocol versions, from the newest."""

OLDEST: Final = _ALL[0]
NEWEST_LEGACY: Final = next(each for each in reversed(_ALL) if each.has_handshake)


@functools.cache
def is_between(protocol_version: ProtocolVersion, since: str | None, until: str | None) -> bool:
    """Return whether a version is one of those from `since` to `until`; None is no bound."""
    index = protocol_version.index
    began = since is None or PROTOCOL_VERSIONS[since].index <= index
    return began and (until is None or index <= PROTOCOL_VERSIONS[until].index)


def checked_protocol_versions(names: Collection[str]) -> tuple[str, ...]:
    """Return the names of supported protocol versions, sorted from the newest.

    Raises:
        TypeError: The names are one string.
        ValueError: There is no name, or one that is unknown.
    """
    if isinstance(names, str):
        raise TypeError(f"protocol_versions are a list: write [{names!r}]")
    unknown = [name for name in names if name not in PROTOCOL_VERSIONS]
    if unknown or not names:
        known = ", ".join(ALL_PROTOCOL_VERSIONS)
        error = f"unknown protocol versions {unknown}" if names else "no protocol version is given"
        raise ValueError(f"{error}: choose from {known}")
    return tuple(name for name in ALL_PROTOCOL_VERSIONS if name in names)


def newest(names: Sequence[str], *, has_handshake: bool) -> ProtocolVersion | None:
    """Return the newest version among `names` with a handshake, or without one; None if none is.

    The names are sorted from the newest; unknown ones are skipped.
    """
    known = (PROTOCOL_VERSIONS[name] for name in names if name in PROTOCOL_VERSIONS)
    return next((each for each in known if each.has_handshake is has_handshake), None)


def supported_versions_in(data: Any) -> list[str]:
    """Return the protocol versions that the data of an error lists as `supported`."""
    given: Any = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    names = cast("list[object]", given) if isinstance(given, list) else []
    return [name for name in names if isinstance(name, str)]


def negotiated(requested: str, supported: Sequence[str]) -> ProtocolVersion | None:
    """Return the protocol version of a server's response to `initialize`.

    A version that the server does not support is not an error: the server offers its newest legacy
    version instead.
    https://modelcontextprotocol.io/specification/2025-11-25/basic/lifecycle#version-negotiation

    Returns:
        None if the server supports no legacy version.
    """
    known = PROTOCOL_VERSIONS.get(requested)
    if known is not None and known.has_handshake and requested in supported:
        return known
    return newest(supported, has_handshake=True)
