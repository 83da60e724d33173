"""Property 8: a redacted secret is in no byte of any file, and the recording replays."""

import base64
import json
import os
import re
import tempfile
from pathlib import Path
from urllib.parse import quote

import attrs
import httpx2
import pytest
import trio
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_trio import Context, Limits, Server, ToolError, effect
from mcp_trio.http import EffectTransport
from mcp_trio.limits import MessageLimits, ShutdownLimits
from mcp_trio.recording import RecordOptions, Redaction, check, open_recording
from mcp_trio.transports import open_stdio_channel

pytestmark = pytest.mark.slow

# Three secrets: known by their names, a number, and one that is given before anything is recorded.


@attrs.frozen
class Secrets:
    password: str = "Tr0ub4dor & drei Pferde"
    granted: str = "tok_Zyx987Wvu654"
    hard: str = "known-beforehand-77"
    pin: int = 915273644821

    def texts(self):
        return (self.password, self.granted, self.hard, str(self.pin))


def disguises(secret):
    """Every form in which a secret may stand in a file, by its name."""
    utf8 = secret.encode()
    once = json.dumps(secret)[1:-1]
    forms = {
        "plain": utf8,
        "escaped": once.encode(),
        "escaped twice": json.dumps(once)[1:-1].encode(),
        "percent": quote(secret, safe="").encode(),
        "hex": utf8.hex().encode(),
    }
    for offset in range(3):
        forms[f"base64 at {offset}"] = _in_base64(utf8, offset)
        forms[f"base64 of escaped at {offset}"] = _in_base64(once.encode(), offset)
    return forms


def _in_base64(data, offset):
    """Return the part of the data's base64 that does not depend on the bytes around it."""
    coded = base64.b64encode(bytes(offset) + data)
    return coded[4:-4] if offset else coded[:-4]


