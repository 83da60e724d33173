"""What people test with: scripted peers, connections that fail, simulated worlds, checks."""

from mcp_trio._errors import MockMismatch
from mcp_trio._replay.inputs import mock_client
from mcp_trio._replay.mock import MockServer, mock_server
from mcp_trio._testing.channel_contract import (
    CHANNEL_CHECKS,
    check_channel,
    check_channel_for,
)
from mcp_trio._testing.faults import Fault, Faults
from mcp_trio._testing.faulty_channel import FaultyChannel, channel_pair
from mcp_trio._testing.simulated import SimulatedRequest, SimulatedSession, SimulationReport
from mcp_trio._testing.simulation import simulate
from mcp_trio._testing.wire_peer import WirePeer

__all__ = [
    "CHANNEL_CHECKS",
    "Fault",
    "Faults",
    "FaultyChannel",
    "MockMismatch",
    "MockServer",
    "SimulatedRequest",
    "SimulatedSession",
    "SimulationReport",
    "WirePeer",
    "channel_pair",
    "check_channel",
    "check_channel_for",
    "mock_client",
    "mock_server",
    "simulate",
]
