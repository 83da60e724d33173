"""Images and sound to return from handlers, from bytes or from a file."""

import os
import pathlib
from typing import ClassVar, Final

import attrs

# How the data begin, from which byte on, and the second half of the MIME type that this tells.
_IMAGES: Final = (
    (0, b"\x89PNG", "png"),
    (0, b"\xff\xd8\xff", "jpeg"),
    (0, b"GIF8", "gif"),
    (8, b"WEBP", "webp"),
    (4, b"ftypavif", "avif"),
    (0, b"BM", "bmp"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (0, b"<svg", "svg+xml"),
)
_SOUNDS: Final = (
    (8, b"WAVE", "wav"),
    (0, b"ID3", "mpeg"),
    (0, b"\xff\xfb", "mpeg"),
    (0, b"OggS", "ogg"),
    (0, b"fLaC", "flac"),
    (4, b"ftypM4A", "mp4"),
)
_SUFFIXES: Final = {
    "jpg": "jpeg",
    "svg": "svg+xml",
    "tif": "tiff",
    "mp3": "mpeg",
    "m4a": "mp4",
    "oga": "ogg",
}


@attrs.frozen(init=False)
class _Media:
    """Bytes with a MIME type."""

    data: bytes
    format: str

    _kind: ClassVar[str]
    _beginnings: ClassVar[tuple[tuple[int, bytes, str], ...]]
    _usual: ClassVar[str]

    def __init__(
        self,
        data: bytes | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,  # noqa: A002 - the word of every library for media
    ) -> None:
        """Take the bytes, or read the file.

        Raises:
            TypeError: There have to be either `data` or a `path`.
            OSError: The file cannot be read.
        """
        if (data is None) is (path is None):
            kind = type(self).__name__
            raise TypeError(f"an {kind} is made of data or of a path, one of the two")
        found = pathlib.Path(path).read_bytes() if path is not None else data or b""
        suffix = pathlib.PurePath(path or "").suffix
        object.__setattr__(self, "data", found)
        object.__setattr__(self, "format", format or self._format(found, suffix))

    @property
    def mime_type(self) -> str:
        """The MIME type, such as `image/png`."""
        return f"{self._kind}/{self.format}"

    def _format(self, data: bytes, suffix: str) -> str:
        for start, beginning, name in self._beginnings:
            if data.startswith(beginning, start):
                return name
        suffix = suffix.removeprefix(".").lower()
        return _SUFFIXES.get(suffix, suffix) or self._usual


class Image(_Media):
    """An image to return from a handler, from bytes or from a file that is read at once.

    Attributes:
        data: The bytes of the image.
        format: The second half of its MIME type. If it is not given, the first bytes tell it, or
            else the file's suffix; if nothing does, it is `png`.
    """

    _kind = "image"
    _beginnings = _IMAGES
    _usual = "png"


class Audio(_Media):
    """Sound to return from a handler; see `Image`. If nothing tells the format, it is `wav`.

    Clients that know no sound get it as an embedded file.
    """

    _kind = "audio"
    _beginnings = _SOUNDS
    _usual = "wav"
