"""A compressed recording, which can be read while it is being written."""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zstandard

from mcp_trio._recorder.sink import FileSink

if TYPE_CHECKING:  # a name of its stubs alone
    from zstandard import ZstdCompressionObj

# An empty last block: what a frame without checksum ends with, whatever came before.
_FRAME_END: Final = b"\x01\x00\x00"

# A session keeps a window of this size (2 to the power of it, in bytes) in memory.
_WINDOW_LOG: Final = 17
_LEVEL: Final = 3


class CompressedSink:
    """Writes to `file` in Zstandard, whole blocks each time: no byte waits for those behind it.

    A write that fails leaves the frame at its last whole block. It is ended there, and what comes
    next is in a frame of its own.
    """

    def __init__(self, file: FileSink) -> None:
        self._file = file
        self._frame: ZstdCompressionObj | None = None
        self._is_in_frame = False

    @property
    def written_bytes(self) -> int:
        """How many bytes the file has."""
        return self._file.written_bytes

    def write(self, data: bytes) -> None:
        """Append all of `data`, or raise and append nothing."""
        head = b""
        if self._frame is None:
            head = _FRAME_END if self._is_in_frame else b""
            self._frame = _new_frame()
        blocks = self._frame.compress(data)
        blocks += self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        try:
            self._file.write(head + blocks)
        except BaseException:
            self._frame = None
            raise
        self._is_in_frame = True

    def close(self) -> None:
        """End the frame, and close the file."""
        if self._is_in_frame:
            with suppress(OSError):
                self._file.write(_FRAME_END)
        self._file.close()


def _new_frame() -> "ZstdCompressionObj":
    parameters = zstandard.ZstdCompressionParameters(
        compression_level=_LEVEL,
        window_log=_WINDOW_LOG,
        write_checksum=False,
        write_content_size=False,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj()
