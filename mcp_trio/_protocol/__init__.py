"""The rules of the protocol, without input, output, clock or chance."""

from mcp_trio._protocol.admission import Admission
from mcp_trio._protocol.budgets import Budget
from mcp_trio._protocol.connection import Capabilities, Connection
from mcp_trio._protocol.events import (
    AnswerArrived,
    Event,
    Ignored,
    NotificationArrived,
    ProgressArrived,
    Reply,
    RequestCancelled,
    RequestToRun,
)
from mcp_trio._protocol.methods import (
    CANCELLED,
    INITIALIZE,
    INITIALIZED,
    METHODS,
    PING,
    PROGRESS,
    Method,
    Need,
    announced,
)
from mcp_trio._protocol.progress import may_report
from mcp_trio._protocol.requests import (
    OurRequest,
    OurRequests,
    RequestId,
    TheirRequest,
    TheirRequests,
)
from mcp_trio._protocol.revisions import NEWEST_LEGACY, REVISIONS, Revision, negotiated
from mcp_trio._protocol.states import (
    OUR_MOVES,
    SESSION_MOVES,
    THEIR_MOVES,
    Input,
    OurMove,
    OurState,
    Role,
    SessionState,
    TheirMove,
    TheirState,
    moved,
)

__all__ = [
    "CANCELLED",
    "INITIALIZE",
    "INITIALIZED",
    "METHODS",
    "NEWEST_LEGACY",
    "OUR_MOVES",
    "PING",
    "PROGRESS",
    "REVISIONS",
    "SESSION_MOVES",
    "THEIR_MOVES",
    "Admission",
    "AnswerArrived",
    "Budget",
    "Capabilities",
    "Connection",
    "Event",
    "Ignored",
    "Input",
    "Method",
    "Need",
    "NotificationArrived",
    "OurMove",
    "OurRequest",
    "OurRequests",
    "OurState",
    "ProgressArrived",
    "Reply",
    "RequestCancelled",
    "RequestId",
    "RequestToRun",
    "Revision",
    "Role",
    "SessionState",
    "TheirMove",
    "TheirRequest",
    "TheirRequests",
    "TheirState",
    "announced",
    "may_report",
    "moved",
    "negotiated",
]
