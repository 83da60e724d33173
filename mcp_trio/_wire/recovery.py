"""What a frame that no decoder accepts still tells about the message that it was meant to be."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,]|[^\s"{}\[\]:,]++|"', re.DOTALL)
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,99})")
_OPENING: Final = frozenset({b"{", b"["})
_CLOSING: Final = frozenset({b"}", b"]"})
_END: Final = b"}"

# A hostile frame of nothing but brackets must not hold up the session; this is about 0.1 s.
_TOKENS_MAX: Final = 250_000


class Recovered(msgspec.Struct, frozen=True, gc=False):
    """The id of a message that was not understood, and which of its members and ends were seen."""

    id: int | str | None
    has_id: bool
    has_method: bool
    has_outcome: bool
    is_whole: bool

    @property
    def is_request(self) -> bool:
        """Whether an answer may be due: it names a method, or nothing says that it is an answer."""
        return self.has_method or not self.has_outcome


def recover(text: bytes) -> Recovered:
    """Find what the top level of a broken, too deep or cut off JSON text says; never raises.

    A member that occurs twice counts with its last value, as in the decoder. An id counts only if
    it is certainly whole: a number at which the text is cut off is not.
    """
    members = dict(_members(text))
    return Recovered(
        id=_id(members.get(b'"id"', b"")),
        has_id=b'"id"' in members,
        has_method=b'"method"' in members,
        has_outcome=b'"result"' in members or b'"error"' in members,
        is_whole=_END in members,
    )


def _members(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and first token of each top-level member, and the object's end behind them.

    b"" is a value that may be cut off.
    """
    member: list[bytes] = []
    for token in _top_level_tokens(text):
        if token in {b",", _END}:
            yield from _member(member)
            member = []
            if token == _END:
                yield _END, b""
        else:
            member.append(token)
    if member and not member[-1].endswith(b'"'):
        member[2:] = [b""]
    yield from _member(member)


def _member(tokens: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    match tokens:
        case [name, b":", value]:
            yield name, value
        case _:
            return


def _top_level_tokens(text: bytes) -> Iterator[bytes]:
    """Yield what stands directly in the outermost object; a nested value is its opening alone."""
    tokens = (match[0] for match in islice(_TOKEN.finditer(text), _TOKENS_MAX))
    if next(tokens, b"") != b"{":
        return
    depth = 1
    for token in tokens:
        if token == b'"':  # a string without an end: whatever follows is inside it
            return
        if token in _CLOSING:
            depth -= 1
        elif depth == 1:
            yield token
        if token in _OPENING:
            depth += 1
        if depth == 0:
            yield _END
            return


def _id(token: bytes) -> int | str | None:
    if _INTEGER.fullmatch(token):
        return int(token)
    try:
        return msgspec.json.decode(token, type=str)
    except ValueError:
        return None
