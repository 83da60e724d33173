"""The recording that a proxy makes: every byte that passes, told from the server's side."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from mcp_trio._errors import RecordingError
from mcp_trio._journal.records import MarkBody, ShutBody, encode_body
from mcp_trio._limits import Limits
from mcp_trio._proxy.handshake import Handshake
from mcp_trio._proxy.lines import Line, LineCutter
from mcp_trio._recorder.opening import open_recorder
from mcp_trio._recorder.options import RecordOptions, options_of
from mcp_trio._recorder.recorder import Recorder
from mcp_trio._transports.child_process import signal_name
from mcp_trio._wire import Decoder, Malformed

Way = Literal["in", "out"]
"""From the client to the server, and from the server to the client."""

Cause = Literal["eof", "signal", "closed", "lost"]

_COUNTS: Final = ("in", "out", "in_bytes", "out_bytes", "malformed")


@attrs.define(kw_only=True, eq=False)
class ProxyJournal:
    """Records the lines of both directions as they pass; made by `start_journal`.

    A record is handed to the system by the call that completes its line, so before the caller sends
    the line's last byte on. `x` of a record says `{"lf": false}` where no LF stands behind the
    frame: it is the end of its direction, or with `{"part": 1}` a part of a line longer than
    `frame_bytes_max`. Frames joined in this way are the bytes that passed.
    """

    recorder: Recorder
    limits: Limits
    _lines: dict[Way, LineCutter] = attrs.field(init=False)
    _decoder: Decoder = attrs.field(init=False)
    _handshake: Handshake = attrs.field(factory=Handshake, init=False)
    _counts: Counter[str] = attrs.field(init=False)
    _cause: Cause | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        line_bytes_max = self.limits.frame_bytes_max
        self._lines = {
            "in": LineCutter(line_bytes_max=line_bytes_max),
            "out": LineCutter(line_bytes_max=line_bytes_max),
        }
        self._decoder = Decoder(json_depth_max=self.limits.json_depth_max)
        self._counts = Counter(dict.fromkeys(_COUNTS, 0))

    def passes(self, way: Way, chunk: bytes) -> None:
        """Records the lines that `chunk` completes; it may be sent on then."""
        self._counts[f"{way}_bytes"] += len(chunk)
        self._write(way, self._lines[way].feed(chunk))

    def ends(self, way: Way) -> None:
        """Records a last line without LF; when the client has ended, that the session does."""
        self._write(way, self._lines[way].finish())
        if way == "in":
            self.shut("eof")

    def shut(self, cause: Cause) -> None:
        """Records why the session ends; only the first cause is one."""
        if self._cause is None:
            self._cause = cause
            self.recorder.record("shut", encode_body(ShutBody(cause=cause)))
            self.recorder.flush()

    def close(self, exit_status: int | None) -> None:
        """Records what is left, and how the server ended; None: it did not, or never began."""
        for way, cutter in self._lines.items():
            self._write(way, cutter.finish())
        self.shut("closed")
        if exit_status is not None:
            ending = exit_status if exit_status >= 0 else signal_name(-exit_status)
            self._mark("exited", ending)
        self.recorder.close(dict(self._counts))

    def _write(self, way: Way, lines: Iterable[Line]) -> None:
        for line in lines:
            if line.part is None:
                self._record_message(way, line)
            else:
                self._record(way, line, embed=False)
        self.recorder.flush()

    def _record_message(self, way: Way, line: Line) -> None:
        messages = self._decoder.messages(line.data)
        is_accepted = not any(isinstance(message, Malformed) for message in messages)
        self._counts["malformed"] += not is_accepted
        self._record(way, line, embed=is_accepted)
        for message in messages:
            if way == "in":
                self._handshake.to_server(message)
            elif facts := self._handshake.to_client(message):
                self._mark("negotiated", facts)

    def _record(self, way: Way, line: Line, *, embed: bool) -> None:
        self._counts[way] += 1
        self.recorder.record(way, line.data, envelope=line.envelope, embed=embed)

    def _mark(self, name: str, value: Any) -> None:
        self.recorder.record("mark", encode_body(MarkBody(name=name, value=value)))


def start_journal(
    record: str | os.PathLike[str] | RecordOptions, command: Sequence[str], *, limits: Limits
) -> ProxyJournal:
    """A recording to a new or empty file, or in a folder, named after the command's program.

    Raises:
        RecordingError: The file cannot be made, or holds something already.
    """
    options = options_of(record)
    path = Path(options.path)
    if path.is_file() and path.stat().st_size:
        raise RecordingError(
            f"cannot record to {path}: it is there already; "
            "a folder gets a file of its own for each session"
        )
    recorder = open_recorder(
        options,
        role="proxy",
        transport="stdio",
        name=Path(command[0]).name,
        version="",
        limits=limits,
    )
    return ProxyJournal(recorder=recorder, limits=limits)
