"""A frame that is no JSON, without what it says.

Nobody can tell what in it is secret, so only its form is kept: brackets, quotes, lengths, the names
of a message's members, and its id. It is broken at the same place and in the same way as before, so
the same answer is due to it.
"""

import re
from typing import Final

import msgspec

from mcp_trio._wire.recovery import recover

_PART: Final = re.compile(
    rb"""
      (?P<id>"id"\s*:\s*) (?P<value> "(?:[^"\\]|\\.)*" | -?[0-9]+ )
    | (?P<kept> "jsonrpc"\s*:\s*"2\.0"
              | "(?:jsonrpc|id|method|params|result|error)"(?=\s*:)
              | \\["\\/bfnrt]
              | \b(?:true|false|null)\b )
    | (?P<high_half> \\u[dD][89abAB][0-9a-fA-F]{2} )
    | (?P<low_half> \\u[dD][c-fC-F][0-9a-fA-F]{2} )
    | (?P<escape> \\u[0-9a-fA-F]{4} )
    | (?P<number> [0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)? )
    | (?P<rest> [A-Za-z\x80-\xff]+ )
    """,
    re.VERBOSE | re.DOTALL,
)
_STAND_INS: Final = {
    "high_half": rb"\ud800",
    "low_half": rb"\udc00",
    "escape": rb"\u0078",
}
_ONES: Final = bytes.maketrans(b"023456789", b"111111111")

# What a UTF-8 decoder says, the byte that makes it say so, and whether that is the last one.
_NOT_UTF8: Final = {
    "invalid start byte": (b"\xff", False),
    "invalid continuation byte": (b"\xc3", False),
    "unexpected end of data": (b"\xc3", True),
}


def masked(frame: bytes) -> bytes:
    """The form of a frame, which may be anything."""
    id_ = recover(frame).id

    def mask(match: re.Match[bytes]) -> bytes:
        if match["id"] is not None:
            value = match["value"]
            return match["id"] + (value if _says(value, id_) else _PART.sub(mask, value))
        return _stand_in(match)

    return _broken_alike(frame, _PART.sub(mask, frame))


def _stand_in(match: re.Match[bytes]) -> bytes:
    part = match[0]
    group = match.lastgroup
    if group == "number":
        # A zero in front counts: no other digit may follow it.
        return part[: part.startswith(b"0")] + part[part.startswith(b"0") :].translate(_ONES)
    if group == "rest":
        return b"x" * len(part)
    return _STAND_INS.get(group or "", part)


def _says(value: bytes, id_: int | str | None) -> bool:
    try:
        said = msgspec.json.decode(value)
    except ValueError:
        return False
    return type(said) is type(id_) and said == id_


def _broken_alike(frame: bytes, mask: bytes) -> bytes:
    """The mask, with what kept the frame from being UTF-8."""
    try:
        frame.decode()
    except UnicodeDecodeError as error:
        byte, is_last = _NOT_UTF8[error.reason]
        at = len(mask) - 1 if is_last else error.start
        return mask[:at] + byte + mask[at + 1 :]
    return mask
