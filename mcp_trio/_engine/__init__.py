"""Sessions as nurseries of actors, and the journal's total order."""

from mcp_trio._engine.answering import bare
from mcp_trio._engine.application import AccompaniedSession, Application
from mcp_trio._engine.calls import ProgressCallback
from mcp_trio._engine.handling import Handling
from mcp_trio._engine.lanes import LANE, Lane
from mcp_trio._engine.sequencer import Recording, Sequencer, Unrecorded
from mcp_trio._engine.session import Session

__all__ = [
    "LANE",
    "AccompaniedSession",
    "Application",
    "Handling",
    "Lane",
    "ProgressCallback",
    "Recording",
    "Sequencer",
    "Session",
    "Unrecorded",
    "bare",
]
