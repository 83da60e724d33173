"""Lines: encoded messages from bytes as they arrive, and back."""

from collections.abc import Sequence
from typing import Final, final

import msgspec

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_HEAD_BYTES: Final = 4096

# As numbers, which are found in bytes ten times as fast as bytes are.
_LF: Final = ord("\n")
_CR: Final = ord("\r")

# Smaller pieces are held together: an object each would cost more memory than their bytes.
_PIECE_BYTES_MIN: Final = 512

# A byte order mark and a CR are no part of the frame; before its end they cannot be told from it.
_MARGIN_BYTES: Final = len(_BYTE_ORDER_MARK) + len(b"\r")


@final
class Oversized(msgspec.Struct, frozen=True, gc=False):
    """A frame over the limit: how much of it had arrived, and how it begins.

    The rest of it, up to the end of its line, is discarded without another report.
    """

    size: int
    head: bytes


class LineSplitter:
    r"""Cuts a stream of bytes into frames at LF, and at nothing else.

    A CR before the LF, a byte order mark at the start of the stream and lines of whitespace are
    dropped. A frame over `limits.messages.bytes_max` is reported once; those after it arrive as
    usual. Each byte is looked at once and copied three times at most, and what is held of a frame
    takes hardly more memory than the frame, however the stream is chunked.
    """

    def __init__(self, *, message_bytes_max: int) -> None:
        self._frame_bytes_max = message_bytes_max
        self._pieces: list[bytes | bytearray] = []
        self._pending_bytes = 0
        self._is_discarding = False
        self._is_first_line = True

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[bytes | Oversized]:
        """The frames that `chunk` completes, in order."""
        *ends, rest = bytes(chunk).split(b"\n")
        found: list[bytes | Oversized] = []
        for end in ends:
            found += self._end_line(end)
        if rest and not self._is_discarding:
            found += self._keep(rest)
        return found

    def finish(self) -> list[bytes | Oversized]:
        """The last frame, if the stream ended without an LF behind it; nothing is kept."""
        return self._end_line(b"")

    def _end_line(self, end: bytes) -> list[bytes | Oversized]:
        if self._is_discarding:
            self._is_discarding = False
            return []
        if self._pieces:
            end = b"".join([*self._pieces, end])
            self._forget()
        if self._is_first_line:
            self._is_first_line = False
            end = end.removeprefix(_BYTE_ORDER_MARK)
        return self._judge(end.removesuffix(b"\r"))

    def _judge(self, line: bytes) -> list[bytes | Oversized]:
        if len(line) > self._frame_bytes_max:
            return [self._oversized(line, len(line))]
        return [line] if line and not line.isspace() else []

    def _keep(self, piece: bytes) -> list[bytes | Oversized]:
        self._hold(piece)
        self._pending_bytes += len(piece)
        if self._pending_bytes <= self._frame_bytes_max + _MARGIN_BYTES:
            return []
        oversized = self._oversized(b"".join(self._pieces), self._pending_bytes)
        self._forget()
        self._is_discarding = True
        self._is_first_line = False
        return [oversized]

    def _hold(self, piece: bytes) -> None:
        last = self._pieces[-1] if self._pieces else None
        if len(piece) >= _PIECE_BYTES_MIN:
            self._pieces.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _oversized(self, line: bytes, size: int) -> Oversized:
        if self._is_first_line:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return Oversized(size, line[: min(_HEAD_BYTES, self._frame_bytes_max)])

    def _forget(self) -> None:
        self._pieces.clear()
        self._pending_bytes = 0


def has_line_end(data: bytes) -> bool:
    """Return whether a CR or an LF is in it."""
    return _LF in data or _CR in data


def one_line(data: bytes) -> bytes:
    """A message as a frame; what is no JSON stays none, and is judged by who decodes it."""
    if not has_line_end(data):
        return data
    try:
        return msgspec.json.format(data, indent=-1)
    except msgspec.MsgspecError:
        return data.replace(b"\n", b" ").replace(b"\r", b" ")


def bounded(frame: bytes, *, message_bytes_max: int) -> "bytes | Oversized":
    """The frame, or what is reported of one over the limit."""
    if len(frame) <= message_bytes_max:
        return frame
    return Oversized(len(frame), frame[: min(_HEAD_BYTES, message_bytes_max)])


def join_lines(frames: Sequence[bytes]) -> bytes:
    """The bytes to write for `frames`, none of which may hold an LF."""
    return b"\n".join([*frames, b""])
