"""What a subprocess says on stderr: the end is kept for error texts, lines are forwarded."""

import logging
import sys
from collections.abc import Callable

import attrs

_log = logging.getLogger(__name__)


def to_our_stderr(line: str) -> None:
    """Forwards a line to this program's own stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@attrs.define(kw_only=True)
class StderrTail:
    """The last `bytes_max` bytes, and a consumer of whole lines.

    A line longer than `bytes_max` is forwarded in pieces. A consumer that raises is logged and not
    called again: what the subprocess says must never end the session.
    """

    bytes_max: int
    forward: Callable[[str], None] | None = None
    _tail: bytes = attrs.field(default=b"", init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _line: bytes = attrs.field(default=b"", init=False)

    @property
    def text(self) -> str:
        """What was kept, in whole lines where something was cut away."""
        tail = self._tail
        if self._is_cut:
            tail = tail.partition(b"\n")[2] or tail
        return tail.decode(errors="replace").rstrip()

    def feed(self, chunk: bytes) -> None:
        """Takes what was read."""
        kept = self._tail + chunk
        self._is_cut = self._is_cut or len(kept) > self.bytes_max
        self._tail = kept[-self.bytes_max :]
        if self.forward is not None:
            *lines, self._line = (self._line + chunk).split(b"\n")
            for line in lines:
                self._forward(line)
            while len(self._line) > self.bytes_max:
                self._forward(self._line[: self.bytes_max])
                self._line = self._line[self.bytes_max :]

    def finish(self) -> None:
        """Forwards a last line that has no end."""
        if self._line:
            self._forward(self._line)
            self._line = b""

    def _forward(self, line: bytes) -> None:
        if self.forward is None:
            return
        try:
            self.forward(line.decode(errors="replace").removesuffix("\r"))
        except Exception:
            self.forward = None
            _log.exception("the consumer of a subprocess's stderr failed; it is not called again")
