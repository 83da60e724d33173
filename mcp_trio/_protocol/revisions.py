"""What differs between revisions of the specification, one record of named facts each.

Nothing above this file compares dates: it asks a revision for a fact.
"""

from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Revision:
    """The facts of one published revision."""

    name: str
    has_handshake: bool
    has_batches: bool


_ALL: Final = (Revision(name="2024-11-05", has_handshake=True, has_batches=False),)

REVISIONS: Final = {revision.name: revision for revision in _ALL}
NEWEST_LEGACY: Final = next(revision for revision in reversed(_ALL) if revision.has_handshake)


def negotiated(requested: str) -> Revision:
    """The revision a server answers `initialize` with.

    The requested one when it is known here, otherwise our newest with a handshake
    (LIFE-06, LIFE-07, LIFE-08): a mismatch is an offer, not an error.
    """
    known = REVISIONS.get(requested)
    return known if known is not None and known.has_handshake else NEWEST_LEGACY
