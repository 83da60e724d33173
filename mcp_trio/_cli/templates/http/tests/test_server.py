"""Tests of the server: by its recorded session, and by clients in this process."""

import json

import pytest
from mcp_trio import Client

from my_server.server import ALL_NOTES, server


@pytest.fixture(autouse=True)
def notes_file(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES_FILE", str(tmp_path / "notes.jsonl"))


@pytest.mark.mcp_recording("session.mcprec.jsonl")
def test_the_recorded_session_replays(mcp_replay):
    mcp_replay(server)


async def test_another_client_reads_the_note_of_the_first():
    async with Client(server) as first:
        await first.call_tool("add_note", {"text": "Water the plants."})
    async with Client(server) as second:
        result = await second.read_resource(ALL_NOTES)
    assert json.loads(result.contents[0].text) == ["Water the plants."]
