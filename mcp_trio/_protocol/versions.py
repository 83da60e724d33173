"""Protocol versions: one record of named facts each.

Nothing above this file compares dates: it asks a revision for a fact. Two eras: the *legacy*
revisions shake hands and then have a session, the *modern* ones let each request say everything
about itself.
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

# The codes that JSON-RPC leaves to servers.
_SERVER_CODES: Final = range(-32099, -31999)

STATELESS_CODES: Final = frozenset(
    {HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION}
)
"""Those of them that modern revisions define; only these tell that a server is modern."""


def _is_stateless(protocol_version: "ProtocolVersion") -> bool:
    return not protocol_version.has_handshake


@attrs.frozen(kw_only=True, eq=False)
class ProtocolVersion:
    """The facts of one published revision.

    Attributes:
        name: The date that it is known by.
        place: Where it stands among all, from the oldest, for tables of what came and went.
        has_handshake: There is `initialize`, and a session after it; or else no state at all.
        has_batches: Several messages may come as one array.
        reserves_codes: Nobody may choose a code from -32099 to -32000 any more.
        has_errors_without_id: An error may answer what had no id that could be read.
        argument_errors_are_results: A model hears of arguments that do not fit, as a result.
        resource_not_found_code: The error of a resource that is not there.
        structured_content: What a tool may return beside its content.
        announces_completions: There is a capability for them.
        announces_context: A client says whether its model may see what its servers know.
        has_url_elicitation: A user can be asked to visit a URL.
        has_elicitation_ids: Such a visit has an id, by which the client hears that it is over.
        primes_streams: A stream over HTTP begins with an event that has an id and no message, and a
            client that was cut off comes back after it.
        is_modern: Each request carries what a handshake would have settled.
    """

    name: str
    place: int
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
        default=attrs.Factory(_is_stateless, takes_self=True), init=False, repr=False
    )

    def error_code_for(self, code: int) -> int:
        """The code that says the same here, for an error that we answer with (ERR-06 to ERR-10)."""
        if not self.reserves_codes or code not in _SERVER_CODES or code in STATELESS_CODES:
            return code
        return self.resource_not_found_code if code == RESOURCE_NOT_FOUND else INTERNAL_ERROR


_ALL: Final = (
    ProtocolVersion(name="2024-11-05", place=0, announces_completions=False),
    ProtocolVersion(name="2025-03-26", place=1, has_batches=True),
    ProtocolVersion(name="2025-06-18", place=2, structured_content="object"),
    ProtocolVersion(
        name="2025-11-25",
        place=3,
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
        place=4,
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
"""All that are known here, by name, from the oldest."""

ALL_PROTOCOL_VERSIONS: Final = tuple(protocol_version.name for protocol_version in reversed(_ALL))
"""Their names, from the newest."""


OLDEST: Final = _ALL[0]
NEWEST_LEGACY: Final = next(
    protocol_version for protocol_version in reversed(_ALL) if protocol_version.has_handshake
)


@functools.cache
def is_between(protocol_version: ProtocolVersion, since: str | None, until: str | None) -> bool:
    """Return whether a revision is one of those from `since` to `until`; None is no bound."""
    began = since is None or PROTOCOL_VERSIONS[since].place <= protocol_version.place
    return began and (until is None or protocol_version.place <= PROTOCOL_VERSIONS[until].place)


def checked_protocol_versions(names: Collection[str]) -> tuple[str, ...]:
    """The names of the revisions that one side speaks, from the newest.

    Raises:
        ValueError: There is none, or one that is not known here.
    """
    unknown = [name for name in names if name not in PROTOCOL_VERSIONS]
    if unknown or not names:
        known = ", ".join(ALL_PROTOCOL_VERSIONS)
        raise ValueError(f"unknown revisions {unknown}: choose from {known}")
    return tuple(name for name in ALL_PROTOCOL_VERSIONS if name in names)


def newest(names: Sequence[str], *, has_handshake: bool) -> ProtocolVersion | None:
    """The newest revision of an era among `names`, which begin with the newest."""
    rows = (PROTOCOL_VERSIONS[name] for name in names if name in PROTOCOL_VERSIONS)
    return next((row for row in rows if row.has_handshake is has_handshake), None)


def supported_versions_in(data: Any) -> list[str]:
    """The revisions that the data of an error names as `supported`."""
    named: Any = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    names = cast("list[object]", named) if isinstance(named, list) else []
    return [name for name in names if isinstance(name, str)]


def negotiated(requested: str, spoken: Sequence[str]) -> ProtocolVersion | None:
    """The revision a server answers `initialize` with; None if it speaks none with a handshake.

    The requested one when it is spoken here, otherwise our newest with a handshake (LIFE-06,
    LIFE-07, LIFE-08): a mismatch is an offer, not an error.
    """
    known = PROTOCOL_VERSIONS.get(requested)
    if known is not None and known.has_handshake and requested in spoken:
        return known
    return newest(spoken, has_handshake=True)
