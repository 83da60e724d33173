"""A redacted recording of a session contains no secret, and replays."""

import json
import re
from base64 import b64encode
from urllib.parse import quote

import pytest
import trio

from mcp_trio import Client, Context, Server, ToolError
from mcp_trio._cli.commands import commands
from mcp_trio.recording import RecordOptions, Redaction, open_recording, replay
from mcp_trio.transports import memory_pair

PASSWORD = "Tr0ub4dor-and-3-horses"
GRANTED = "tok_Zyx987Wvu654"
HARD = "known-beforehand-77"
PIN = 915273

OUTSIDE = []


async def ask_outside(url: str, headers: dict[str, str]) -> dict[str, str]:
    OUTSIDE.append(url)
    return {"access_token": GRANTED, "greeting": f"hello {HARD}"}


async def reject(reason: str) -> None:
    raise ValueError(f"refused: {reason}")


def vault():
    server = Server("vault")

    @server.tool
    async def login(user: str, password: str, otp: int, *, ctx: Context) -> str:
        await ctx.info(f"{user} says {password}")
        await ctx.info(password[:11])
        await ctx.info(password[11:])
        url = f"https://me:{password}@host/?token={quote(password)}&otp={otp}"
        answer = await ctx.effect(ask_outside, url, {"x-api-key": password})
        try:
            await ctx.effect(reject, answer["access_token"])
        except ValueError as error:
            await ctx.info(str(error))
        encoded = b64encode(json.dumps(["picture", password, answer]).encode()).decode()
        return json.dumps({"said": password, "got": answer, "encoded": encoded, "n": otp}, indent=1)

    @server.tool
    async def fail(password: str) -> str:
        raise ToolError(f"wrong: {password}")

    return server


async def record(to):
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: vault().serve(theirs, record=to))
        async with Client(ours) as client:
            arguments = {"user": "ann", "password": PASSWORD, "otp": PIN}
            await client.call_tool("login", arguments)
            with pytest.raises(ToolError, match=PASSWORD):
                await client.call_tool("fail", {"password": PASSWORD})


def said_anywhere(path):
    text = b"".join(open_recording(path))
    secrets = [PASSWORD.encode(), GRANTED.encode(), HARD.encode(), str(PIN).encode()]
    in_base64 = [
        b64encode(bytes(offset) + secret)[4:-4] for secret in secrets[:3] for offset in range(3)
    ]
    return [secret for secret in (*secrets, *in_base64) if secret in text]


@pytest.fixture(autouse=True)
def outside():
    OUTSIDE.clear()
    return OUTSIDE


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_no_secret_is_in_a_redacted_recording_and_it_replays(tmp_path, outside, suffix):
    path = tmp_path / f"trip.mcprec.jsonl{suffix}"
    trio.run(record, RecordOptions(path, redaction=Redaction(secrets=[HARD])))
    assert said_anywhere(path) == []
    assert PASSWORD in outside[0]
    report = replay(path, vault())
    assert report.requests >= 2
    assert len(outside) == 1


def test_without_redaction_they_are(tmp_path):
    path = tmp_path / "trip.mcprec.jsonl"
    trio.run(record, path)
    assert len(said_anywhere(path)) > 4


def test_a_recording_that_is_redacted_afterwards_replays(tmp_path):
    path, clean = tmp_path / "trip.mcprec.jsonl", tmp_path / "clean.mcprec.jsonl"
    trio.run(record, path)
    values = tmp_path / "values"
    values.write_text(HARD)
    arguments = ["redact", str(path), "-o", str(clean), "--values", str(values)]
    commands.main(arguments, standalone_mode=False)
    assert said_anywhere(clean) == []
    replay(clean, vault())


@pytest.mark.parametrize("secret", ["own-secret-12345", "0042"])
def test_with_the_key_a_secret_of_the_servers_own_replays(tmp_path, secret):
    def mint():
        server = Server("mint")

        @server.tool
        async def coin() -> dict[str, str]:
            return {"token": secret, "again": f"say {secret}"}

        return server

    async def record():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: mint().serve(theirs, record=options))
            async with Client(ours) as client:
                await client.call_tool("coin", {})

    key = b"sixteen bytes or more"
    options = RecordOptions(tmp_path / "a.mcprec.jsonl", redaction=Redaction(key=key))
    trio.run(record)
    assert re.search(rf"\b{secret}\b", options.path.read_text()) is None
    assert replay(options.path, mint(), key=key).is_complete
