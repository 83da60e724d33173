"""Recordings: replaying, reading, checking and comparing them."""

from mcp_trio._errors import RecordingError, ReplayDivergence
from mcp_trio._journal.diff import Difference, diff
from mcp_trio._journal.reader import CheckReport, Flaw, check, read_recording
from mcp_trio._journal.records import Record, frame_of
from mcp_trio._recorder.sink import open_recording
from mcp_trio._replay import ReplayReport, replay, replay_async

__all__ = [
    "CheckReport",
    "Difference",
    "Flaw",
    "Record",
    "RecordingError",
    "ReplayDivergence",
    "ReplayReport",
    "check",
    "diff",
    "frame_of",
    "open_recording",
    "read_recording",
    "replay",
    "replay_async",
]
