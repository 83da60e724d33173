"""Commands with encrypted recordings."""

import base64
import sys

import pytest
import trio

from mcp_trio import Client, Server
from mcp_trio._recorder.encryption import KEYS_VARIABLE, is_encrypted
from mcp_trio.recording import RecordOptions, check, open_recording
from tests.cli.test_catalogue import SERVER

KEY = "desk:" + base64.b64encode(bytes(32)).decode()


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, KEY)


def record(path):
    """Record a call of a server, encrypted."""
    server = Server("vault")

    @server.tool
    async def store(text: str) -> str:
        return text

    async def call():
        async with Client(server, record=RecordOptions(path, encrypt=True)) as client:
            await client.call_tool("store", {"text": "red-tulip-9"})

    trio.run(call)
    return path


@pytest.fixture
def recording(tmp_path):
    return record(tmp_path / "a.mcprec.jsonl")


def test_check_says_what_it_can_without_the_key(invoke, recording, monkeypatch):
    assert invoke("check", str(recording)).exit_code == 0
    monkeypatch.delenv(KEYS_VARIABLE)
    done = invoke("check", str(recording))
    assert done.exit_code == 0
    assert "its records were not checked: " in done.output
    assert "encrypted parts, key 'desk': closed" in done.output
    recording.write_bytes(recording.read_bytes()[:-10])
    done = invoke("check", str(recording))
    assert (done.exit_code, "cut, or still being written" in done.output) == (1, True)
    recording.write_bytes(recording.read_bytes()[:-100] + b"x" * 200)
    done = invoke("check", str(recording))
    assert (done.exit_code, "damaged" in done.output) == (1, True)


def test_commands_read_encrypted_recordings_with_the_key(invoke, recording, tmp_path):
    assert "red-tulip-9" in invoke("show", str(recording), "--full").output
    assert invoke("find", str(tmp_path), "tool:store").exit_code == 0
    out = tmp_path / "out.mcprec.jsonl"
    assert invoke("redact", str(recording), "-o", str(out)).exit_code == 0
    assert not is_encrypted(out)
    assert check(open_recording(out)).complete


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_recording_that_is_redacted_in_place_stays_encrypted(invoke, tmp_path, suffix):
    path = record(tmp_path / f"b.mcprec.jsonl{suffix}")
    assert invoke("redact", str(path), "--in-place").exit_code == 0
    assert is_encrypted(path)
    assert check(open_recording(path)).complete


def test_commands_name_the_variable_without_the_key(invoke, recording, monkeypatch):
    monkeypatch.delenv(KEYS_VARIABLE)
    for command in ("show", "diff"):
        done = invoke(command, *[str(recording)] * (1 + (command == "diff")))
        assert done.exit_code == 2
        assert f"{recording} is encrypted: no key for recordings: set ${KEYS_VARIABLE}" in (
            done.output + done.stderr
        )


@pytest.mark.slow
@pytest.mark.parametrize("policy", [[], ["--keep-rate", "1"]])
def test_run_encrypts_recordings_with_the_key_of_the_environment(
    invoke, tmp_path, monkeypatch, policy
):
    (tmp_path / "shop.py").write_text(SERVER)
    folder = tmp_path / "kept"
    folder.mkdir()
    run = [sys.executable, "-m", "mcp_trio", "run", str(tmp_path / "shop.py")]
    run += ["--record", str(folder), "--encrypt", *policy]

    async def call():
        async with Client(run, env={KEYS_VARIABLE: KEY}) as client:
            await client.call_tool("sell", {"item": "shoes"})

    trio.run(call)
    (file,) = folder.glob("*.mcprec.jsonl*")
    assert is_encrypted(file)
    assert check(open_recording(file)).complete
    monkeypatch.delenv(KEYS_VARIABLE)
    done = invoke("run", str(tmp_path / "shop.py"), "--record", str(folder), "--encrypt", *policy)
    assert done.exit_code != 0
    assert "no key for recordings" in done.output + done.stderr
    assert invoke("run", str(tmp_path / "shop.py"), "--encrypt").exit_code == 2
