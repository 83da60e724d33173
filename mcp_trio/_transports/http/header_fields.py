"""Header fields of an answer, as bytes: nothing gets in by which one field could become two."""

import email.utils
import functools
import re
from typing import Final

from mcp_trio._protocol.http import Headers

# RFC 9110: a name is a token (5.6.2); a value has visible characters, inner spaces and tabs (5.5).
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"(?:[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?)?")


def encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The fields as they go over the wire, names in lower case.

    Raises:
        ValueError: A name or value cannot stand in a header, for instance for a line break in it.
    """
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header field")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header field {name} has what no value may have")
    return [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers]


@functools.lru_cache(maxsize=1)
def date_at(second: int) -> bytes:
    """The value of `Date`, made once a second."""
    return email.utils.formatdate(second, usegmt=True).encode("ascii")
