"""The transport of the example: its size, a session over it, recorded and replayed.

The checks of the contract are put to it in `tests/transports/test_channel_contract.py`.
"""

import os
from pathlib import Path

import pytest
import trio
from channel_pairs import named_pipes_in

from mcp_trio import Client
from mcp_trio.examples import named_pipes
from mcp_trio.examples.named_pipes import open_named_pipes
from mcp_trio.examples.weather import server
from mcp_trio.recording import open_recording, read_recording, replay_async
from tests.client.conftest import open_descriptors


@pytest.fixture
def folder(tmp_path):
    for name in ("to-server", "to-client"):
        os.mkfifo(tmp_path / name, 0o600)
    return tmp_path


def test_the_example_has_forty_lines():
    lines = Path(named_pipes.__file__).read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line]) <= 40


@pytest.mark.real_time
@pytest.mark.requirement("TRAN-06")
@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_session_over_named_pipes_is_recorded_and_replayed(
    nursery, folder, protocol_version
):
    path = folder / "pipes.mcprec.jsonl"
    served = trio.Event()

    async def serve():
        await server.serve(await open_named_pipes(folder, is_server=True), record=path)
        served.set()

    nursery.start_soon(serve)
    channel = await open_named_pipes(folder, is_server=False)
    told = []
    async with Client(channel, protocol_versions=[protocol_version]) as client:
        await client.call_tool("forecast", {"city": "Oslo"}, progress=told.append)
        assert len(told) == 3
    await served.wait()
    records = [*read_recording(open_recording(path))]
    assert b'"transport":"pipes"' in bytes(records[0].body)
    report = await replay_async(path, server)
    assert report.is_complete
    assert report.records == len(records) - 1  # without the first, which tells what it is


@pytest.mark.real_time
async def test_a_send_cancelled_within_a_line_closes_the_pipe(tmp_path):
    ours, theirs = await named_pipes_in(tmp_path)
    with trio.move_on_after(0.05):
        await ours.send([b"x" * 1_000_000])
    with pytest.raises(trio.ClosedResourceError):
        await ours.send([b"{}"])
    await ours.aclose()
    received = []
    while frames := await theirs.receive():
        received += frames
    await theirs.aclose()
    (piece,) = received
    assert set(piece) == {ord("x")}


@pytest.mark.parametrize("is_server", [True, False])
async def test_an_opening_that_fails_half_way_leaves_nothing_open(folder, is_server):
    (folder / "to-client").unlink()
    with (folder / "to-server").open("rb+", buffering=0):  # the other end
        before = open_descriptors()
        with pytest.raises(FileNotFoundError):
            await open_named_pipes(folder, is_server=is_server)
        assert open_descriptors() == before
