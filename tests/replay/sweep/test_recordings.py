"""The recordings that can be swept."""

import json

import pytest

from mcp_trio import Server, effect
from mcp_trio.errors import RecordingError
from mcp_trio.recording import RecordOptions, Redaction, SharedRecording, sweep


def test_redacted_values_are_not_compared(sums, world, tmp_path):
    def make(*, place="home"):
        server = Server("sums")

        @effect
        async def login(password: str, pin: int) -> str:
            return f"of {password}"

        @server.tool
        async def enter(password: str, pin: int) -> dict[str, str | int]:
            return {
                "at": place + await login("secret " + password, pin),
                "token": "abcd-1234",
                "pin": 70707,
            }

        return server

    async def talk(peer, session):
        await peer.handshake()
        await peer.send(sums.call(1, "enter", password="swordfish", pin=9137))
        await peer.receive()

    options = RecordOptions(
        tmp_path / "redacted.mcprec.jsonl", redaction=Redaction(keys=["password", "token", "pin"])
    )
    world.record(make(), options, talk)
    path = options.path
    assert b"swordfish" not in path.read_bytes()
    assert sweep(path, make, schedules=2).is_clean
    (difference,) = sweep(path, lambda: make(place="cave"), schedules=1).differences
    assert "caveof" in difference.swept


def rewritten(world, path, tmp_path, change):
    def changed(lines):
        records = [json.loads(line) for line in lines]
        change(records)
        return [json.dumps(record).encode() + b"\n" for record in records]

    return world.rewrite(path, tmp_path / "changed.mcprec.jsonl", changed)


def test_a_recording_of_a_client_is_rejected(sums, world, path, tmp_path):
    changed = rewritten(world, path, tmp_path, lambda rows: rows[0]["f"].update(role="client"))
    with pytest.raises(RecordingError, match="of role 'client'"):
        sweep(changed, sums.make_server)


def test_a_recording_of_several_sessions_is_rejected(sums, world, tmp_path):
    with SharedRecording(tmp_path / "shared.mcprec.jsonl") as shared:
        world.record(sums.make_server(), shared, talk_shortly)
    with pytest.raises(RecordingError, match="one session"):
        sweep(tmp_path / "shared.mcprec.jsonl", sums.make_server)


async def talk_shortly(peer, session):
    await peer.handshake()


def test_a_cut_recording_is_swept_up_to_the_cut(sums, world, path, tmp_path):
    lines = len(path.read_bytes().splitlines())
    for count in range(1, lines):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda rows, n=count: rows[:n])
        assert sweep(cut, lambda: sums.make_server(exclusive=True), schedules=1).is_clean


def test_invalid_messages_are_delivered(sums, world, tmp_path):
    async def talk(peer, session):
        await peer.handshake()
        await peer.send(b"{", b"[" * 5000, {"id": 1, "method": "ping"})
        await peer.receive()

    path = world.record(sums.make_server(), tmp_path / "bad.mcprec.jsonl", talk)
    assert sweep(path, sums.make_server, schedules=3).is_clean
