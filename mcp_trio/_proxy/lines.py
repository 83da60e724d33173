"""A stream of bytes as lines of which nothing is dropped: joined again, they are the stream."""

from collections.abc import Iterator
from typing import Any

import msgspec


class Line(msgspec.Struct, frozen=True, gc=False):
    """What stood before an LF, or as much of that as is kept together.

    `part` counts the parts of a line longer than the limit, from 1; None is a whole line. Behind
    all parts but the last, and behind the end of a stream that has no LF there, `has_lf` is false.
    """

    data: bytes
    part: int | None = None
    has_lf: bool = True

    @property
    def envelope(self) -> dict[str, Any] | None:
        """What a record has to say of it besides its bytes; of a whole line nothing."""
        told: dict[str, Any] = {}
        if self.part is not None:
            told["part"] = self.part
        if not self.has_lf:
            told["lf"] = False
        return told or None


class LineCutter:
    """Cuts a stream at each LF, and a line that grows beyond `line_bytes_max` into parts of it.

    Each byte is looked at once, and of a line no more than `line_bytes_max` is held.
    """

    def __init__(self, *, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._begun = bytearray()
        self._parts = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines and parts that `chunk` completes, in order; to be consumed wholly."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield from self._grow(end)
            yield self._take(has_lf=True)
        yield from self._grow(rest)

    def finish(self) -> Iterator[Line]:
        """The last line, if the stream ended within one; nothing is kept."""
        if self._begun:
            yield self._take(has_lf=False)

    def _grow(self, piece: bytes) -> Iterator[Line]:
        self._begun += piece
        while len(self._begun) > self._line_bytes_max:
            self._parts += 1
            yield Line(bytes(self._begun[: self._line_bytes_max]), self._parts, has_lf=False)
            del self._begun[: self._line_bytes_max]

    def _take(self, *, has_lf: bool) -> Line:
        part = self._parts + 1 if self._parts else None
        line = Line(bytes(self._begun), part, has_lf)
        self._begun.clear()
        self._parts = 0
        return line
