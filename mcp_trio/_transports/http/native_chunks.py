"""A request's body that comes in chunks, read more strictly than HTTP asks for."""

import re
from typing import Final

import attrs

from mcp_trio._transports.http.exchange import BodyTooLargeError
from mcp_trio._transports.http.native_head import Refused

_LINE_BYTES_MAX: Final = 4096
# Extensions are legal and nobody needs them; they are read over. White space is not: readers
# differ in what they make of it.
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")
_EMPTY: Final = b"\r\n"


@attrs.define(kw_only=True)
class ChunkedBody:
    """Takes chunks from what was received, until the last one.

    Sizes, extensions and trailers together may be as long as `framing_bytes_max` and the data: so
    neither long extensions nor myriads of tiny chunks cost more than they bring.
    """

    bytes_max: int
    framing_bytes_max: int
    data: bytearray = attrs.field(factory=bytearray, init=False)
    is_ended: bool = attrs.field(default=False, init=False)
    _left: int = attrs.field(default=0, init=False)
    _framing_bytes: int = attrs.field(default=0, init=False)
    _is_behind_data: bool = attrs.field(default=False, init=False)
    _is_in_trailers: bool = attrs.field(default=False, init=False)

    def take(self, received: bytearray) -> bool:
        """Takes from the front what there is of the body; returns whether it has ended.

        Raises:
            Refused: It breaks the rules.
            BodyTooLargeError: Its data are longer than `bytes_max`.
        """
        while not self.is_ended and received:
            if self._left:
                self._take_data(received)
            elif not self._take_line(received):
                break
        return self.is_ended

    def _take_data(self, received: bytearray) -> None:
        piece = received[: self._left]
        del received[: self._left]
        self.data += piece
        self._left -= len(piece)
        self._is_behind_data = not self._left

    def _take_line(self, received: bytearray) -> bool:
        """Whether there was a whole one."""
        length = received.find(b"\n", 0, _LINE_BYTES_MAX) + 1
        self._framing_bytes += length
        is_too_long = not length and len(received) >= _LINE_BYTES_MAX
        if is_too_long or self._framing_bytes > self.framing_bytes_max + len(self.data):
            raise Refused(400, "the chunks of the body are more frame than data")
        line = bytes(received[:length])
        del received[:length]
        if length:
            self._read_line(line)
        return bool(length)

    def _read_line(self, line: bytes) -> None:
        if self._is_behind_data and line == _EMPTY:
            self._is_behind_data = False
        elif self._is_in_trailers and line == _EMPTY:
            self.is_ended = True
        elif self._is_behind_data or (self._is_in_trailers and not _TRAILER.fullmatch(line)):
            raise Refused(400, "the body is not in chunks")
        elif not self._is_in_trailers:
            self._read_size(line)

    def _read_size(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise Refused(400, "the body is not in chunks")
        self._left = int(match[1], 16)
        self._is_in_trailers = not self._left
        if len(self.data) + self._left > self.bytes_max:
            raise BodyTooLargeError(f"the body is longer than {self.bytes_max} bytes")
