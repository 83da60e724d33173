"""Rounds with secrets in their answers: none reaches the file, the states stay, and it replays."""

import json

import attrs
import pytest
import trio

from mcp_trio import Client, Context, Server
from mcp_trio._cli.commands import commands
from mcp_trio._journal.secret_detection import likely_secrets
from mcp_trio.recording import RecordOptions, Redaction, open_recording, replay
from mcp_trio.transports import memory_pair

PASSWORD = "Tr0ub4dor-and-3-horses"
PROTOCOL_VERSION = "2026-07-28"


@attrs.define
class Note:
    user: str
    text: str


def vault():
    server = Server("vault")

    @server.tool
    async def suspended(password: str, *, ctx: Context) -> str:
        answer = await ctx.elicit(f"Who has {password}?", Note)
        await ctx.info(answer.data.text)
        return answer.data.text

    @server.tool(resumable=True)
    async def sealed(password: str, *, ctx: Context) -> str:
        answer = await ctx.elicit("Who?", Note)
        again = await ctx.elicit("Again?", Note)
        return f"{answer.data.text} {again.data.user} {password}"

    return server


async def record(to, protocol_version):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: vault().serve(theirs, record=to))
        fill_in = lambda _: {"user": "ann", "text": f"It is {PASSWORD}"}  # noqa: E731
        async with Client(
            ours, protocol_versions=(protocol_version,), elicitation=fill_in
        ) as client:
            for name in ("suspended", "sealed"):
                result = await client.call_tool(name, {"password": PASSWORD})
                assert PASSWORD in result.content[0].text


def states_in(path):
    """What the server gave to its client, and what came back."""
    frames = [json.loads(line).get("f", {}) for line in open_recording(path)]
    given = [each["result"].get("requestState") for each in frames if "result" in each]
    came = [each.get("params", {}).get("requestState") for each in frames if "method" in each]
    return [it for it in given if it], [it for it in came if it]


@pytest.mark.parametrize("protocol_version", ["2025-06-18", "2025-11-25", PROTOCOL_VERSION])
async def test_a_redacted_recording_with_questions_replays(tmp_path, protocol_version):
    path = tmp_path / "a.mcprec.jsonl"
    await record(RecordOptions(path, redaction=Redaction()), protocol_version)
    assert PASSWORD.encode() not in b"".join(open_recording(path))
    report = await trio.to_thread.run_sync(replay, path, vault())
    assert report.is_complete


async def test_the_states_of_requests_are_not_touched(tmp_path):
    path = tmp_path / "a.mcprec.jsonl"
    await record(RecordOptions(path, redaction=Redaction()), PROTOCOL_VERSION)
    given, came = states_in(path)
    assert given == came
    assert [state.startswith("parked.") for state in given] == [True, False, False]


async def test_what_is_redacted_afterwards_replays_and_has_the_same_states(tmp_path):
    path, clean = tmp_path / "a.mcprec.jsonl", tmp_path / "b.mcprec.jsonl"
    await record(path, PROTOCOL_VERSION)
    with pytest.raises(SystemExit) as ended:
        await trio.to_thread.run_sync(commands, ["redact", str(path), "-o", str(clean)])
    assert ended.value.code == 0
    assert PASSWORD.encode() not in b"".join(open_recording(clean))
    assert states_in(clean) == states_in(path)
    assert (await trio.to_thread.run_sync(replay, clean, vault())).is_complete


async def test_a_scan_finds_nothing_in_states(tmp_path, capsys):
    path, clean = tmp_path / "a.mcprec.jsonl", tmp_path / "b.mcprec.jsonl"
    await record(RecordOptions(clean, redaction=Redaction()), PROTOCOL_VERSION)
    await record(path, PROTOCOL_VERSION)
    statuses = []
    for each in (clean, path):
        with pytest.raises(SystemExit) as ended:
            await trio.to_thread.run_sync(commands, ["scan", str(each)])
        statuses.append(ended.value.code)
    assert statuses == [0, 1]
    shown = capsys.readouterr().out
    assert "secret name" in shown
    assert "high entropy" not in shown


def test_disorder_is_no_secret_in_a_state_but_elsewhere():
    disorder = b"aB3dE6gH9jK2mN5pQ8sT1vW4"
    for path, count in ((b"requestState", 0), (b"other", 1)):
        assert len(likely_secrets(b'{"result":{"%s":"%s"}}' % (path, disorder))) == count


def test_a_known_key_is_found_in_a_state_as_well():
    body = b'{"result":{"requestState":"AKIAIOSFODNN7EXAMPLE"}}'
    assert [each.path for each in likely_secrets(body)] == ["$.result.requestState"]