def found(folder, secrets):
    """Which secrets stand in which files, and how."""
    hits = []
    for file in folder.iterdir():
        data = _bytes_of(file)
        for secret in secrets.texts():
            forms = disguises(secret).items()
            hits += [(file.name, secret, form) for form, coded in forms if coded in data]
            for half in (secret[: len(secret) // 2], secret[len(secret) // 2 :]):
                if _bare(half) in _bare(data.decode()):
                    hits.append((file.name, half, "bare"))
    return hits


def _bare(text):
    """Text without escapes, however often it was escaped."""
    whole = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    return re.sub(r"\\+n?", "", whole)


def _bytes_of(file):
    if file.suffix != ".zst":
        return file.read_bytes()
    with file.open("rb") as opened:
        return zstandard.ZstdDecompressor().stream_reader(opened, read_across_frames=True).read()


LIMITS = Limits(messages=MessageLimits(bytes_max=8_000), shutdown=ShutdownLimits(drain_seconds=0.5))

# A server that sends its secrets to every client, in every way.


@effect
async def ask_elsewhere(url: str, headers: dict[str, str], *, api_key: str) -> dict[str, str]:
    secrets = SECRETS[-1]
    return {"access_token": secrets.granted, "greeting": f"hello {secrets.hard}", "echo": api_key}


@effect
async def reject(reason: str) -> None:
    raise PermissionError(f"refused: {reason}")


@effect
def look_up(password: str) -> str:
    return f"the password is {password}"


@attrs.frozen
class Pieces(httpx2.AsyncByteStream):
    """A body that comes in pieces, each too small for a secret."""

    body: bytes

    async def __aiter__(self):
        for start in range(0, len(self.body), 5):
            yield self.body[start : start + 5]


async def respond(request):
    secrets = SECRETS[-1]
    body = {"client_secret": secrets.granted, "text": f"you sent {request.content.decode()}"}
    headers = {"set-cookie": f"session={secrets.granted}", "location": f"/?token={secrets.granted}"}
    return httpx2.Response(200, stream=Pieces(json.dumps(body).encode()), headers=headers)


SECRETS = [Secrets()]


def vault():
    server = Server("vault", limits=LIMITS)

    @server.tool
    async def login(user: str, password: str, otp: int, *, ctx: Context) -> str:
        middle = len(password) // 2
        await ctx.info(f"{user} says {password}")
        await ctx.info(
            {
                "half": password[:middle],
                "other half": password[middle:],
                "auth": {"token": password},
            }
        )
        url = (
            f"https://me:{quote(password)}@host.example/?token={quote(password, safe='')}&otp={otp}"
        )
        answer = await ask_elsewhere(url, {"x-api-key": password}, api_key=password)
        seen = [look_up(password)]
        try:
            await reject(answer["access_token"])
        except PermissionError as error:
            seen.append(str(error))
        seen.append(
            await fetch(f"https://host.example/?password={quote(password, safe='')}", password)
        )
        shot = base64.b64encode(json.dumps(["picture", password, answer]).encode()).decode()
        return json.dumps({"said": password, "got": answer, "seen": seen, "shot": shot, "n": otp})

    @server.tool
    async def fail(password: str) -> str:
        raise ToolError(f"wrong: {password}")

    return server


async def fetch(url, password):
    transport = EffectTransport(httpx2.MockTransport(respond))
    basic = base64.b64encode(f"me:{password}".encode()).decode()
    headers = {"authorization": f"Basic {basic}", "cookie": f"session={quote(password)}"}
    async with httpx2.AsyncClient(transport=transport, headers=headers) as client:
        response = await client.post(url, json={"password": password, "also": [password]})
        return response.text


def talk_of(secrets, stage):
    async def talk(peer, _session):
        await peer.handshake(capabilities={"roots": {}})
        arguments = {"user": "ann", "password": secrets.password, "otp": secrets.pin}
        await peer.send(stage.call(1, "login", **arguments))
        await stage.answer_all(peer, 1)
        await peer.send(stage.call(2, "fail", password=secrets.password))
        await stage.answer_all(peer, 2)
        await peer.send(*broken_frames(secrets))
        await trio.sleep(1)

    return talk


def broken_frames(secrets):
    """Frames that are no messages, or too long, and tell as much."""
    call = json.dumps({"method": "x", "params": {"password": secrets.password}})
    return (
        f'{{"jsonrpc":"2.0","id":3,"params":{{"password":{json.dumps(secrets.password)}'.encode(),
        b"\xff" + call.encode(),
        call.encode()[:-1],
        f'{{"password": {json.dumps(secrets.password)}, "fill": "{"x" * LIMITS.messages.bytes_max}"}}'.encode(),
        f"{secrets.password} {secrets.hard}".encode(),
    )


FILES = {
    "plain": lambda folder: RecordOptions(folder / "a.mcprec.jsonl", redaction=redaction()),
    "compressed": lambda folder: RecordOptions(
        folder / "a.mcprec.jsonl.zst", redaction=redaction()
    ),
    "segments": lambda folder: RecordOptions(
        folder / "a.mcprec.jsonl", redaction=redaction(), segment_bytes_max=700
    ),
    "compressed segments": lambda folder: RecordOptions(
        folder / "a.mcprec.jsonl.zst", redaction=redaction(), segment_bytes_max=700
    ),
}


def redaction():
    return Redaction(secrets=[SECRETS[-1].hard])


@pytest.fixture(params=["Tr0ub4dor & drei Pferde", 'drei "Pferde" \\ für Ägypten'])
def secrets(request):
    SECRETS.append(Secrets(password=request.param))
    yield SECRETS[-1]
    SECRETS.pop()


@pytest.mark.parametrize("files", FILES)
def test_a_planted_secret_is_in_no_byte_of_any_file_and_the_recording_replays(
    stage, tmp_path, files, secrets
):
    record = FILES[files](tmp_path)
    frames = stage.play(vault(), talk_of(secrets, stage), record=record)
    assert secrets.granted.encode() in b"".join(frames)
    assert found(tmp_path, secrets) == []
    assert check(open_recording(record.path)).damage == []
    assert stage.replayed(record.path, vault()).is_complete


# Any secret, in a stream whose chunks end anywhere.

# A secret whose words stand elsewhere in the session is more than one value to who follows it, and
# a half of one that stands there anyway is not found because of it.
ORDINARY = Path(__file__).read_text(encoding="utf-8")


ORDINARY_WORDS = frozenset(re.findall(r"\w+", ORDINARY))


def is_ordinary(text):
    words, half = re.findall(r"\w+", text), len(text) // 2
    pieces = [*words, text[:half].strip(), text[half:].strip()]
    is_part = any(len(piece) > 3 and piece in ORDINARY for piece in pieces)
    return is_part or not ORDINARY_WORDS.isdisjoint(words)


# Halves of which are long enough to be followed, not the same, and no shape alone.
words = st.text(
    st.characters(codec="utf-8", categories=("L", "N")) | st.sampled_from(' "\\&/=+%'),
    min_size=17,
    max_size=40,
)
secrets_ = st.builds(
    Secrets,
    password=words.filter(
        lambda text: (
            text.strip() == text
            and text[:8] != text[-8:]
            and min(len(set(filter(str.isalnum, half))) for half in (text[:8], text[-8:])) > 4
            and not is_ordinary(text)
        )
    ),
    granted=st.from_regex(r"tok_[A-Za-z0-9]{12,40}", fullmatch=True),
    pin=st.integers(10**17, 10**18),  # a half of it stands in no recording by chance
)
some = settings(
    max_examples=settings().max_examples // 4,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


async def stream(record, data, chunk_bytes):
    """Serve a byte stream that comes in chunks, and read all that comes back."""
    child_in, to_child = os.pipe()
    from_child, child_out = os.pipe()
    received = bytearray()

    async def collect_output():
        async with trio.lowlevel.FdStream(from_child) as pipe:
            async for chunk in pipe:
                received.extend(chunk)

    async with trio.open_nursery() as nursery:
        channel = open_stdio_channel(child_in, child_out, limits=LIMITS)
        nursery.start_soon(lambda: vault().serve(channel, record=record))
        nursery.start_soon(collect_output)
        async with trio.lowlevel.FdStream(to_child) as pipe:
            for start in range(0, len(data), chunk_bytes):
                await pipe.send_all(data[start : start + chunk_bytes])
                await trio.lowlevel.checkpoint()
    return bytes(received)


def input_with(secrets):
    """A whole session as its bytes; of two calls, the answers may come in any order."""
    initialize = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "thief", "version": "0"},
    }
    arguments = {"user": "ann", "password": secrets.password, "otp": secrets.pin}
    frames = [
        {"id": 0, "method": "initialize", "params": initialize},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/call", "params": {"name": "login", "arguments": arguments}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **frame}).encode() for frame in frames]
    return b"".join(line + b"\n" for line in (*lines, *broken_frames(secrets)))


@pytest.mark.timeout(240)  # byte by byte takes long where others calculate, too
@some
@given(secrets=secrets_, chunk_bytes=st.integers(1, 60))
def test_any_secret_in_chunks_of_any_size_is_in_no_byte_and_the_recording_replays(
    stage, secrets, chunk_bytes
):
    SECRETS.append(secrets)
    try:
        with tempfile.TemporaryDirectory() as folder:
            record = FILES["plain"](Path(folder))
            received = trio.run(stream, record, input_with(secrets), chunk_bytes)
            assert secrets.granted.encode() in received
            assert found(Path(folder), secrets) == []
            stage.replayed(record.path, vault())
    finally:
        SECRETS.pop()


# The control.


def test_without_redaction_the_secret_is_in_the_file_in_every_form(stage, tmp_path, secrets):
    stage.play(vault(), talk_of(secrets, stage), record=tmp_path / "a.mcprec.jsonl")
    forms = {form for *_, form in found(tmp_path, secrets)}
    assert forms >= {"escaped twice", "percent"}
    assert any(form.startswith("base64") for form in forms)
