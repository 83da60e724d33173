"""Sessions, the tasks that they start, and the journal's total order."""

from mcp_trio._engine.application import AccompaniedSession, Application
from mcp_trio._engine.asking import ask_all
from mcp_trio._engine.calls import Asked, Call, ProgressCallback
from mcp_trio._engine.effects import (
    Codec,
    Effect,
    abandon_effect,
    perform,
    perform_in_passing,
    perform_in_thread,
    randomness,
    read_clock,
    takes_patch,
    time_limit,
)
from mcp_trio._engine.groups import bare, foremost
from mcp_trio._engine.handling import INSIDE, Handling, HandlingSession, Inside
from mcp_trio._engine.lanes import LANE, Lane, lane_in
from mcp_trio._engine.leading import Led, Served, lead
from mcp_trio._engine.memory import Memory, Place, Step
from mcp_trio._engine.resuming import run_resumably
from mcp_trio._engine.sequencer import UNRECORDED, Outcome, Recording, Sequencer, Unrecorded
from mcp_trio._engine.session import Session
from mcp_trio._engine.tasks import sheltered
from mcp_trio._engine.together import together
from mcp_trio._engine.warm_tasks import WarmTasks

__all__ = [
    "INSIDE",
    "LANE",
    "UNRECORDED",
    "AccompaniedSession",
    "Application",
    "Asked",
    "Call",
    "Codec",
    "Effect",
    "Handling",
    "HandlingSession",
    "Inside",
    "Lane",
    "Led",
    "Memory",
    "Outcome",
    "Place",
    "ProgressCallback",
    "Recording",
    "Sequencer",
    "Served",
    "Session",
    "Step",
    "Unrecorded",
    "WarmTasks",
    "abandon_effect",
    "ask_all",
    "bare",
    "foremost",
    "lane_in",
    "lead",
    "perform",
    "perform_in_passing",
    "perform_in_thread",
    "randomness",
    "read_clock",
    "run_resumably",
    "sheltered",
    "takes_patch",
    "time_limit",
    "together",
]
