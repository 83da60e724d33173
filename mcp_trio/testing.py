"""Test tools: mocks, scripted peers, faulty connections, simulations, checks of stores, logins."""

from mcp_trio._replay.live_replay import mock_client
from mcp_trio._replay.mock import MockServer, mock_server
from mcp_trio._testing.channels import CHANNEL_CHECKS, check_channel, check_channel_for
from mcp_trio._testing.faults import Fault, Faults, FaultyChannel, channel_pair
from mcp_trio._testing.peers import WirePeer, allow_access
from mcp_trio._testing.simulation import (
    SimulatedRequest,
    SimulatedSession,
    SimulationReport,
    simulate,
)
from mcp_trio._testing.store_contracts import (
    LIMIT_STORE_CHECKS,
    check_change_store,
    check_event_store,
    check_instance_store,
    check_limit_store,
    check_state_store,
    check_stores,
)
from mcp_trio.errors import MockMismatch

__all__ = [
    "CHANNEL_CHECKS",
    "LIMIT_STORE_CHECKS",
    "Fault",
    "Faults",
    "FaultyChannel",
    "MockMismatch",
    "MockServer",
    "SimulatedRequest",
    "SimulatedSession",
    "SimulationReport",
    "WirePeer",
    "allow_access",
    "channel_pair",
    "check_change_store",
    "check_channel",
    "check_channel_for",
    "check_event_store",
    "check_instance_store",
    "check_limit_store",
    "check_state_store",
    "check_stores",
    "mock_client",
    "mock_server",
    "simulate",
]
