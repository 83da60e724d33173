"""Line framing: one JSON-RPC message per line, as on stdio, sockets and pipes.

The specification: https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#stdio
"""

from collections.abc import Sequence
from typing import Final, final

import msgspec

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

# As integers: `in` finds an integer in bytes ten times as fast as a bytes object.
_LF: Final = ord("\n")
_CR: Final = ord("\r")
_SPACE: Final = ord(" ")

_LINE_ENDS_TO_TABS: Final = bytes.maketrans(b"\r\n", b"\t\t")

# Bytes of an oversized message that are kept, so that its id can be recovered.
_PREFIX_BYTES_MAX: Final = 4096

# Shorter pieces of a line are collected in one buffer: an object for each would take more memory
# than its bytes.
_PIECE_BYTES_MIN: Final = 512

# A byte order mark and a CR do not count towards the limit. An incomplete line may be longer by
# their length, because only its end shows whether it has them.
_MARGIN_BYTES: Final = len(BYTE_ORDER_MARK) + len(b"\r")


@final
class Oversized(msgspec.Struct, frozen=True, gc=False):
    """A message that is larger than the limit. A channel returns it in place of the message.

    The remaining bytes of the message are discarded without a further report.

    Attributes:
        size: The bytes that had arrived when the limit was exceeded.
        prefix: The first bytes of the message.
    """

    size: int
    prefix: bytes


def oversized(beginning: bytes, size: int, *, message_bytes_max: int) -> Oversized:
    """Return an `Oversized` with as much of the message's beginning as is kept."""
    return Oversized(size, beginning[: min(_PREFIX_BYTES_MAX, message_bytes_max)])


def bounded(message: bytes, *, message_bytes_max: int) -> bytes | Oversized:
    """Return the message, or `Oversized` if it exceeds the limit."""
    if len(message) <= message_bytes_max:
        return message
    return oversized(message, len(message), message_bytes_max=message_bytes_max)


class LineSplitter:
    r"""Splits a stream of bytes into messages at LF, and at nothing else.

    A CR before the LF, a byte order mark at the start of the stream, and blank lines are dropped.
    Each byte is examined once and copied at most three times, however the stream is chunked, and
    an incomplete line takes hardly more memory than its bytes.

    Args:
        message_bytes_max: The limit. A larger message is reported once, as `Oversized`, as soon as
            the limit is exceeded.
    """

    def __init__(self, *, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._pieces: list[bytes | bytearray] = []
        self._pending_bytes = 0
        self._is_discarding = False
        self._is_first_line = True

    @property
    def pending_bytes(self) -> int:
        """The size of the incomplete line in memory."""
        return self._pending_bytes

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes | Oversized]:
        """Return the messages that `chunk` completes, in order."""
        data = bytes(chunk)
        # Most chunks of a large message have no LF; `in` finds that out in a fraction of the time.
        lines = data.split(b"\n") if _LF in data else [data]
        rest = lines.pop()
        has_incomplete_line = self._pieces or self._is_first_line or self._is_discarding
        is_whole = not (rest or has_incomplete_line)
        if is_whole and len(data) <= self._message_bytes_max and _CR not in data:
            # Nearly all chunks of small messages.
            return [line for line in lines if line and (line[0] > _SPACE or not line.isspace())]
        found: list[bytes | Oversized] = []
        bytes_max = self._message_bytes_max
        if lines and has_incomplete_line:
            lines[0] = self._completed_line(lines[0])
        for line in lines:
            message = line[:-1] if line and line[-1] == _CR else line
            if len(message) > bytes_max:
                found.append(oversized(message, len(message), message_bytes_max=bytes_max))
            elif message and (message[0] > _SPACE or not message.isspace()):
                found.append(message)
        if rest and not self._is_discarding:
            last = self._pieces[-1] if self._pieces else None
            if len(rest) >= _PIECE_BYTES_MIN:
                self._pieces.append(rest)
            elif isinstance(last, bytearray):
                last += rest
            else:
                self._pieces.append(bytearray(rest))
            self._pending_bytes += len(rest)
            if self._pending_bytes > bytes_max + _MARGIN_BYTES:
                beginning = b"".join(self._pieces)
                if self._is_first_line:
                    beginning = beginning.removeprefix(BYTE_ORDER_MARK)
                found.append(oversized(beginning, self._pending_bytes, message_bytes_max=bytes_max))
                self._clear()
                self._is_discarding = True
                self._is_first_line = False
        return found

    def finish(self) -> list[bytes | Oversized]:
        """Return the last message if the stream ended without a final LF."""
        return self.feed(b"\n")

    def _completed_line(self, end: bytes) -> bytes:
        """Return a line whose end has arrived; an empty line if the rest of it was discarded."""
        if self._is_discarding:
            self._is_discarding = False
            return b""
        line = b"".join([*self._pieces, end])
        self._clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        return line

    def _clear(self) -> None:
        self._pieces.clear()
        self._pending_bytes = 0


def has_line_end(data: bytes) -> bool:
    """Return whether `data` contains a CR or an LF."""
    return _LF in data or _CR in data


def one_line(data: bytes) -> bytes:
    """Return a message on one line, with a tab in place of each CR and LF.

    All three are white space of JSON, and none may be in a string. So a valid message keeps its
    meaning, and an invalid one stays invalid; the decoder will report that.
    """
    return data.translate(_LINE_ENDS_TO_TABS) if has_line_end(data) else data


def join_lines(messages: Sequence[bytes]) -> bytes:
    """Return the bytes to write for some messages, none of which may contain an LF."""
    return b"\n".join([*messages, b""])
