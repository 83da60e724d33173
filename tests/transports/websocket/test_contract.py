"""Both ends of a WebSocket keep the contract of a channel, over real sockets."""

import pytest

from mcp_trio.testing import CHANNEL_CHECKS, check_channel_for
from tests.transports.websocket.conftest import LIMITS


@pytest.mark.real_time
@pytest.mark.requirement("TRAN-01", "TRAN-02")
@pytest.mark.parametrize("check", CHANNEL_CHECKS)
async def test_a_websocket_keeps_the_contract(make_pair, check):
    await check_channel_for(check, make_pair, limits=LIMITS)
