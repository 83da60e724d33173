"""Reading a compressed recording, however much of it is there."""

import io
from typing import IO, Any, Final

import zstandard

# Few bytes may stand for many: 4 for a block of 128 KiB.
_CHUNK_BYTES: Final = 512


class Decompressed(io.RawIOBase):
    """What the blocks of `file` hold, as far as they are there, whether or not their frame ended.

    `ZstdDecompressor.stream_reader` will not do: where a frame has not ended, it keeps what did not
    fit into the last read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._frames = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` as far as it can be; 0 at the end.

        Raises:
            zstandard.ZstdError: The file is not compressed, or damaged.
        """
        while not self._rest:
            chunk = self._file.read(_CHUNK_BYTES)
            if not chunk:
                return 0
            self._rest = memoryview(self._frames.decompress(chunk))
        room = memoryview(buffer)
        taken = self._rest[: len(room)]
        room[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)
