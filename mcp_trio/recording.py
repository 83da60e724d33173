"""Recordings: making, reading, replaying, sweeping, comparing and finding them."""

from mcp_trio._catalogue.catalogue import Catalogue, CatalogueRow, IndexReport
from mcp_trio._catalogue.statistics import Statistics, ToolStatistics, statistics
from mcp_trio._journal.diff import Difference, diff
from mcp_trio._journal.export import export_jsonld
from mcp_trio._journal.reader import CheckReport, Damage, check, read_recording
from mcp_trio._journal.records import Record, body_bytes
from mcp_trio._journal.redaction import Redaction
from mcp_trio._journal.secret_names import DEFAULT_SECRET_NAMES
from mcp_trio._recorder.clock import TickClock
from mcp_trio._recorder.files import open_recording
from mcp_trio._recorder.options import RecordOptions, SharedRecording
from mcp_trio._recorder.policy import RecordPolicy, RecordStatus
from mcp_trio._replay.live_replay import (
    InputDifference,
    InputsReport,
    replay_live,
    replay_live_async,
)
from mcp_trio._replay.replay import ReplayReport, replay, replay_async
from mcp_trio._replay.schedules import Schedule
from mcp_trio._replay.sweep import ScheduleDifference, SweepReport, sweep
from mcp_trio._session.untracked_calls import UntrackedCall
from mcp_trio.errors import NothingCompared, RecordingError, ReplayDivergence

__all__ = [
    "DEFAULT_SECRET_NAMES",
    "Catalogue",
    "CatalogueRow",
    "CheckReport",
    "Damage",
    "Difference",
    "IndexReport",
    "InputDifference",
    "InputsReport",
    "NothingCompared",
    "Record",
    "RecordOptions",
    "RecordPolicy",
    "RecordStatus",
    "RecordingError",
    "Redaction",
    "ReplayDivergence",
    "ReplayReport",
    "Schedule",
    "ScheduleDifference",
    "SharedRecording",
    "Statistics",
    "SweepReport",
    "TickClock",
    "ToolStatistics",
    "UntrackedCall",
    "body_bytes",
    "check",
    "diff",
    "export_jsonld",
    "open_recording",
    "read_recording",
    "replay",
    "replay_async",
    "replay_live",
    "replay_live_async",
    "statistics",
    "sweep",
]
